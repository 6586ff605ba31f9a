//! once.segment: which segment is written to, which are drained, and how a segment is truncated.
//!
//! An emitter locks its segment as any INSERT does, until its transaction ends. Under the lock it checks that the
//! segment is current. So an earlier segment gets no more events when no emitter has it locked. This task then copies
//! the events that a subscriber still needs (copy.rs), and marks the segment as drained.

use crate::error::{Error, Result};
use crate::incarnation;
use crate::outbox::event::{self, SEGMENT, SEGMENTS};
use crate::spi::{self, Kept};
use crate::subxact;
use crate::swept::Swept;
use crate::table::{self, Name, Snapshot, Table};
use pgrx::pg_sys::{Datum, INT4OID, INT8OID};
use std::ffi::CStr;

const BY_NUMBER: Name = c"segment_pkey";

/// A segment of this size, in bytes, is full.
const FULL: u64 = 8 << 20;

const OPEN: &CStr = c"
    INSERT INTO once.segment (segment, opened) VALUES ($1, $2)
    ON CONFLICT (segment) DO UPDATE SET opened = excluded.opened";

const MARK: &CStr = c"
    INSERT INTO once.segment (segment, opened, drained_xid, incarnation) VALUES ($1, 0, $2, $3)
    ON CONFLICT (segment) DO UPDATE SET drained_xid = excluded.drained_xid, incarnation = excluded.incarnation";

static OPENED: Kept = Kept::new(OPEN, &[INT4OID, INT8OID]);
static MARKED: Kept = Kept::new(MARK, &[INT4OID, INT8OID, INT8OID]);

/// The segments as a snapshot sees them.
pub struct Log {
    pub current: usize,
    /// The column `opened` of the segment that was opened last.
    opened: i64,
    /// Whether this transaction opened the current segment. If so, other sessions still write to the previous segment.
    pub is_opened_here: bool,
    /// The drained_xid of each drained segment. Once the horizon reaches this id, every open snapshot sees the commit
    /// that marked the segment.
    drained: [Option<i64>; 4],
}

impl Log {
    pub fn read(snapshot: &Snapshot) -> Result<Log> {
        let mut log = Log {
            current: event::current_segment(snapshot)?,
            opened: 0,
            is_opened_here: false,
            drained: [None; 4],
        };
        let table = Table::to_read(SEGMENT)?;
        let present = incarnation::present()?;
        let mut scan = table.scan(BY_NUMBER, &mut [], snapshot)?;
        while let Some(slot) = scan.advance() {
            let number = |i| slot.column(i).map(|d| d.value() as i64);
            let opened = number(2).unwrap_or(0);
            if opened > log.opened {
                (log.opened, log.is_opened_here) = (opened, slot.is_ours());
            }
            // A drained_xid from before a restore is not valid.
            if number(4) == Some(present)
                && let Some(drained) = log.drained.get_mut(number(1).unwrap_or(0) as usize)
            {
                *drained = number(3);
            }
        }
        Ok(log)
    }

    /// Segments that are not current, not empty and not drained.
    pub fn closed(&self) -> Result<Vec<usize>> {
        let mut closed = Vec::new();
        for segment in 0..SEGMENTS.len() {
            let waiting = segment != self.current && self.drained[segment].is_none();
            if waiting && !is_blank(segment)? {
                closed.push(segment);
            }
        }
        Ok(closed)
    }

    pub fn empty(&self) -> Result<Option<usize>> {
        for step in 1..SEGMENTS.len() {
            let segment = (self.current + step) % SEGMENTS.len();
            if is_blank(segment)? {
                return Ok(Some(segment));
            }
        }
        Ok(None)
    }

    /// Whether another segment is empty or will be truncated.
    pub fn will_be_empty(&self) -> Result<bool> {
        let others = (0..SEGMENTS.len()).filter(|s| *s != self.current);
        for segment in others {
            if self.drained[segment].is_some() || is_blank(segment)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub fn is_full(&self, segment: usize) -> Result<bool> {
        Ok(Table::to_read(SEGMENTS[segment].table)?.bytes() >= FULL)
    }

    /// Makes an empty segment the current segment.
    pub fn open(&self, segment: usize) -> Result<()> {
        let args = [Datum::from(segment as i32), Datum::from(self.opened + 1)];
        spi::query_latest(&OPENED, &args.map(Some))?;
        table::tell_all(&[SEGMENT])
    }

    /// Whether the segment is drained, and every open snapshot sees the commit that marked it as drained.
    pub fn is_ripe(&self, segment: usize) -> Result<bool> {
        let Some(drained) = self.drained[segment].filter(|_| segment != self.current) else {
            return Ok(false);
        };
        let table = Table::to_read(SEGMENTS[segment].table)?;
        Ok(table::horizon(&table) >= drained)
    }
}

fn is_blank(segment: usize) -> Result<bool> {
    Ok(Table::to_read(SEGMENTS[segment].table)?.is_blank())
}

/// Marks a segment as drained. Before the call, all of its needed events must be copied.
pub fn mark_drained(segment: usize) -> Result<()> {
    // This transaction gets an id first. So the drained_xid, which is the next id, is larger. A snapshot that is taken
    // before the commit regards this transaction as running. While such a snapshot is open, the horizon is at most this
    // transaction's id. That is below the drained_xid, so the segment is not ripe yet.
    table::own_xid();
    mark(segment, Some(table::next_xid()))
}

fn mark(segment: usize, drained_xid: Option<i64>) -> Result<()> {
    let incarnation = incarnation::present()?;
    let args = [
        Some(Datum::from(segment as i32)),
        drained_xid.map(Datum::from),
        drained_xid.map(|_| Datum::from(incarnation)),
    ];
    spi::query_latest(&MARKED, &args).map(drop)
}

/// Truncates a ripe segment. Does nothing if the lock on it is not free within lock_timeout.
pub fn truncate(segment: usize) -> Result<Swept> {
    let name = SEGMENTS[segment].table;
    let done = subxact::attempt(|| {
        table::lock_exclusively(name)?;
        spi::run(&[b"TRUNCATE once.", name.to_bytes()].concat())?;
        mark(segment, None)
    })?;
    match done {
        Ok(()) => Ok(Swept {
            done: 1,
            ..Swept::default()
        }),
        Err(failure) if failure.is_wait => Ok(Swept::default()),
        Err(failure) => Err(Error::internal(failure.message)),
    }
}

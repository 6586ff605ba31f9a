//! once.segment: which segment is written to, which are drained, and how one is emptied.
//!
//! Emitters lock their segment as any INSERT does before they make sure that it is the current one, to the end
//! of their transaction. So with a segment that is not current locked exclusively, nothing more comes into it,
//! and what came into it since it was marked is visible.

use super::need::Needs;
use crate::error::{Error, Kind, Result};
use crate::incarnation;
use crate::outbox::event::{self, Col, Event, SEGMENTS};
use crate::spi::{self, Kept};
use crate::subxact;
use crate::swept::Swept;
use crate::table::{self, Name, ScanKey, Snapshot, Table};
use pgrx::pg_sys::{self, Datum};
use std::cell::Cell;
use std::ffi::CStr;

pub const TABLE: Name = c"segment";
const BY_NUMBER: Name = c"segment_pkey";

/// From this size on the next segment is opened.
const FULL: u64 = 8 << 20;

const OPEN: &CStr = c"
    INSERT INTO once.segment (segment, opened) VALUES ($1, $2)
    ON CONFLICT (segment) DO UPDATE SET opened = excluded.opened";

const MARK: &CStr = c"
    INSERT INTO once.segment AS s (segment, opened, drained_xid, checked_xid, incarnation) VALUES ($1, 0, $2, $3, $4)
    ON CONFLICT (segment) DO UPDATE
       SET drained_xid = excluded.drained_xid, checked_xid = excluded.checked_xid, incarnation = excluded.incarnation";

thread_local! {
    static OPENED: Kept = const { Kept::new(OPEN, &[pg_sys::INT4OID, pg_sys::INT8OID]) };
    static MARKED: Kept = const { Kept::new(MARK, &[
        pg_sys::INT4OID, pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::INT8OID,
    ]) };
}

/// When a segment was marked as drained.
#[derive(Clone, Copy)]
struct Drained {
    /// Snapshots that call this transaction running are from before the mark.
    xid: i64,
    /// Transactions before this one had ended when its events were looked at.
    checked: i64,
}

/// The segments as they are committed now.
pub struct Log {
    pub current: usize,
    /// Of the segment that was opened last.
    opened: i64,
    drained: [Option<Drained>; 4],
}

impl Log {
    pub fn read(snapshot: &Snapshot) -> Result<Log> {
        let mut log = Log {
            current: event::current_segment(snapshot)?,
            opened: 0,
            drained: [None; 4],
        };
        let table = Table::to_read(TABLE)?;
        let present = incarnation::present()?;
        let mut scan = table.scan(BY_NUMBER, &mut [], snapshot)?;
        while let Some(slot) = scan.advance() {
            let number = |i| slot.column(i).map(|d| d.value() as i64);
            log.opened = log.opened.max(number(2).unwrap_or(0));
            // Elsewhere, after a restore, the transaction ids mean nothing.
            if number(5) == Some(present)
                && let (Some(segment), Some(xid), Some(checked)) = (number(1), number(3), number(4))
                && let Some(drained) = log.drained.get_mut(segment as usize)
            {
                *drained = Some(Drained { xid, checked });
            }
        }
        Ok(log)
    }

    /// Segments that are neither written to nor empty nor drained already.
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

    /// An empty segment, where there is one.
    pub fn empty(&self) -> Result<Option<usize>> {
        for step in 1..SEGMENTS.len() {
            let segment = (self.current + step) % SEGMENTS.len();
            if is_blank(segment)? {
                return Ok(Some(segment));
            }
        }
        Ok(None)
    }

    /// Something is on its way to be empty.
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

    /// Makes an empty segment the current one.
    pub fn open(&self, segment: usize) -> Result<()> {
        let args = [Datum::from(segment as i32), Datum::from(self.opened + 1)];
        spi::query_latest(&OPENED, &args.map(Some)).map(drop)
    }

    /// Drained, and no snapshot is left that was taken before that was committed.
    pub fn is_ripe(&self, segment: usize) -> Result<bool> {
        let Some(drained) = self.drained[segment].filter(|_| segment != self.current) else {
            return Ok(false);
        };
        let table = Table::to_read(SEGMENTS[segment].table)?;
        Ok(table::horizon(&table) >= drained.xid)
    }
}

fn is_blank(segment: usize) -> Result<bool> {
    Ok(Table::to_read(SEGMENTS[segment].table)?.is_blank())
}

/// Nobody needs anything of it: what is was copied, at the latest by this transaction. `checked` is the oldest
/// transaction that was running when its events were looked at.
pub fn mark_drained(segment: usize, checked: i64) -> Result<()> {
    // A snapshot that does not see this transaction's end calls it running, and so the next one.
    table::assign_xid();
    mark(segment, Some((table::next_xid(), checked)))
}

fn mark(segment: usize, drained: Option<(i64, i64)>) -> Result<()> {
    let present = incarnation::present()?;
    let args = [
        Some(Datum::from(segment as i32)),
        drained.map(|(xid, _)| Datum::from(xid)),
        drained.map(|(_, checked)| Datum::from(checked)),
        drained.map(|_| Datum::from(present)),
    ];
    spi::query_latest(&MARKED, &args).map(drop)
}

/// Empties a ripe segment, where nobody reads it now and nothing needed came into it since.
pub fn truncate(segment: usize, log: &Log) -> Result<Swept> {
    let Some(drained) = log.drained[segment] else {
        return Ok(Swept::default());
    };
    let locked = Cell::new(false);
    let late = Cell::new(false);
    let done = subxact::attempt(|| {
        table::lock_exclusively(SEGMENTS[segment].table)?;
        locked.set(true);
        if came_late(segment, drained.checked)? {
            late.set(true);
            return Err(Error::new(Kind::InUse, "a segment has late events"));
        }
        let name = SEGMENTS[segment].table.to_bytes();
        spi::run(&[b"TRUNCATE once.", name].concat())?;
        mark(segment, None)
    })?;
    match done {
        Ok(()) => Ok(Swept {
            done: 1,
            ..Swept::default()
        }),
        // It is looked at again from the beginning, by the next pass. That finds all that it holds: whoever could
        // still add to it held the lock.
        Err(_) if late.get() => mark(segment, None).map(|()| Swept {
            more: true,
            ..Swept::default()
        }),
        Err(_) if !locked.get() => Ok(Swept::default()),
        Err(failure) => Err(Error::new(Kind::Internal, failure.message)),
    }
}

/// Something that somebody needs was added by a transaction that was open when the segment was looked at, or is
/// younger. The segment is locked: no more comes.
fn came_late(segment: usize, checked: i64) -> Result<bool> {
    let home = &SEGMENTS[segment];
    let table = Table::to_read(home.table)?;
    let snapshot = Snapshot::latest();
    let mut needs = Needs::begin()?;
    let mut scan = table.scan(home.xid, &mut [ScanKey::above(1, checked - 1)], &snapshot)?;
    while let Some(slot) = scan.advance() {
        let event = Event::look(slot);
        if needs.wants(&event)? && !needs.is_kept(&event, event.i32(Col::Lane))? {
            return Ok(true);
        }
    }
    Ok(false)
}

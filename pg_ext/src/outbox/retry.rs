//! once.retry: events of a subscriber that are handled one by one, because they failed, were delayed or redriven, or
//! wait behind an earlier event of their order_key in this table.
//!
//! A row is in a batch (token set), due at a time (finite due_at), or waiting (due_at infinity). In a lane without keys
//! no row waits. In a keyed lane the first row of a key is that with the lowest event_id; no later row is handed out
//! before it. Invariant: a first row never waits. So every write that removes rows or takes them out of a batch ends
//! with [`free`], which makes a waiting first row due now. A row that is inserted ahead of others (a redriven event, or
//! an event that was committed late) is inserted as due. Rows behind the first may have a finite due_at, too.
//!
//! A row in a batch is changed under the lock of the batch. Any other row is changed by a take that has locked the
//! lane, or by `free` under the lock of a batch. A keyed lane has at most one open batch. While that batch is open,
//! rows of the lane are changed only under the batch's lock. So `free` waits for no lock.

use super::batch::Batch;
use super::topic::Subscriber;
use crate::call::varlena;
use crate::clock::{self, INFINITY};
use crate::error::Result;
use crate::row;
use crate::spi::{self, Kept, column, number};
use crate::table::{self, Name, ScanKey, ScanStep, Snapshot, Table};
use pgrx::pg_sys::{
    self, Datum, INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, TEXTARRAYOID, TEXTOID,
    TIMESTAMPTZOID,
};
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;

pub const TABLE: Name = c"retry";
pub const BY_EVENT: Name = c"retry_pkey";
pub const BY_DUE: Name = c"retry_due";
const BY_KEY: Name = c"retry_key";

const LEASE: &CStr = c"
    UPDATE once.retry SET token = $2, due_at = 'infinity'
     WHERE subscriber_id = $1 AND event_id = ANY ($3)";

// An event that commits late can have a lower event_id than the rows of its key: then its row is the first.
const WAIT: &CStr = c"
    INSERT INTO once.retry (due_at, event_id, subscriber_id, topic_id, lane, failures, redriven, suspect,
                            order_key)
    SELECT CASE WHEN EXISTS (SELECT FROM once.retry r
                              WHERE r.subscriber_id = $1 AND r.lane = $3 AND r.order_key = $5
                                AND r.event_id < $4)
                THEN 'infinity' ELSE $6 END,
           $4, $1, $2, $3, 0, 0, false, $5
    ON CONFLICT (subscriber_id, event_id) DO UPDATE SET due_at = once.retry.due_at";

const DELAY: &CStr = c"
    INSERT INTO once.retry (due_at, event_id, subscriber_id, topic_id, lane, failures, redriven, suspect)
    SELECT $3, $2, s.subscriber_id, $1, 0, 0, 0, false FROM once.subscriber s WHERE s.topic_id = $1";

const DONE: &CStr = c"
    DELETE FROM once.retry WHERE subscriber_id = $1 AND token = $2 AND event_id = ANY ($3)
    RETURNING lane, order_key";

const REMOVE: &CStr = c"DELETE FROM once.retry WHERE subscriber_id = $1 AND event_id = ANY ($2)";

const FREE: &CStr = c"
    UPDATE once.retry r SET due_at = $4
      FROM ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3)) k (lane, order_key)
           CROSS JOIN LATERAL (
               SELECT h.event_id, h.token, h.due_at FROM once.retry h
                WHERE h.subscriber_id = $1 AND h.lane = k.lane AND h.order_key = k.order_key
                ORDER BY h.event_id LIMIT 1) first
     WHERE r.subscriber_id = $1 AND r.event_id = first.event_id
       AND first.token IS NULL AND first.due_at = 'infinity'
    RETURNING r.event_id";

static LEASED: Kept = Kept::new(LEASE, &[INT4OID, INT8OID, INT8ARRAYOID]);
static WAITING: Kept = Kept::new(
    WAIT,
    &[INT4OID, INT4OID, INT4OID, INT8OID, TEXTOID, TIMESTAMPTZOID],
);
static DELAYED: Kept = Kept::new(DELAY, &[INT4OID, INT8OID, TIMESTAMPTZOID]);
static IS_DONE: Kept = Kept::new(DONE, &[INT4OID, INT8OID, INT8ARRAYOID]);
static REMOVED: Kept = Kept::new(REMOVE, &[INT4OID, INT8ARRAYOID]);
static FREED: Kept = Kept::new(FREE, &[INT4OID, INT4ARRAYOID, TEXTARRAYOID, TIMESTAMPTZOID]);

/// Columns of once.retry, from 1.
#[derive(Clone, Copy)]
pub enum Col {
    DueAt = 1,
    EventId,
    Token,
    Topic = 5,
    Lane,
    Failures,
    Redriven,
    Suspect,
    OrderKey,
}

table::columns!(Col);

/// A row of once.retry.
pub type Retry = table::Record<Col, 10>;

/// An event that a take may hand out.
pub struct DueRetry {
    pub event_id: i64,
    pub failures: i32,
}

impl DueRetry {
    fn from_row(row: &Retry) -> DueRetry {
        DueRetry {
            event_id: row.i64(Col::EventId),
            failures: row.i32(Col::Failures),
        }
    }
}

fn is_suspect(row: &Retry) -> bool {
    row.raw(Col::Suspect).is_some_and(|d| d.value() != 0)
}

/// A subscriber's rows in one lane, as committed now.
struct RetryLane {
    subscriber: i32,
    lane: i32,
    table: Table,
    snapshot: Snapshot,
}

impl RetryLane {
    fn open(sub: &Subscriber, lane: i32) -> Result<RetryLane> {
        Ok(RetryLane {
            subscriber: sub.id,
            lane,
            table: Table::to_read(TABLE)?,
            snapshot: Snapshot::latest(),
        })
    }

    /// Rows that are due, in the order of due_at.
    fn due(&self, suspect: bool, now: i64) -> Result<table::Scan<'_>> {
        let keys = &mut [
            ScanKey::i32(1, self.subscriber),
            ScanKey::i32(2, self.lane),
            ScanKey::bool(3, suspect),
            ScanKey::until(4, now),
        ];
        self.table.scan(BY_DUE, keys, &self.snapshot)
    }

    /// Rows of a key in the order of event_id.
    fn of_key(&self, key: &[u8]) -> Result<table::Scan<'_>> {
        let keys = &mut [
            ScanKey::i32(1, self.subscriber),
            ScanKey::i32(2, self.lane),
            ScanKey::text(3, row::text(key)),
        ];
        self.table.scan(BY_KEY, keys, &self.snapshot)
    }

    /// Adds the events of a key that may be handed out now: the key's rows in order, if the first row is due. Stops at
    /// a suspect, at a row in a batch, and at a row with a finite due_at in the future.
    fn add_key(&self, key: &[u8], now: i64, max: usize, due: &mut Vec<DueRetry>) -> Result<()> {
        let mut scan = self.of_key(key)?;
        let mut first = true;
        while due.len() < max
            && let Some(slot) = scan.advance()
        {
            let row = Retry::borrow(slot);
            let at = row.i64(Col::DueAt);
            let ready = at <= now || (!first && at == INFINITY);
            if !ready || row.raw(Col::Token).is_some() || is_suspect(&row) {
                return Ok(());
            }
            due.push(DueRetry::from_row(&row));
            first = false;
        }
        Ok(())
    }

    fn has_any_key(&self) -> Result<bool> {
        let keys = &mut [ScanKey::i32(1, self.subscriber), ScanKey::i32(2, self.lane)];
        Ok(self.table.find(BY_KEY, keys, &self.snapshot)?.is_some())
    }

    fn first_of_key(&self, key: &[u8]) -> Result<Option<i64>> {
        let mut scan = self.of_key(key)?;
        let first = scan.advance();
        Ok(first.map(|slot| Retry::borrow(slot).i64(Col::EventId)))
    }
}

/// Events of this lane that may be handed out now, at most `max`, in the order of event_id. No suspects. In a keyed
/// lane these are the rows that [`RetryLane::add_key`] adds for each key with a due row.
pub fn due(sub: &Subscriber, lane: i32, now: i64, max: i32) -> Result<Vec<DueRetry>> {
    let lane = RetryLane::open(sub, lane)?;
    let max = max as usize;
    let mut due = Vec::new();
    let mut keys: HashSet<Vec<u8>> = HashSet::new();
    let mut scan = lane.due(false, now)?;
    while due.len() < max
        && let Some(slot) = scan.advance()
    {
        let row = Retry::borrow(slot);
        match row.bytes(Col::OrderKey) {
            None => due.push(DueRetry::from_row(&row)),
            Some(key) if keys.contains(key) => {}
            Some(key) => {
                lane.add_key(key, now, max, &mut due)?;
                keys.insert(key.to_vec());
            }
        }
    }
    due.sort_unstable_by_key(|d| d.event_id);
    Ok(due)
}

/// The event_id of the first row of a key.
pub fn first_of_key(sub: &Subscriber, lane: i32, key: &[u8]) -> Result<Option<i64>> {
    RetryLane::open(sub, lane)?.first_of_key(key)
}

/// One probe reads at most this many index entries: an old snapshot keeps the entries of deleted rows.
const MOST_ENTRIES: usize = 50;

/// Whether the subscriber has rows. The probe stops after MOST_ENTRIES index entries without a visible row. The answer
/// is then true.
pub fn may_have_any(sub: &Subscriber) -> Result<bool> {
    let keys = &mut [ScanKey::i32(1, sub.id)];
    Table::to_read(TABLE)?.may_find(BY_EVENT, keys, &Snapshot::latest(), MOST_ENTRIES)
}

/// The earliest due_at of rows that are in no batch and do not wait; infinity: no such row. Stops at a row that is
/// due. If a probe reaches MOST_ENTRIES, answers i64::MIN: a row may be due.
pub fn next_due(sub: &Subscriber, now: i64) -> Result<i64> {
    let (table, snapshot) = (Table::to_read(TABLE)?, Snapshot::latest());
    let mut first = INFINITY;
    for lane in table.values(BY_DUE, &[sub.id], &snapshot)? {
        for suspect in [false, true] {
            let keys = &mut [
                ScanKey::i32(1, sub.id),
                ScanKey::i32(2, lane),
                ScanKey::bool(3, suspect),
                ScanKey::until(4, INFINITY - 1),
            ];
            let mut looks = MOST_ENTRIES;
            match table.scan(BY_DUE, keys, &snapshot)?.step(&mut looks) {
                ScanStep::Row(slot) => first = first.min(Retry::borrow(slot).i64(Col::DueAt)),
                ScanStep::LimitReached => return Ok(i64::MIN),
                ScanStep::End => {}
            }
            if first <= now {
                return Ok(first);
            }
        }
    }
    Ok(first)
}

/// The suspect of this lane that has been due for longest; in a keyed lane only a first row of a key.
pub fn suspect(sub: &Subscriber, lane: i32, now: i64) -> Result<Option<DueRetry>> {
    let lane = RetryLane::open(sub, lane)?;
    let mut scan = lane.due(true, now)?;
    while let Some(slot) = scan.advance() {
        let row = Retry::borrow(slot);
        let is_first = match row.bytes(Col::OrderKey) {
            None => true,
            Some(key) => lane.first_of_key(key)? == Some(row.i64(Col::EventId)),
        };
        if is_first {
            return Ok(Some(DueRetry::from_row(&row)));
        }
    }
    Ok(None)
}

/// Puts the rows of these events into the batch of this token.
pub fn lease(sub: &Subscriber, token: i64, ids: &[i64]) -> Result<()> {
    let args = [sub.id.into(), Datum::from(token), row::i64s(ids)];
    spi::query_latest(&LEASED, &args.map(Some)).map(drop)
}

/// The order_keys of a lane that have rows: a fresh event of such a key must wait behind them.
pub struct WaitingKeys<'a> {
    sub: &'a Subscriber,
    lane: i32,
    /// The lane's rows, and whether any of them has a key. None until the first call of [`WaitingKeys::has`].
    rows: Option<(RetryLane, bool)>,
    /// The results of [`WaitingKeys::has`] so far, so that each key is probed once.
    known: HashMap<Vec<u8>, bool>,
}

impl<'a> WaitingKeys<'a> {
    pub fn in_lane(sub: &'a Subscriber, lane: i32) -> WaitingKeys<'a> {
        WaitingKeys {
            sub,
            lane,
            rows: None,
            known: HashMap::new(),
        }
    }

    /// Whether this key has rows.
    pub fn has(&mut self, key: &[u8]) -> Result<bool> {
        if self.rows.is_none() {
            let rows = RetryLane::open(self.sub, self.lane)?;
            let any = rows.has_any_key()?;
            self.rows = Some((rows, any));
        }
        let Some((rows, true)) = &self.rows else {
            return Ok(false);
        };
        if let Some(known) = self.known.get(key) {
            return Ok(*known);
        }
        let has = rows.first_of_key(key)?.is_some();
        self.known.insert(key.to_vec(), has);
        Ok(has)
    }

    /// Puts a fresh event behind the rows of its key.
    pub fn put_behind(&self, event_id: i64, key: &[u8]) -> Result<()> {
        let args = [
            Datum::from(self.sub.id),
            Datum::from(self.sub.topic.id),
            Datum::from(self.lane),
            Datum::from(event_id),
            row::text(key),
            Datum::from(clock::now_us()?),
        ];
        spi::query_latest(&WAITING, &args.map(Some)).map(drop)
    }
}

/// Inserts a row of a delayed event, due at `due_at`, for every subscriber of the topic.
pub fn delayed(topic_id: i32, event_id: i64, due_at: i64) -> Result<()> {
    let args = [topic_id.into(), Datum::from(event_id), Datum::from(due_at)];
    spi::query_latest(&DELAYED, &args.map(Some)).map(drop)
}

/// Deletes the rows of acked events of the batch, and calls [`free`] for their keys.
pub fn acked(sub: &Subscriber, batch: &Batch, ids: &[i64]) -> Result<()> {
    if !batch.is_redelivered() || ids.is_empty() {
        return Ok(());
    }
    let args = [sub.id.into(), Datum::from(batch.token()), row::i64s(ids)];
    let rows = spi::query_latest(&IS_DONE, &args.map(Some))?;
    let key = |row: &spi::Row| {
        let lane = column(row, 0)?.value() as i32;
        Some((lane, varlena(column(row, 1)?)))
    };
    let keys: HashSet<(i32, &[u8])> = rows.iter().filter_map(key).collect();
    free(sub, keys, clock::now_us()?).map(drop)
}

/// Deletes these rows; the caller calls [`free`] for their keys.
pub fn remove(sub: &Subscriber, ids: &[i64]) -> Result<()> {
    let args = [Some(Datum::from(sub.id)), Some(row::i64s(ids))];
    spi::query_latest(&REMOVED, &args).map(drop)
}

/// For each (lane, key): if the first row of the key waits, makes it due now. Returns the events made due.
pub fn free<'k>(
    sub: &Subscriber,
    keys: impl IntoIterator<Item = (i32, &'k [u8])>,
    now: i64,
) -> Result<HashSet<i64>> {
    let (lanes, keys): (Vec<i32>, Vec<&[u8]>) = keys.into_iter().unzip();
    if keys.is_empty() {
        return Ok(HashSet::new());
    }
    let args = [
        Datum::from(sub.id),
        row::array(lanes.into_iter().map(Datum::from), pg_sys::INT4OID),
        row::texts(&keys),
        Datum::from(now),
    ];
    let rows = spi::query_latest(&FREED, &args.map(Some))?;
    Ok(rows.iter().map(|row| number(row, 0)).collect())
}

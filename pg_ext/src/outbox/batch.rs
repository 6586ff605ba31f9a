//! A batch: events that a take handed out under one token, and how far its lane had come then.
//!
//! A batch's row is written once (its lease may be extended). Whoever ends a part of it locks the row first and
//! then looks at its receipts, so receipts are written by one transaction at a time.

use super::topic::Subscriber;
use crate::call;
use crate::error::{Error, Kind, Result};
use crate::table::{self, Column, Name, Outcome, ScanKey, Snapshot, Table, Wait};

pub const TABLE: Name = c"batch";
const BY_TOKEN: Name = c"batch_pkey";
const BY_LANE: Name = c"batch_lane";

/// Columns of once.batch, from 1.
#[derive(Clone, Copy)]
pub enum Col {
    Token = 1,
    TakenAt,
    LeaseUntil,
    SubscriberId,
    Lane,
    Series,
    LastId,
    Redelivered,
    Suspect,
    EventIds,
    SeenFrom,
    SeenTo,
    Late,
    Open,
}

impl Column for Col {
    fn number(self) -> usize {
        self as usize
    }
}

/// A row of once.batch.
pub type Batch = table::Record<Col, 14>;

impl Batch {
    /// What is committed now, and our own.
    pub fn find(subscriber: i32, token: i64) -> Result<Option<Batch>> {
        Batch::find_under(subscriber, token, &Snapshot::latest())
    }

    pub fn find_under(subscriber: i32, token: i64, snapshot: &Snapshot) -> Result<Option<Batch>> {
        let table = Table::to_read(TABLE)?;
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, token)];
        Ok(table.find(BY_TOKEN, keys, snapshot)?.map(Batch::load))
    }

    /// The last batch of a lane.
    pub fn last(subscriber: i32, lane: i32, snapshot: &Snapshot) -> Result<Option<Batch>> {
        let table = Table::to_read(TABLE)?;
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i32(2, lane)];
        Ok(table.find_last(BY_LANE, keys, snapshot)?.map(Batch::load))
    }

    /// The batch of a token, its row locked; ON001 where there is none.
    pub fn locked(subscriber: &Subscriber, token: i64) -> Result<Batch> {
        table::ensure_writable(TABLE)?;
        loop {
            let Some(batch) = Batch::find(subscriber.id, token)? else {
                return Err(lost(subscriber, token));
            };
            if batch.lock(Wait::Yes)? == Outcome::Done {
                return Ok(batch);
            }
        }
    }

    /// Locks the row as every write about the batch does first; Changed: look again.
    pub fn lock(&self, wait: Wait) -> Result<Outcome> {
        let table = Table::to_write(TABLE)?;
        match self.tid() {
            Some(tid) => table.lock(tid, &Snapshot::latest(), wait),
            None => Err(Error::new(Kind::Internal, "a batch that is not stored")),
        }
    }

    pub fn token(&self) -> i64 {
        self.i64(Col::Token)
    }

    pub fn lane(&self) -> i32 {
        self.i32(Col::Lane)
    }

    /// Its events in the order they were given out.
    pub fn ids(&self) -> Vec<i64> {
        self.numbers(Col::EventIds)
    }

    pub fn numbers(&self, col: Col) -> Vec<i64> {
        self.raw(col).and_then(call::i64s).unwrap_or_default()
    }

    pub fn flag(&self, col: Col) -> bool {
        self.raw(col).is_some_and(|d| d.value() != 0)
    }
}

/// ON001: the token is not, or not any more, a lease on these events.
pub fn lost(subscriber: &Subscriber, token: i64) -> Error {
    Error::new(
        Kind::LeaseLost,
        format!("token {token} holds no such event of {}", subscriber.shown()),
    )
    .hint("The lease ran out and the events were given to somebody else, or they were acked or nacked: stop working on them.")
}

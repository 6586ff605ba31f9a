//! A batch is the events that a take handed out under one token. It has a row, called a part, for each lane that the
//! take used. A part also stores how far its lane had been read at the end of that take.
//!
//! The first part, the head, stores the lease of the batch. The lease may be extended; no other column of a part
//! changes. Each call that makes events leave a batch first locks the head, and then reads the receipts. So one
//! transaction at a time writes receipts of a batch.

use super::topic::Subscriber;
use crate::call;
use crate::error::{Error, Kind, Result};
use crate::table::{self, Name, ScanKey, Snapshot, Table, Wait, WriteOutcome};
use pgrx::pg_sys;
use std::cell::RefCell;
use std::collections::HashMap;

pub const TABLE: Name = c"batch";
const BY_TOKEN: Name = c"batch_pkey";
pub const BY_LANE: Name = c"batch_lane";

thread_local! {
    /// The token of the last part found, by subscriber and lane. The next search begins there and reads few entries.
    static LAST: RefCell<HashMap<(i32, i32), i64>> = RefCell::new(HashMap::new());
}

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

table::columns!(Col);

/// A row of once.batch: the events that a batch took from one lane.
pub type Part = table::Record<Col, 14>;

impl Part {
    /// The last part of a lane.
    pub fn last(subscriber: i32, lane: i32, snapshot: &Snapshot) -> Result<Option<Part>> {
        Part::last_in(&Table::to_read(TABLE)?, subscriber, lane, snapshot)
    }

    /// Like [`Part::last`], in a table that is open already.
    pub fn last_in(
        table: &Table,
        subscriber: i32,
        lane: i32,
        snapshot: &Snapshot,
    ) -> Result<Option<Part>> {
        let known = LAST.with_borrow(|last| last.get(&(subscriber, lane)).copied());
        let keys = &mut [
            ScanKey::i32(1, subscriber),
            ScanKey::i32(2, lane),
            ScanKey::from(3, known.unwrap_or(i64::MIN)),
        ];
        let mut found = table.find_last(BY_LANE, keys, snapshot)?;
        if found.is_none() && known.is_some() {
            found = table.find_last(BY_LANE, &mut keys[..2], snapshot)?;
        }
        let part = found.map(Part::load);
        let token = part.as_ref().map(Part::token);
        LAST.with_borrow_mut(|last| last.extend(token.map(|token| ((subscriber, lane), token))));
        Ok(part)
    }

    pub fn token(&self) -> i64 {
        self.i64(Col::Token)
    }

    pub fn lane(&self) -> i32 {
        self.i32(Col::Lane)
    }

    /// Tokens of the batches that may still hold events of the lane. The column `open` names the earlier batches. The
    /// batch of this part is the last, if the part has events.
    pub fn out(&self) -> Vec<i64> {
        let mut tokens = self.numbers(Col::Open);
        if !self.ids().is_empty() {
            tokens.push(self.token());
        }
        tokens
    }

    /// The ids of its events, ascending.
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

/// All parts of a token, in the order of their lanes.
pub struct Batch {
    head: Part,
    others: Vec<Part>,
}

impl Batch {
    /// The batch as it is committed now, or as this transaction wrote it.
    pub fn find(subscriber: i32, token: i64) -> Result<Option<Batch>> {
        Batch::find_under(subscriber, token, &Snapshot::latest())
    }

    pub fn find_under(subscriber: i32, token: i64, snapshot: &Snapshot) -> Result<Option<Batch>> {
        let table = Table::to_read(TABLE)?;
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, token)];
        let mut scan = table.scan(BY_TOKEN, keys, snapshot)?;
        let mut parts = std::iter::from_fn(|| scan.take_next(&table)).map(Part::load);
        Ok(parts.next().map(|head| Batch {
            head,
            others: parts.collect(),
        }))
    }

    /// The batch of a token, with its head locked; ON001 if no batch has the token.
    pub fn locked(subscriber: &Subscriber, token: i64) -> Result<Batch> {
        table::ensure_writable(TABLE)?;
        loop {
            let Some(batch) = Batch::find(subscriber.id, token)? else {
                return Err(lost(subscriber, token, &[]));
            };
            if batch.lock(Wait::Yes)? == WriteOutcome::Done {
                return Ok(batch);
            }
        }
    }

    /// Locks the head, as every write to the batch does first. On `Changed` the caller must find the batch again.
    pub fn lock(&self, wait: Wait) -> Result<WriteOutcome> {
        let table = Table::to_write(TABLE)?;
        table.lock(self.place()?, &Snapshot::latest(), wait)
    }

    fn place(&self) -> Result<pg_sys::ItemPointerData> {
        let unstored = || Error::internal("a batch that is not stored");
        self.head.tid().ok_or_else(unstored)
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.head).chain(&self.others)
    }

    pub fn subscriber(&self) -> i32 {
        self.head.i32(Col::SubscriberId)
    }

    pub fn token(&self) -> i64 {
        self.head.token()
    }

    pub fn taken_at(&self) -> i64 {
        self.head.i64(Col::TakenAt)
    }

    pub fn lease_until(&self) -> i64 {
        self.head.i64(Col::LeaseUntil)
    }

    /// Its events, lane by lane.
    pub fn ids(&self) -> Vec<i64> {
        self.parts().flat_map(Part::ids).collect()
    }

    /// The lane of each of its events.
    pub fn lanes(&self) -> HashMap<i64, i32> {
        let lane = |part: &Part| {
            let lane = part.lane();
            part.ids().into_iter().map(move |id| (id, lane))
        };
        self.parts().flat_map(lane).collect()
    }

    /// Whether some of the batch's events were taken from once.retry.
    pub fn is_redelivered(&self) -> bool {
        self.parts().any(|part| part.flag(Col::Redelivered))
    }

    /// Sets the end of the lease. The caller has locked the head.
    pub fn extend(&mut self, until: i64) -> Result<()> {
        let place = self.place()?;
        self.head.put_i64(Col::LeaseUntil, until);
        let table = Table::to_write(TABLE)?;
        match self.head.update_at(&table, place)? {
            WriteOutcome::Done => Ok(()),
            _ => Err(Error::internal("a locked batch was changed")),
        }
    }
}

/// ON001: the token never held these events, or does not hold them any more.
pub fn lost(subscriber: &Subscriber, token: i64, events: &[i64]) -> Error {
    let lost = Error::new(
        Kind::LeaseLost,
        format!("token {token} holds no such event of {}", subscriber.shown()),
    )
    .hint("The lease expired, or they left the batch together with an earlier failed event of their order_key: stop working on them.");
    match events {
        [] => lost,
        events => lost.detail(listed(events)),
    }
}

/// ON006: these events were already acked or nacked with this token.
pub fn already_done(subscriber: &Subscriber, token: i64, how: &str) -> Error {
    Error::already_done(
        format!(
            "token {token} has {how} such events of {} already",
            subscriber.shown()
        ),
        "these events are done. Call again with the other events only.",
    )
}

/// The events as a DETAIL lists them.
pub fn listed(events: &[i64]) -> String {
    let ids: Vec<_> = events.iter().map(i64::to_string).collect();
    format!("Events: {}.", ids.join(", "))
}

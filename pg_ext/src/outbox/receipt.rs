//! Receipts record how events left a batch. A receipt is written under the lock of the batch, and never changed.

use super::batch::Batch;
use crate::call;
use crate::clock;
use crate::error::Result;
use crate::row;
use crate::table::{self, Name, ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;
use std::collections::{HashMap, HashSet};

pub const TABLE: Name = c"receipt";
pub const BY_TOKEN: Name = c"receipt_pkey";

/// Columns of once.receipt, from 1.
#[derive(Clone, Copy)]
pub enum Col {
    SubscriberId = 1,
    N,
    Token,
    At,
    Acked,
    Remaining,
    Kind,
    EventIds,
    Attempts,
    NextAt,
    Dead,
}

table::columns!(Col);

pub type Receipt = table::Record<Col, 11>;

/// How events leave a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReceiptKind {
    Acked = b'a',
    Nacked = b'n',
    Expired = b'x',
}

/// The rows of a nack's answer: arrays of attempts, next_at and dead.
pub type NackAnswer = [Option<Datum>; 3];

/// How an event left its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftBy {
    Acked,
    Nacked,
    /// The worker lost the event: an earlier event of its key was nacked, or the lease expired.
    Lost,
}

/// The state of a batch after its receipts.
pub struct Ledger {
    subscriber: i32,
    token: i64,
    /// Events still held, in the batch's order.
    pub held: Vec<i64>,
    /// The other events: how they left, and whether the present transaction made them leave.
    left: HashMap<i64, (LeftBy, bool)>,
    /// The events of the last receipt.
    last: Vec<i64>,
    acked: i32,
    /// Number of the last receipt; 0: none.
    n: i32,
}

impl Ledger {
    /// Reads the receipts of a batch as they are committed now.
    pub fn read(batch: &Batch) -> Result<Ledger> {
        let (subscriber, token) = (batch.subscriber(), batch.token());
        let mut ledger = Ledger {
            subscriber,
            token,
            held: batch.ids(),
            left: HashMap::new(),
            last: Vec::new(),
            acked: 0,
            n: 0,
        };
        let table = Table::to_read(TABLE)?;
        let snapshot = Snapshot::latest();
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, token)];
        let mut scan = table.scan(BY_TOKEN, keys, &snapshot)?;
        while let Some(slot) = scan.advance() {
            ledger.enter(&Receipt::borrow(slot), slot.is_ours());
        }
        let left = &ledger.left;
        ledger.held.retain(|id| !left.contains_key(id));
        Ok(ledger)
    }

    fn enter(&mut self, receipt: &Receipt, ours: bool) {
        let left = receipt.raw(Col::EventIds).and_then(call::i64s);
        self.last = left.unwrap_or_else(|| self.held.clone());
        self.n = receipt.i32(Col::N);
        self.acked = receipt.i32(Col::Acked);
        let kind = receipt.raw(Col::Kind).map(|d| d.value() as u8);
        // A nack's receipt lists the named events before the later events of their keys.
        let named = receipt.raw(Col::NextAt).and_then(call::times);
        let named = named.map_or(0, |times| times.len());
        for (i, id) in self.last.iter().enumerate() {
            let how = match kind {
                Some(b'a') => LeftBy::Acked,
                Some(b'n') if i < named => LeftBy::Nacked,
                _ => LeftBy::Lost,
            };
            self.left.insert(*id, (how, ours));
        }
    }

    pub fn has_left(&self, event_id: i64, how: LeftBy) -> bool {
        self.left.get(&event_id).is_some_and(|left| left.0 == how)
    }

    /// Whether this transaction wrote the receipt of the event.
    pub fn is_ours(&self, event_id: i64) -> bool {
        self.left.get(&event_id).is_some_and(|left| left.1)
    }

    /// Splits the events of a call into held events and other events, without repeats. None stands for all held events.
    /// If no event is held, None stands for the events of the last receipt that are not [`LeftBy::Lost`].
    pub fn split(&self, wanted: Option<&[i64]>) -> (Vec<i64>, Vec<i64>) {
        let Some(wanted) = wanted else {
            let named = |id: &i64| !self.has_left(*id, LeftBy::Lost);
            return match self.held.is_empty() {
                true => (
                    Vec::new(),
                    self.last.iter().copied().filter(named).collect(),
                ),
                false => (self.held.clone(), Vec::new()),
            };
        };
        let held: HashSet<&i64> = self.held.iter().collect();
        let mut seen = HashSet::new();
        let each_once = wanted.iter().filter(|id| seen.insert(**id));
        each_once.partition(|id| held.contains(id))
    }

    /// Writes the next receipt: these held events leave.
    pub fn append(
        &mut self,
        kind: ReceiptKind,
        ids: &[i64],
        answer: Option<NackAnswer>,
    ) -> Result<()> {
        let all = ids.len() == self.held.len();
        let whole = self.n == 0 && all && answer.is_none();
        if all {
            self.held.clear();
        } else {
            let leaving: HashSet<&i64> = ids.iter().collect();
            self.held.retain(|id| !leaving.contains(id));
        }
        self.n += 1;
        if kind == ReceiptKind::Acked {
            self.acked += ids.len() as i32;
        }
        let mut receipt = Receipt::empty();
        receipt.put_i32(Col::SubscriberId, self.subscriber);
        receipt.put_i32(Col::N, self.n);
        receipt.put_i64(Col::Token, self.token);
        receipt.put_i64(Col::At, clock::now_us()?);
        receipt.put_i32(Col::Acked, self.acked);
        receipt.put_i32(Col::Remaining, self.held.len() as i32);
        receipt.put(Col::Kind, Some(Datum::from(kind as u8)));
        // NULL: all events of the batch.
        receipt.put(Col::EventIds, (!whole).then(|| row::i64s(ids)));
        if let Some([attempts, next_at, dead]) = answer {
            receipt.put(Col::Attempts, attempts);
            receipt.put(Col::NextAt, next_at);
            receipt.put(Col::Dead, dead);
        }
        receipt.insert(&Table::to_write(TABLE)?)
    }
}

/// Whether the batch no longer holds an event.
pub fn is_over(subscriber: i32, token: i64, snapshot: &Snapshot) -> Result<bool> {
    let table = Table::to_read(TABLE)?;
    let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, token)];
    let last = table.find_last(BY_TOKEN, keys, snapshot)?;
    Ok(last.is_some_and(|slot| Receipt::load(slot).i32(Col::Remaining) == 0))
}

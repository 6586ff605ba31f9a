//! Receipts: how the events of a batch left it. Written under the lock of the batch's row, never changed.

use super::batch::Batch;
use crate::call;
use crate::clock;
use crate::error::Result;
use crate::row;
use crate::table::{self, Column, Name, ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;
use std::collections::HashSet;

pub const TABLE: Name = c"receipt";
pub const BY_TOKEN: Name = c"receipt_pkey";

/// Columns of once.receipt, from 1.
#[derive(Clone, Copy)]
pub enum Col {
    SubscriberId = 1,
    N,
    Token,
    At,
    LastCall,
    Acked,
    Remaining,
    Kind,
    EventIds,
    Attempts,
    NextAt,
    Dead,
}

impl Column for Col {
    fn number(self) -> usize {
        self as usize
    }
}

pub type Receipt = table::Record<Col, 12>;

/// How events leave a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Acked,
    Nacked,
    Expired,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Acked => b'a',
            Kind::Nacked => b'n',
            Kind::Expired => b'x',
        }
    }
}

/// The rows of a nack's answer: arrays of attempts, next_at and dead.
pub type Answer = [Option<Datum>; 3];

/// What became of a batch so far.
pub struct Ledger {
    subscriber: i32,
    token: i64,
    /// Still held, in the batch's order.
    pub held: Vec<i64>,
    acked_ids: HashSet<i64>,
    pub acked: i32,
    /// Number of the last receipt; 0: none.
    n: i32,
    /// The last events that left were acked.
    pub ended_by_ack: bool,
}

impl Ledger {
    /// Reads the receipts of a batch as they are committed now.
    pub fn of(batch: &Batch) -> Result<Ledger> {
        let (subscriber, token) = (batch.subscriber(), batch.token());
        let mut ledger = Ledger {
            subscriber,
            token,
            held: batch.ids(),
            acked_ids: HashSet::new(),
            acked: 0,
            n: 0,
            ended_by_ack: false,
        };
        let table = Table::to_read(TABLE)?;
        let snapshot = Snapshot::latest();
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, token)];
        let mut scan = table.scan(BY_TOKEN, keys, &snapshot)?;
        let mut gone = HashSet::new();
        while let Some(slot) = scan.advance() {
            ledger.enter(&Receipt::look(slot), &mut gone);
        }
        ledger.held.retain(|id| !gone.contains(id));
        Ok(ledger)
    }

    fn enter(&mut self, receipt: &Receipt, gone: &mut HashSet<i64>) {
        let left = match receipt.raw(Col::EventIds).and_then(call::i64s) {
            Some(left) => left,
            None => self.held.clone(),
        };
        self.n = receipt.i32(Col::N);
        self.acked = receipt.i32(Col::Acked);
        gone.extend(&left);
        self.ended_by_ack =
            receipt.raw(Col::Kind).map(|d| d.value() as u8) == Some(Kind::Acked.code());
        if self.ended_by_ack {
            self.acked_ids.extend(left);
        }
    }

    /// It was acked under this token.
    pub fn has_acked(&self, event_id: i64) -> bool {
        self.acked_ids.contains(&event_id)
    }

    /// The receipt of a call that was made before.
    pub fn of_call(&self, call: i64) -> Result<Option<Receipt>> {
        let table = Table::to_read(TABLE)?;
        let snapshot = Snapshot::latest();
        let keys = &mut [
            ScanKey::i32(1, self.subscriber),
            ScanKey::i64(2, self.token),
        ];
        let mut scan = table.scan(BY_TOKEN, keys, &snapshot)?;
        while let Some(slot) = scan.advance() {
            if Receipt::look(slot).i64(Col::LastCall) == call {
                return Ok(scan.into_slot().map(Receipt::load));
            }
        }
        Ok(None)
    }

    /// Writes the next receipt: these held events leave. `call` is the mark of a call that may be repeated.
    pub fn append(
        &mut self,
        kind: Kind,
        ids: &[i64],
        call: i64,
        answer: Option<Answer>,
    ) -> Result<()> {
        let whole = self.n == 0 && ids.len() == self.held.len() && answer.is_none();
        let leaving: HashSet<&i64> = ids.iter().collect();
        self.held.retain(|id| !leaving.contains(id));
        self.n += 1;
        if kind == Kind::Acked {
            self.acked += ids.len() as i32;
            self.acked_ids.extend(ids);
        }
        let mut receipt = Receipt::empty();
        receipt.put_i32(Col::SubscriberId, self.subscriber);
        receipt.put_i32(Col::N, self.n);
        receipt.put_i64(Col::Token, self.token);
        receipt.put_i64(Col::At, clock::now_us()?);
        receipt.put_i64(Col::LastCall, call);
        receipt.put_i32(Col::Acked, self.acked);
        receipt.put_i32(Col::Remaining, self.held.len() as i32);
        receipt.put(Col::Kind, Some(Datum::from(kind.code())));
        // All that the batch had is told by NULL.
        receipt.put(Col::EventIds, (!whole).then(|| row::i64s(ids)));
        if let Some([attempts, next_at, dead]) = answer {
            receipt.put(Col::Attempts, attempts);
            receipt.put(Col::NextAt, next_at);
            receipt.put(Col::Dead, dead);
        }
        receipt.insert(&Table::to_write(TABLE)?)
    }
}

/// Nothing of the batch is held any more.
pub fn is_over(subscriber: i32, token: i64, snapshot: &Snapshot) -> Result<bool> {
    let table = Table::to_read(TABLE)?;
    let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, token)];
    let last = table.find_last(BY_TOKEN, keys, snapshot)?;
    Ok(last.is_some_and(|slot| Receipt::load(slot).i32(Col::Remaining) == 0))
}

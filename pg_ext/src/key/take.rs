//! `key_take_abandoned`: hands pending keys to completers.
//!
//! The call reads the released keys of the scope, and the keys whose lease has expired, in the order in which they
//! became due. A key whose first lease has expired is read only after a sweep has moved it (abandon.rs). on_expiry and
//! max_attempts may park many keys, and skipping these must cost little. So a parked key is deferred for as long as it
//! has waited, but at least ten seconds and at most an hour. scope_set ends deferrals if it sets one of these options.

use super::claim::{claim_values, take_over};
use super::decide::{self, KeyDecision};
use super::identity::KeyId;
use super::record::{BY_LOOK, Col, KeyRow, KeyStatus, PENDING, TABLE, lane};
use super::scope::ScopeOptions;
use crate::call::{Call, HOLDER_MAX, SCOPE_MAX};
use crate::clock;
use crate::error::Result;
use crate::row::Rows;
use crate::table::{Snapshot, Table, Wait, WriteOutcome};
use crate::trylock::TryLock;
use pgrx::pg_sys::Datum;

const MOST_TAKEN: i32 = 10_000;
/// One call defers at most this many parked keys.
const MOST_DEFERRALS: usize = 10_000;
/// The shortest and longest deferral of a key that on_expiry or max_attempts parks.
const LEAST_DEFERRED_US: i64 = 10_000_000;
const MOST_DEFERRED_US: i64 = 3_600_000_000;

/// `once.key_take_abandoned`.
pub fn key_take_abandoned(call: &Call) -> Result<Datum> {
    let scope = call.text(0, "scope", SCOPE_MAX)?;
    let take = KeyTake {
        scope,
        max: call.limit(1, "max", MOST_TAKEN)?,
        lease: call.interval(2, "lease")?,
        holder: call.opt_text(3, "holder", HOLDER_MAX)?,
        options: ScopeOptions::for_caller(scope)?,
        now: clock::now_us()?,
        snapshot: Snapshot::now(),
    };
    let rows = Rows::begin(call);
    if !take.held(&rows)? {
        take.run(&rows)?;
    }
    Ok(call.return_null())
}

struct KeyTake<'a> {
    scope: &'a [u8],
    max: i32,
    lease: Option<i64>,
    holder: Option<&'a [u8]>,
    options: ScopeOptions,
    now: i64,
    snapshot: Snapshot,
}

impl KeyTake<'_> {
    /// Returns a row for each live lease of the holder in the lane PENDING; true if there are any.
    fn held(&self, rows: &Rows) -> Result<bool> {
        let mut any = false;
        if self.holder.is_none() {
            return Ok(any);
        }
        let table = Table::to_read(TABLE)?;
        let keys = &mut lane(self.scope, PENDING, self.now, clock::INFINITY - 1);
        let mut scan = table.scan(BY_LOOK, keys, &self.snapshot)?;
        while let Some(slot) = scan.advance() {
            let row = KeyRow::borrow(slot);
            let is_live = row.status() == KeyStatus::Running && self.now < row.i64(Col::LeaseUntil);
            if is_live && row.bytes(Col::Holder) == self.holder {
                rows.push(&values(&row)?);
                any = true;
            }
        }
        Ok(any)
    }

    fn run(&self, rows: &Rows) -> Result<()> {
        let table = Table::to_write(TABLE)?;
        let keys = &mut lane(self.scope, PENDING, i64::MIN, self.now);
        let mut scan = table.scan(BY_LOOK, keys, &self.snapshot)?;
        let (mut left, mut deferrals) = (self.max, MOST_DEFERRALS);
        while left > 0
            && let Some(slot) = scan.advance()
        {
            let mut row = KeyRow::borrow(slot);
            match decide::unfinished(&row, self.now, &self.options) {
                KeyDecision::TakeOver if self.take(&table, &mut row)? => {
                    rows.push(&values(&row)?);
                    left -= 1;
                }
                KeyDecision::Parked if deferrals > 0 => {
                    self.defer(&table, &mut row)?;
                    deferrals -= 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes the key over. False: another session has locked or changed the key.
    fn take(&self, table: &Table, row: &mut KeyRow) -> Result<bool> {
        let key = row.bytes(Col::Key).unwrap_or_default();
        let Some(_lock) = TryLock::acquire(KeyId::hashed(self.scope, key).lock_hash()) else {
            return Ok(false);
        };
        let (options, snapshot) = (&self.options, &self.snapshot);
        let taken = take_over(table, row, snapshot, options, self.lease, self.holder)?;
        Ok(taken == WriteOutcome::Done)
    }

    fn defer(&self, table: &Table, row: &mut KeyRow) -> Result<()> {
        if let Some(tid) = row.tid()
            && table.lock(tid, &self.snapshot, Wait::No)? == WriteOutcome::Done
        {
            let waited = self.now.saturating_sub(row.i64(Col::LeaseUntil));
            let deferred = waited.clamp(LEAST_DEFERRED_US, MOST_DEFERRED_US);
            row.put_i64(Col::LookAt, self.now + deferred);
            row.update_at(table, tid)?;
        }
        Ok(())
    }
}

fn values(row: &KeyRow) -> Result<Vec<Option<Datum>>> {
    let mut values = claim_values(row, clock::now_us()?).to_vec();
    values.push(row.raw(Col::Key));
    values.push(row.raw(Col::Request));
    Ok(values)
}

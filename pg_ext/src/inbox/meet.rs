//! Finding an entry's row, or writing it, with everybody else who is at it.
//!
//! A row that is visible and not over answers at once and writes nothing. Else the call has to write, and
//! waits for any other transaction whose uncommitted row stands in its place: as PostgreSQL waits for a unique
//! index, on that transaction's id, so that a rollback to a savepoint lets it go on as well. Inserts of one
//! entry pass one by one through a lock that is held only from the last look to the insert; nobody waits for
//! anything else while holding it. Above READ COMMITTED a row that the snapshot cannot see is 40001, never 23505.

use super::entry::{Col, Entry, Record, TABLE};
use crate::clock;
use crate::error::{Error, Result};
use crate::table::{self, Outcome, Snapshot, Table, Wait};
use crate::trylock::TryLock;

/// What a call found.
pub enum Found<'r> {
    /// There is none, or its time is over; write this one to begin anew.
    Nothing(&'r mut Record),
    Row(&'r mut Record, Writer),
}

/// Who has written the row that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// This transaction.
    Ours,
    Another,
}

/// What is to be done with the row it was shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Write,
    Nothing,
}

/// Shows what is there to `decide` and does what it says, as often as somebody else was faster. What this
/// transaction has written itself is there for `within` its own time even if its ttl is over.
pub fn meet<T>(
    entry: &Entry,
    within: Own,
    mut decide: impl FnMut(Found) -> Result<(Change, T)>,
) -> Result<T> {
    let mut locked = false;
    loop {
        let table = Table::to_read(TABLE)?;
        let snapshot = Snapshot::now();
        let Some((mut row, ours)) = entry.find(&table, &snapshot)? else {
            let mut fresh = entry.fresh();
            let (change, answer) = decide(Found::Nothing(&mut fresh))?;
            drop(snapshot);
            match change == Change::Nothing || insert(entry, &fresh)? {
                true => return Ok(answer),
                false => continue,
            }
        };
        let over = clock::now_us()? >= row.i64(Col::ExpiresAt) && !(ours && within == Own::Stays);
        let found = match over {
            true => Found::Nothing(&mut row),
            false if ours => Found::Row(&mut row, Writer::Ours),
            false => Found::Row(&mut row, Writer::Another),
        };
        let (change, answer) = decide(found)?;
        let Some(tid) = row.tid().filter(|_| change == Change::Write) else {
            return Ok(answer);
        };
        let table = Table::to_write(TABLE)?;
        // Does not wait with a clock that it has read already: waits for the lock, then looks again.
        let outcome = match !locked && table.is_held(tid) {
            true => table.lock(tid, &snapshot, Wait::Yes)?,
            false if row.update_at(&table, tid)? == Outcome::Done => return Ok(answer),
            false => Outcome::Changed,
        };
        if outcome != Outcome::Done && table::above_read_committed() {
            return Err(Error::retry_transaction(entry.named()));
        }
        locked = outcome == Outcome::Done;
    }
}

/// Whether a row that this transaction wrote counts past its ttl.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// A handler that takes longer than the ttl can still record its verdict.
    Stays,
    Expires,
}

/// False: somebody else was faster, or has just given up; look again.
fn insert(entry: &Entry, fresh: &Record) -> Result<bool> {
    let table = Table::to_write(TABLE)?;
    let lock = TryLock::wait(entry.lock_hash());
    let dirty = Snapshot::dirty();
    let found = entry.find(&table, &dirty)?.is_some();
    if let Some(xid) = dirty.undecided_xid().filter(|_| found) {
        drop(lock);
        table::wait_for(xid);
        return Ok(false);
    }
    // Rows come to be under this lock only: one that is there now was committed before it.
    if found || entry.find(&table, &Snapshot::latest())?.is_some() {
        return match table::above_read_committed() {
            true => Err(Error::retry_transaction(entry.named())),
            false => Ok(false),
        };
    }
    fresh.insert(&table)?;
    drop(lock);
    Ok(true)
}

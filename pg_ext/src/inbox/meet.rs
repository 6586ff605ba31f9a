//! Finds an entry's row, or writes it, while concurrent calls may do the same.
//!
//! A call that changes nothing, such as the call for a duplicate, only reads. A call that has to insert waits if an
//! open transaction has inserted a row of the entry, as PostgreSQL does for a unique index. It waits for the end of the
//! subtransaction that inserted the row, so a rollback to a savepoint ends the wait, too. A lock serializes the inserts
//! of one entry. A call holds the lock from its last read to its insert, and waits for nothing meanwhile. Above READ
//! COMMITTED a row that the snapshot cannot see raises 40001, never 23505.

use super::entry::{Col, Entry, InboxRow, TABLE};
use crate::clock;
use crate::error::{Error, Result};
use crate::table::{self, Snapshot, Table, Wait, WriteOutcome};
use crate::trylock::TryLock;

pub enum Found<'r> {
    /// There is no row, or its ttl is over. The value is the row to write.
    Nothing(&'r mut InboxRow),
    Row(&'r mut InboxRow, Writer),
}

/// The transaction that has written the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    Ours,
    Another,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Write,
    Nothing,
}

/// Calls `decide` with the entry's row, and writes the row if `decide` answers Write. Starts again after a wait or a
/// lost race.
pub fn find_or_write<T>(
    entry: &Entry,
    within: Own,
    mut decide: impl FnMut(Found) -> Result<(Decision, T)>,
) -> Result<T> {
    let mut locked = false;
    loop {
        let table = Table::to_read(TABLE)?;
        let snapshot = Snapshot::now();
        let Some((mut row, ours)) = entry.find(&table, &snapshot)? else {
            let mut fresh = entry.fresh();
            let (decision, answer) = decide(Found::Nothing(&mut fresh))?;
            drop(snapshot);
            match decision == Decision::Nothing || insert(entry, &fresh)? {
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
        let (decision, answer) = decide(found)?;
        let Some(tid) = row.tid().filter(|_| decision == Decision::Write) else {
            return Ok(answer);
        };
        let table = Table::to_write(TABLE)?;
        // If the row is locked, waits for its lock and reads again: its ttl may be over by then.
        let outcome = match !locked && table.is_held(tid) {
            true => table.lock(tid, &snapshot, Wait::Yes)?,
            false if row.update_at(&table, tid)? == WriteOutcome::Done => return Ok(answer),
            false => WriteOutcome::Changed,
        };
        if outcome != WriteOutcome::Done && table::above_read_committed() {
            return Err(Error::retry_transaction(entry.named()));
        }
        locked = outcome == WriteOutcome::Done;
    }
}

/// Whether a row that this transaction wrote is found after its ttl has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// A handler that takes longer than the ttl can still record its verdict.
    Stays,
    Expires,
}

/// Inserts the row. False: the insert met a row of another transaction, so the caller must read again.
fn insert(entry: &Entry, fresh: &InboxRow) -> Result<bool> {
    let table = Table::to_write(TABLE)?;
    let lock = TryLock::wait(entry.lock_hash());
    let dirty = Snapshot::dirty();
    let found = entry.find(&table, &dirty)?.is_some();
    if let Some(xid) = dirty.undecided_xid().filter(|_| found) {
        drop(lock);
        table::wait_for(xid);
        return Ok(false);
    }
    // Uncommitted rows were handled above, and the lock excludes other inserts: a row found here is committed.
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

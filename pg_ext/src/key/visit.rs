//! What becomes of a key that a take or a sweep comes by: a finished one is passed; an unfinished one that is not due,
//! or parked, is moved forward to when it has to be looked at again (infinity: put aside), so that the bookmark can
//! pass it; one that waits for a completer is left to the caller.
//!
//! Invariant: nothing is put aside for good by options that are changing at the same time. Who puts keys aside holds
//! [`put_aside_lock`] shared to the end of the transaction and reads the options again under it; a change of options
//! holds it exclusively, and then shows what was put aside to takes again.

use super::claim::now_in_transaction;
use super::decide::{self, Decision};
use super::identity::KeyId;
use super::record::{BY_LOOK, Col, LOOKED_AFTER, Record, Status, TABLE, lane};
use super::scope::{Options, put_aside_lock};
use crate::clock;
use crate::error::Result;
use crate::table::{self, Outcome, Snapshot, Table, Wait};
use crate::trylock::TryLock;

/// Who comes by.
pub struct Visitor<'a> {
    pub scope: &'a [u8],
    pub options: Options,
    pub now: i64,
}

/// What became of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    Passed,
    /// Passed, too: it stands somewhere else now.
    Moved,
    /// It could not be moved: nothing behind it counts as passed.
    Busy,
    /// Nobody is at it, and somebody may be.
    Awaited,
}

impl Visitor<'_> {
    /// What one key is, without touching it: one that would have to be moved is busy.
    pub fn look(&self, row: &Record) -> Visit {
        if row.status().finished() {
            return Visit::Passed;
        }
        match decide::unfinished(row, self.now, &self.options) {
            Decision::TakeOver => Visit::Awaited,
            _ => Visit::Busy,
        }
    }

    /// Looks at one key and moves it, where it has to be.
    pub fn visit(&self, table: &Table, row: &mut Record, snapshot: &Snapshot) -> Result<Visit> {
        if row.status().finished() {
            return Ok(Visit::Passed);
        }
        let next_look = match decide::unfinished(row, self.now, &self.options) {
            Decision::TakeOver => return Ok(Visit::Awaited),
            Decision::Parked if row.status() == Status::Parked => clock::INFINITY,
            Decision::Parked if self.may_put_aside(row)? => clock::INFINITY,
            Decision::Parked => return Ok(Visit::Busy),
            _ => row.i64(Col::LeaseUntil),
        };
        move_forward(table, row, snapshot, next_look)
    }

    /// A key that only the options park is put aside until they change. scope_set waits for this
    /// transaction before it looks for such keys; the options are read again under the lock, in case it
    /// came first.
    fn may_put_aside(&self, row: &Record) -> Result<bool> {
        if table::above_read_committed() {
            return Ok(false);
        }
        let Some(lock) = TryLock::shared(put_aside_lock(self.scope)) else {
            return Ok(false);
        };
        lock.keep();
        let options = Options::for_watching(self.scope)?;
        Ok(decide::unfinished(row, self.now, &options) == Decision::Parked)
    }
}

fn move_forward(table: &Table, row: &mut Record, snapshot: &Snapshot, to: i64) -> Result<Visit> {
    let Some(tid) = row.tid() else {
        return Ok(Visit::Busy);
    };
    if table.lock(tid, snapshot, Wait::No)? != Outcome::Done {
        return Ok(Visit::Busy);
    }
    row.put_look(LOOKED_AFTER, to);
    match row.update_at(table, tid)? {
        Outcome::Done => Ok(Visit::Moved),
        _ => Ok(Visit::Busy),
    }
}

/// After a change of options: shows the keys that were put aside under the old ones to takes again.
/// The caller holds [`put_aside_lock`] exclusively; what is committed now counts, whatever the isolation.
pub fn look_again(scope: &[u8]) -> Result<()> {
    let table = Table::to_write(TABLE)?;
    let snapshot = Snapshot::latest();
    let keys = &mut lane(scope, LOOKED_AFTER, clock::INFINITY - 1, clock::INFINITY);
    let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
    while let Some(slot) = scan.advance() {
        let key = Record::look(slot);
        show_again(
            &table,
            KeyId::of(scope, key.bytes(Col::Key).unwrap_or_default()),
        )?;
    }
    Ok(())
}

/// Shows one key again that the options had parked, however often it changes meanwhile.
fn show_again(table: &Table, id: KeyId) -> Result<()> {
    loop {
        let snapshot = Snapshot::latest();
        let found = Record::find(table, id, &snapshot)?.filter(|row| {
            let by_options = matches!(row.status(), Status::Running | Status::Released);
            by_options && row.i64(Col::LookAt) == clock::INFINITY
        });
        let Some((mut row, tid)) = found.and_then(|row| row.tid().map(|tid| (row, tid))) else {
            return Ok(());
        };
        if table.lock(tid, &snapshot, Wait::Yes)? == Outcome::Done {
            row.put_look(LOOKED_AFTER, now_in_transaction()?);
            row.update_at(table, tid)?;
            return Ok(());
        }
    }
}

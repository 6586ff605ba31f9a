//! One batch of the sweep: overdue leases of one machine, reverted as the owner of the table in a security-restricted
//! operation.
//!
//! A batch is one subtransaction. Rows that somebody has locked are passed over; of a batch that fails each half is
//! tried by itself, so that one row whose trigger refuses is found in log n steps; it is put off, each time twice as
//! long. Nothing outside the subtransaction depends on what failed.
//!
//! Invariant: nothing is done to a lease but while it is the very one that was due: a trigger, or whoever comes
//! between two looks, may have claimed the row anew.

use super::lease::{Col, Lease, State, TABLE};
use crate::call::{from_utf8, varlena};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::janitor::{Budget, Swept};
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::permit::{self, Doing};
use crate::machine::sql::{is_any, literal};
use crate::machine::statement::Statement;
use crate::row;
use crate::spi::{self, SwitchedUser, column};
use crate::subxact;
use crate::table::{Outcome, Snapshot, Table, Wait};
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

/// The first wait of a row that could not be reverted; doubled each time.
const PUT_OFF_US: i64 = 10_000_000;
const LONGEST_PUT_OFF_US: i64 = 3_600_000_000;

/// $1 ids. Locked in the order of their ids, but for those that somebody has locked.
const TAKE: &str = "
    SELECT {id}::pg_catalog.text, {status}::pg_catalog.text FROM {table} AS t
     WHERE {id} OPERATOR(pg_catalog.=) ANY ($1) ORDER BY {id} FOR NO KEY UPDATE OF t SKIP LOCKED";

/// $1 ids.
const PRESENT: &str = "
    SELECT {id}::pg_catalog.text FROM {table} AS t WHERE {id} OPERATOR(pg_catalog.=) ANY ($1)";

/// $1 ids. What the rows are then, for those that were in `from`.
const REVERT: &str = "
    UPDATE {table} AS t SET {status_column} = {to}{next_version}
     WHERE {id} OPERATOR(pg_catalog.=) ANY ($1) AND {from}
    RETURNING {id}::pg_catalog.text, {version}, {status}::pg_catalog.text";

/// A lease that was due when the sweep looked.
#[derive(Clone)]
pub struct Due {
    pub key: [u8; 16],
    pub token: i64,
    pub row_id: Vec<u8>,
}

impl Due {
    /// The lease is still the one that was due, and held.
    fn is(&self, lease: &Lease) -> bool {
        lease.mark() == (self.token, State::Held)
    }
}

/// Leases of one machine that are swept together.
pub struct Batch<'a> {
    budget: &'a Budget<'a>,
    /// Another machine has lost the patience for them.
    is_spoiled: bool,
    machine: Rc<Machine>,
    owner: Oid,
    /// The table itself could be read and locked: what failed after that is a row's.
    pub reached: Cell<bool>,
    /// What the last part of several rows said that failed.
    failed: RefCell<Option<subxact::Failure>>,
}

impl<'b> Batch<'b> {
    /// Or why the machine's tables cannot be handled.
    pub fn of(
        name: &[u8],
        budget: &'b Budget<'b>,
        is_spoiled: bool,
    ) -> Result<std::result::Result<Batch<'b>, subxact::Failure>> {
        budget.patience.attempt(|| {
            let mut machine = Machine::for_tables(name)?;
            // Who keeps the table from us (CREATE INDEX does) is no row's failure.
            let mode = pg_sys::RowExclusiveLock;
            if is_spoiled && !machine.shape.table.try_lock(mode) {
                let kept = format!("somebody keeps {} locked", machine.shape.table.name);
                return Err(Error::new(Kind::LockNotAvailable, kept));
            }
            let mut owner = machine.shape.table.owner_soon(mode)?;
            // It may have been defined over another table while this waited for the one that it had.
            let fitted = Machine::for_tables(name)?;
            if !Rc::ptr_eq(&fitted, &machine) {
                owner = fitted.shape.table.owner_soon(mode)?;
                machine = fitted;
            }
            let gone = || Error::new(Kind::InvalidDefinition, "the table is gone");
            Ok(Batch {
                budget,
                is_spoiled,
                owner: owner.ok_or_else(gone)?,
                machine,
                reached: Cell::new(false),
                failed: RefCell::default(),
            })
        })
    }

    /// Reverts what is still due, in parts where it has to; and how many of these had their turn, from the first.
    pub fn sweep(&self, due: &[Due]) -> Result<(Swept, usize)> {
        let mut swept = Swept::default();
        let settled = self.part(due, &mut swept)?;
        if settled < due.len() && swept.last_error.is_none() {
            // It has not come to the row yet.
            swept.last_error = self.failed.take().map(String::from);
        }
        Ok((swept, settled))
    }

    fn part(&self, due: &[Due], swept: &mut Swept) -> Result<usize> {
        // Of a part that failed as a whole; no other is begun then.
        if self.budget.is_spent() {
            return Ok(0);
        }
        self.reached.set(false);
        let failure = match self.budget.patience.attempt(|| self.revert(due))? {
            Ok(done) => {
                self.budget.settle(done);
                swept.done += done;
                return Ok(due.len());
            }
            Err(failure) => failure,
        };
        match due {
            _ if self.is_spoiled && failure.is_wait => return Ok(0),
            // The table cannot be handled at all: that is no row's fault.
            due if !self.reached.get() => swept.add(Swept::failure(due.len(), &failure)),
            [one] => {
                put_off(one, &failure)?;
                self.budget.settle(1);
                swept.add(Swept::failure(1, &failure));
            }
            due => {
                let (first, second) = due.split_at(due.len() / 2);
                self.failed.replace(Some(failure));
                let settled = self.part(first, swept)?;
                return match settled == first.len() {
                    true => Ok(settled + self.part(second, swept)?),
                    false => Ok(settled),
                };
            }
        }
        Ok(due.len())
    }

    /// Reverts what is still due; how many rows or dead leases it dealt with.
    fn revert(&self, due: &[Due]) -> Result<i64> {
        let _owner = SwitchedUser::to_owner_of_table(self.owner)?;
        let ids = self.ids(due);
        let taken = self.statement("sweep take", TAKE)?.query(&[Some(ids)])?;
        // A snapshot from before the table was rewritten shows no row of it, and its lease would be dead.
        let present = self.statement("sweep present", PRESENT)?;
        let present = present.look_latest(&[Some(ids)])?;
        self.reached.set(true);
        let statuses: HashMap<&[u8], &[u8]> = taken
            .iter()
            .filter_map(|r| Some((varlena(column(r, 0)?), varlena(column(r, 1)?))))
            .collect();
        let present: HashSet<&[u8]> = present
            .iter()
            .filter_map(|r| column(r, 0).map(varlena))
            .collect();
        let table = Table::to_write(TABLE)?;
        let mut dealt = 0;
        let mut moves: BTreeMap<(String, String), Vec<&Due>> = BTreeMap::new();
        for lease in due {
            let status = statuses.get(lease.row_id.as_slice());
            if status.is_none() && present.contains(lease.row_id.as_slice()) {
                continue; // somebody has the row locked
            }
            let mut to_move = None;
            let dead = change(&table, &lease.key, |now_lease, now| {
                if !lease.is(now_lease) || now_lease.i64(Col::LeaseUntil) > now {
                    return Change::Nothing;
                }
                match status {
                    Some(status) if now_lease.covers(status) => {
                        to_move = Some((
                            now_lease.text(Col::ClaimInto),
                            now_lease.text(Col::RevertTo),
                        ));
                        Change::Nothing
                    }
                    // The row is gone, or has left the claim state.
                    _ => Change::Delete,
                }
            })?;
            dealt += i64::from(dead);
            if let Some(pair) = to_move {
                moves.entry(pair).or_default().push(lease);
            }
        }
        for ((from, to), rows) in &moves {
            dealt += self.revert_rows(&table, from, to, rows)?;
        }
        spi::run_as_caller(c"SET CONSTRAINTS ALL IMMEDIATE")?;
        Ok(dealt)
    }

    /// Rows and leases are locked by now.
    fn revert_rows(&self, table: &Table, from: &str, to: &str, due: &[&Due]) -> Result<i64> {
        let machine = &self.machine;
        let ids = self.ids(due.iter().copied());
        let key = format!("sweep\0{from}\0{to}");
        let plan = machine.plan(&key, &[self.machine.id_array_type()], || {
            let parts = machine.parts();
            parts.fill(
                REVERT,
                &[
                    ("status_column", &machine.shape.status.name),
                    ("to", &literal(to)),
                    ("next_version", &machine.next_version()),
                    ("from", &is_any(&parts.status, [from])),
                ],
            )
        })?;
        let doing = Doing::Move(from.to_owned(), to.to_owned());
        let permit = permit::grant(
            machine.name(),
            due.iter().map(|d| d.row_id.as_slice()),
            doing,
        );
        let reverted = plan.query(&[Some(ids)])?;
        drop(permit);
        let versions: HashMap<&[u8], Option<Datum>> = reverted
            .iter()
            .filter(|r| column(r, 2).is_some_and(|s| *varlena(s) == *from_utf8(to)))
            .filter_map(|r| Some((varlena(column(r, 0)?), column(r, 1))))
            .collect();
        for lease in due {
            let Some(version) = versions.get(lease.row_id.as_slice()) else {
                return Err(Error::new(
                    Kind::IllegalTransition,
                    "a trigger kept the row from being reverted",
                ));
            };
            change(table, &lease.key, |present, now| {
                if !lease.is(present) {
                    return Change::Nothing;
                }
                present.end(State::Swept, now, 0, *version);
                present.put(Col::Note, None);
                Change::Write
            })?;
        }
        Ok(due.len() as i64)
    }

    fn statement(&self, key: &str, template: &str) -> Result<Rc<Statement>> {
        let machine = &self.machine;
        machine.plan(key, &[machine.id_array_type()], || {
            machine.parts().fill(template, &[])
        })
    }

    /// One that is none any more (the column's type was changed) names no row: its lease is dead.
    fn ids<'a>(&self, due: impl IntoIterator<Item = &'a Due>) -> Datum {
        let base = self.machine.shape.id.base_type;
        let values: Vec<Datum> = due
            .into_iter()
            .filter_map(|d| RowId::read(base, &d.row_id, "id").ok())
            .map(|id| id.value)
            .collect();
        row::array(values.into_iter(), self.machine.id_type())
    }
}

/// A row that could not be reverted is tried again later, each time twice as long.
fn put_off(due: &Due, failure: &str) -> Result<()> {
    let note = from_utf8(failure);
    change(&Table::to_write(TABLE)?, &due.key, |lease, now| {
        if !due.is(lease) {
            return Change::Nothing;
        }
        let failures = lease.i32(Col::Failures).saturating_add(1);
        let wait = PUT_OFF_US.saturating_mul(1 << (failures.clamp(1, 20) - 1));
        lease.put_i32(Col::Failures, failures);
        lease.put_i64(Col::LookAt, now + wait.min(LONGEST_PUT_OFF_US));
        lease.put_text(Col::Note, Some(&note));
        Change::Write
    })?;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Write,
    Delete,
    Nothing,
}

/// Changes a lease as it is now, unless somebody has it locked. True: done.
pub fn change(
    table: &Table,
    key: &[u8; 16],
    decide: impl FnOnce(&mut Lease, i64) -> Change,
) -> Result<bool> {
    let snapshot = Snapshot::latest();
    let Some(mut lease) = Lease::find_by_key(table, key, &snapshot)? else {
        return Ok(false);
    };
    let Some(tid) = lease.tid() else {
        return Ok(false);
    };
    if table.lock(tid, &snapshot, Wait::No)? != Outcome::Done {
        return Ok(false);
    }
    match decide(&mut lease, clock::now_us()?) {
        Change::Nothing => return Ok(false),
        Change::Delete => table.delete(tid, &snapshot),
        Change::Write => drop(lease.update_at(table, tid, Wait::Yes)?),
    }
    Ok(true)
}

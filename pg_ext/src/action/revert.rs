//! Reverts the rows of one batch of overdue leases, as the table's owner in a security-restricted operation.
//!
//! A batch is one subtransaction. It skips locked rows. Each half of a failed batch is tried by itself, so one row
//! whose trigger refuses is found in log n steps. That row is deferred (`defer`).
//!
//! Invariant: a lease is changed only if it is still the lease that was due. A trigger, or another session between two
//! reads, may have claimed the row again.

use super::lease::{Lease, LeaseCol, LeaseState, TABLE};
use crate::call::{from_utf8, shown, varlena};
use crate::caller;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::machine::after::MoveMade;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::permit::{self, Doing};
use crate::machine::sql::{is_any, literal};
use crate::machine::statement::{NO, READ, ROW_SHARE, Statement, WRITE};
use crate::row;
use crate::spi::{self, SwitchedUser, column};
use crate::subxact;
use crate::swept::Swept;
use crate::table::{Snapshot, Table, Wait, WriteOutcome};
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The first backoff of a row that could not be reverted; doubled each time, except after a lock timeout.
const FIRST_BACKOFF_US: i64 = 10_000_000;
const LONGEST_BACKOFF_US: i64 = 3_600_000_000;
/// A batch in which a row failed stops after this time. The next call takes the rest.
const TURN: Duration = Duration::from_secs(1);

/// $1 ids. Locks the rows in the order of their ids and skips rows that others have locked.
const TAKE: &str = "
    SELECT {id}::pg_catalog.text, {status}::pg_catalog.text FROM {table} AS t
     WHERE {id} OPERATOR(pg_catalog.=) ANY ($1) ORDER BY {id} FOR NO KEY UPDATE OF t SKIP LOCKED";

/// $1 ids.
const PRESENT: &str = "
    SELECT {id}::pg_catalog.text FROM {table} AS t WHERE {id} OPERATOR(pg_catalog.=) ANY ($1)";

/// $1 ids. Reverts the rows in status `from`, and returns their new version and status.
const REVERT: &str = "
    UPDATE {table} AS t SET {status_column} = {to}{next_version}
     WHERE {id} OPERATOR(pg_catalog.=) ANY ($1) AND {from}
    RETURNING {id}::pg_catalog.text, {version}, {status}::pg_catalog.text";

/// A lease that was due when the sweep read it.
#[derive(Clone)]
pub struct DueLease {
    pub key: [u8; 16],
    pub token: i64,
    pub row_id: Vec<u8>,
}

impl DueLease {
    /// Whether the lease is still held, with the token that it had when it was found due.
    fn is(&self, lease: &Lease) -> bool {
        lease.mark() == (self.token, LeaseState::Held)
    }
}

#[derive(Default)]
pub struct Reverted {
    pub swept: Swept,
    /// The number of reverted rows, deferred rows and deleted dead leases.
    pub settled: i64,
    /// Whether some leases were not tried: the table could not be locked or read, or rows failed for too long.
    pub is_cut_short: bool,
}

/// Reverts due leases of one machine. If the batch fails, tries each half separately.
pub fn revert_due(name: &[u8], due: &[DueLease]) -> Result<Reverted> {
    let mut all = Reverted::default();
    match subxact::attempt_briefly(|| RevertBatch::begin(name))? {
        Ok(batch) => batch.part(due, Instant::now(), &mut all)?,
        Err(failure) => all.has_no_table(due, &failure.message),
    }
    Ok(all)
}

impl Reverted {
    /// The table could not be locked or read, so no row is deferred and the sweep of this machine ends.
    fn has_no_table(&mut self, due: &[DueLease], failure: &str) {
        self.swept.add(Swept::failure(due.len(), failure));
        self.is_cut_short = true;
    }
}

/// Leases of one machine that are swept together.
struct RevertBatch {
    machine: Rc<Machine>,
    owner: Oid,
    /// The role that sweeps, for the history.
    role: Vec<u8>,
    /// Whether the table was locked and read. From then on a failure belongs to a row.
    is_reached: Cell<bool>,
}

impl RevertBatch {
    /// Locks the table in the mode that the revert needs.
    fn begin(name: &[u8]) -> Result<RevertBatch> {
        let machine = Machine::for_tables(name)?;
        let owner = machine.shape.table.locked_owner(pg_sys::RowExclusiveLock);
        let gone = || Error::new(Kind::InvalidDefinition, "the table is gone");
        Ok(RevertBatch {
            owner: owner.ok_or_else(gone)?,
            machine,
            role: caller::name(),
            is_reached: Cell::new(false),
        })
    }

    fn part(&self, due: &[DueLease], begin: Instant, all: &mut Reverted) -> Result<()> {
        if all.is_cut_short || all.settled > 0 && all.swept.failed > 0 && begin.elapsed() >= TURN {
            all.is_cut_short = true;
            return Ok(());
        }
        self.is_reached.set(false);
        match (subxact::attempt_briefly(|| self.revert(due))?, due) {
            (Ok(done), _) => {
                all.settled += done;
                all.swept.done += done;
            }
            (Err(failure), _) if !self.is_reached.get() => all.has_no_table(due, &failure.message),
            (Err(failure), [one]) => {
                defer(one, &failure)?;
                all.settled += 1;
                all.swept.add(Swept::failure(1, &failure.message));
            }
            (Err(_), due) => {
                let (first, second) = due.split_at(due.len() / 2);
                self.part(first, begin, all)?;
                self.part(second, begin, all)?;
            }
        }
        Ok(())
    }

    /// Reverts the rows that are still due, and deletes leases whose row is gone or has left the claim state. Returns
    /// the number of reverted rows and deleted leases.
    fn revert(&self, due: &[DueLease]) -> Result<i64> {
        let _owner = SwitchedUser::to_owner_of_table(self.owner)?;
        let ids = self.ids(due);
        let taken = self.statement("sweep take", ROW_SHARE, TAKE)?;
        let taken = taken.query(&[Some(ids)])?;
        // Reads the latest snapshot: if the table was rewritten, an older snapshot shows no rows.
        let present = self.statement("sweep present", READ, PRESENT)?;
        let present = present.query_latest(&[Some(ids)])?;
        self.is_reached.set(true);
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
        let mut moves: BTreeMap<(String, String), Vec<&DueLease>> = BTreeMap::new();
        for lease in due {
            let status = statuses.get(lease.row_id.as_slice());
            if status.is_none() && present.contains(lease.row_id.as_slice()) {
                continue; // somebody has the row locked
            }
            let mut to_move = None;
            let dead = change_lease(&table, &lease.key, |now_lease, now| {
                if !lease.is(now_lease) || now_lease.i64(LeaseCol::LeaseUntil) > now {
                    return LeaseChange::Nothing;
                }
                match status {
                    Some(status) if now_lease.covers(status) => {
                        to_move = Some((
                            now_lease.text(LeaseCol::ClaimInto),
                            now_lease.text(LeaseCol::RevertTo),
                        ));
                        LeaseChange::Nothing
                    }
                    _ => LeaseChange::Delete,
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

    /// Reverts rows. The caller has locked the rows and their leases.
    fn revert_rows(&self, table: &Table, from: &str, to: &str, due: &[&DueLease]) -> Result<i64> {
        let machine = &self.machine;
        let ids = self.ids(due.iter().copied());
        let key = format!("sweep\0{from}\0{to}");
        let types = [machine.id_array_type()];
        let plan = machine.plan(&key, &types, [WRITE, NO, NO], || {
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
        let rows = due.iter().map(|d| d.row_id.as_slice());
        let permit = permit::grant(machine.name(), rows, doing);
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
                    "a trigger of the table kept the row from being reverted",
                ));
            };
            let mut holder = (None, None);
            change_lease(table, &lease.key, |present, now| {
                if !lease.is(present) {
                    return LeaseChange::Nothing;
                }
                holder = (
                    present.bytes(LeaseCol::Requester).map(shown),
                    present.bytes(LeaseCol::Holder).map(<[u8]>::to_vec),
                );
                present.end(LeaseState::Swept, now, 0, *version);
                present.put(LeaseCol::Note, None);
                LeaseChange::Write
            })?;
            let id = RowId::read(machine.shape.id.base_type, &lease.row_id, "id")?;
            let made = MoveMade {
                from,
                to,
                how: "sweep",
                requester: holder.0.as_deref(),
                holder: holder.1.as_deref(),
                role: Some(&self.role),
            };
            machine.record(&id, &made)?;
        }
        Ok(due.len() as i64)
    }

    fn statement(&self, key: &str, mode: u32, template: &str) -> Result<Rc<Statement>> {
        let machine = &self.machine;
        machine.plan(key, &[machine.id_array_type()], [mode, NO, NO], || {
            machine.parts().fill(template, &[])
        })
    }

    /// The ids as an array, without ids that the column's present type cannot read. Such an id belongs to no row, so
    /// its lease is dead.
    fn ids<'a>(&self, due: impl IntoIterator<Item = &'a DueLease>) -> Datum {
        let base = self.machine.shape.id.base_type;
        let values: Vec<Datum> = due
            .into_iter()
            .filter_map(|d| RowId::read(base, &d.row_id, "id").ok())
            .map(|id| id.value)
            .collect();
        row::array(values.into_iter(), self.machine.id_type())
    }
}

/// Defers a row that could not be reverted. Each failure doubles the wait; a lock timeout leaves the wait as it was.
fn defer(due: &DueLease, failure: &subxact::Failure) -> Result<()> {
    let note = from_utf8(&failure.message);
    change_lease(&Table::to_write(TABLE)?, &due.key, |lease, now| {
        if !due.is(lease) {
            return LeaseChange::Nothing;
        }
        let failures = match failure.is_wait {
            true => lease.i32(LeaseCol::Failures).max(1),
            false => lease.i32(LeaseCol::Failures).saturating_add(1),
        };
        let wait = FIRST_BACKOFF_US.saturating_mul(1 << (failures.clamp(1, 20) - 1));
        lease.put_i32(LeaseCol::Failures, failures);
        lease.put_i64(LeaseCol::LookAt, now + wait.min(LONGEST_BACKOFF_US));
        lease.put_text(LeaseCol::Note, Some(&note));
        LeaseChange::Write
    })?;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LeaseChange {
    Write,
    Delete,
    Nothing,
}

/// Changes the latest version of a lease; skips a locked lease. True: changed.
pub fn change_lease(
    table: &Table,
    key: &[u8; 16],
    decide: impl FnOnce(&mut Lease, i64) -> LeaseChange,
) -> Result<bool> {
    let snapshot = Snapshot::latest();
    let Some(mut lease) = Lease::find_by_key(table, key, &snapshot)? else {
        return Ok(false);
    };
    let Some(tid) = lease.tid() else {
        return Ok(false);
    };
    if table.lock(tid, &snapshot, Wait::No)? != WriteOutcome::Done {
        return Ok(false);
    }
    match decide(&mut lease, clock::now_us()?) {
        LeaseChange::Nothing => return Ok(false),
        LeaseChange::Delete => table.delete(tid, &snapshot),
        LeaseChange::Write => drop(lease.update_at(table, tid)?),
    }
    Ok(true)
}

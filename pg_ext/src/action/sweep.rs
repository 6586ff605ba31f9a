//! The sweep task `action_release`: rows whose action's lease is overdue go back to revert_to.
//!
//! For each machine: its overdue leases by the index, one batch in one subtransaction, as the owner of the
//! table in a security-restricted operation. Rows that somebody has locked are passed over; of a batch that
//! fails each half is tried by itself, so that one row whose trigger refuses is found in log n steps; it is
//! put off, each time twice as long. Nothing outside the subtransaction depends on what failed.
//!
//! Invariant: `more` is told only where this call has changed something, so whoever goes on while `more` comes to an
//! end. A table that cannot be handled takes no other row's place.

use super::lease::{BY_LOOK, Col, Lease, REMEMBERED_US, State, TABLE};
use crate::call::{from_utf8, varlena};
use crate::cancel::pending;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::janitor::{self, Swept};
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::permit::{self, Doing};
use crate::machine::sql::{is_any, literal};
use crate::machine::stored;
use crate::machine::stored::Stored;
use crate::row;
use crate::spi::column;
use crate::spi::{self, SwitchedUser};
use crate::subxact;
use crate::table::{Outcome, Scan, ScanKey, Snapshot, Table, Wait};
use pgrx::pg_sys::{Datum, Oid};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

pub const TASK: &str = "action_release";

/// Leases that are looked at for each row that may be swept: reading is cheap, and what has ended or is locked
/// must not hide what is due.
const LOOKS_PER_ROW: usize = 1_000;
/// Leases of a machine that are looked at to tell whether one is due.
const LOOKS_TO_TELL: usize = 1_000;
/// Ended or extended leases that are moved on or removed for each row that may be swept.
const TIDIED_PER_ROW: usize = 10;
/// Open teardowns, the oldest, whose rows a sweep looks for.
const TEARDOWNS_LOOKED_AT: usize = 100;
/// The first wait of a row that could not be reverted; doubled each time.
const PUT_OFF_US: i64 = 10_000_000;
const LONGEST_PUT_OFF_US: i64 = 3_600_000_000;
/// After so long what is left of a batch that fails waits for the next call, once a row of it is settled: a trigger
/// that waits for somebody's lock fails each half only after lock_timeout, and what was done is to be committed.
const PATIENCE: Duration = Duration::from_secs(2);

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
struct Due {
    key: [u8; 16],
    row_id: Vec<u8>,
}

/// Sweeps every machine, those that were swept longest ago first, at most `max` rows in all.
pub fn sweep(max: i64, only: Option<&[u8]>) -> Result<Swept> {
    let mut all = Swept::default();
    let budget = Budget::of(max);
    for name in machines(only)? {
        if budget.is_spent() {
            all.more = true;
            break;
        }
        let swept = sweep_machine(&name, &budget)?;
        close_teardowns(&name)?;
        janitor::record(TASK, &name, &swept)?;
        all.add(swept);
    }
    Ok(all)
}

/// What a call may still do.
struct Budget {
    /// Rows that may be reverted, or found and put off.
    rows: Cell<i64>,
    until: Instant,
    /// There was such a row.
    settled: Cell<bool>,
    /// [`prepare`] was called.
    prepared: Cell<bool>,
}

impl Budget {
    fn of(rows: i64) -> Budget {
        Budget {
            rows: Cell::new(rows),
            until: Instant::now() + PATIENCE,
            settled: Cell::new(false),
            prepared: Cell::new(false),
        }
    }

    fn settle(&self, rows: i64) {
        self.rows.set(self.rows.get() - rows);
        self.settled.set(self.settled.get() || rows > 0);
    }

    /// The rows, or the time once anything was done in it.
    fn is_spent(&self) -> bool {
        self.rows.get() <= 0 || (self.settled.get() && Instant::now() >= self.until)
    }

    /// As [`prepare`], the first time.
    fn prepare(&self) -> Result<()> {
        match self.prepared.replace(true) {
            true => Ok(()),
            false => prepare(),
        }
    }
}

/// Something may have to be reverted: [`prepare`] before the sweep, then.
pub fn is_due(only: Option<&[u8]>) -> Result<bool> {
    let now = clock::now_us()?;
    let table = Table::to_read(TABLE)?;
    let snapshot = Snapshot::now();
    for name in machines(only)? {
        let keys = &mut [ScanKey::text(1, row::text(&name)), ScanKey::until(2, now)];
        let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
        // Full: it found one, or gave up looking.
        if look(&mut scan, now, LOOKS_TO_TELL, 1).full {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the caller has deferred must not run as somebody else, and nothing is deferred from here on. What fails
/// by that is the caller's error.
pub fn prepare() -> Result<()> {
    spi::run_as_caller(c"SET CONSTRAINTS ALL IMMEDIATE")
}

/// Teardowns whose row was deleted are over. What cannot be looked at stays as it is.
fn close_teardowns(name: &[u8]) -> Result<()> {
    if pending::first_open(name)?.is_none() {
        return Ok(());
    }
    let closed = subxact::attempt(|| {
        let machine = Machine::for_tables(name)?;
        let Some(owner) = machine.shape.table.owner() else {
            return Ok(());
        };
        let _owner = SwitchedUser::to_owner_of_table(owner)?;
        pending::close_gone(&machine, TEARDOWNS_LOOKED_AT)
    })?;
    drop(closed);
    Ok(())
}

/// Names of machines, by the end of their last sweep.
fn machines(only: Option<&[u8]>) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut add = |stored: &Stored| -> Result<()> {
        let definition = stored.definition()?;
        let name = from_utf8(&definition.machine).into_owned();
        found.push((janitor::last_end(TASK, &name)?, name));
        Ok(())
    };
    match only {
        Some(name) => add(&Stored::of(name)?)?,
        None => stored::each_stored(&mut add)?,
    }
    found.sort();
    Ok(found.into_iter().map(|(_, name)| name).collect())
}

fn sweep_machine(name: &[u8], budget: &Budget) -> Result<Swept> {
    let mut swept = Swept::default();
    let max = budget.rows.get() as usize;
    let mut looks = max * LOOKS_PER_ROW;
    let mut to_tidy = max * TIDIED_PER_ROW;
    let mut tidied = 0;
    let now = clock::now_us()?;
    let table = Table::to_read(TABLE)?;
    let snapshot = Snapshot::now();
    let keys = &mut [ScanKey::text(1, row::text(name)), ScanKey::until(2, now)];
    // One scan to the end: what is put off meanwhile is not seen again by it.
    let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
    loop {
        let chunk = look(&mut scan, now, looks, max + 1);
        looks -= chunk.looked;
        let (now_tidied, later) = chunk.ended.split_at(chunk.ended.len().min(to_tidy));
        to_tidy -= now_tidied.len();
        tidied += tidy(now_tidied)?;
        swept.more |= !later.is_empty() && tidied > 0;
        let mut due = &chunk.due[..];
        while !due.is_empty() && !budget.is_spent() {
            budget.prepare()?;
            let (now, later) = due.split_at(due.len().min(budget.rows.get() as usize));
            let Some(left) = sweep_due(name, now, budget, &mut swept)? else {
                // Nothing of this table can be swept now: trying on would not end.
                swept.more = false;
                return Ok(swept);
            };
            swept.more |= left;
            due = later;
        }
        if budget.is_spent() {
            swept.more |= chunk.full || !due.is_empty();
            return Ok(swept);
        }
        if looks == 0 {
            // Rows that somebody has locked are no reason to come back at once.
            let moved = swept.done + swept.failed + tidied > 0;
            swept.more |= chunk.full && moved;
            return Ok(swept);
        }
        if !chunk.full {
            return Ok(swept);
        }
    }
}

/// Whether a part of it was not tried; None: the table itself cannot be handled, and what was due there has taken no
/// other row's place.
fn sweep_due(name: &[u8], due: &[Due], budget: &Budget, swept: &mut Swept) -> Result<Option<bool>> {
    let batch = match Batch::of(name, budget)? {
        Ok(batch) => batch,
        Err(failure) => {
            swept.add(Swept::failure(due.len(), &failure));
            return Ok(None);
        }
    };
    let done = batch.sweep(due)?;
    let left = done.more;
    swept.add(done);
    Ok(batch.reached.get().then_some(left))
}

/// What the index says of one stretch of leases.
struct Chunk {
    due: Vec<Due>,
    /// Ended, or extended since: to be removed or looked at later.
    ended: Vec<[u8; 16]>,
    looked: usize,
    /// The scan may have more.
    full: bool,
}

/// The next leases of the scan, until so many were looked at or were due.
fn look(scan: &mut Scan<'_>, now: i64, most: usize, most_due: usize) -> Chunk {
    let mut chunk = Chunk {
        due: Vec::new(),
        ended: Vec::new(),
        looked: 0,
        full: true,
    };
    while chunk.looked < most && chunk.due.len() < most_due {
        let Some(slot) = scan.advance() else {
            chunk.full = false;
            break;
        };
        let lease = Lease::look(slot);
        let Some(key) = lease.key() else {
            continue;
        };
        chunk.looked += 1;
        if lease.state() == State::Held && lease.i64(Col::LeaseUntil) <= now {
            chunk.due.push(Due {
                key,
                row_id: lease.bytes(Col::RowId).unwrap_or_default().to_vec(),
            });
        } else {
            chunk.ended.push(key);
        }
    }
    chunk
}

/// Removes leases that ended long enough ago and moves the others to their next look; how many.
fn tidy(keys: &[[u8; 16]]) -> Result<i64> {
    let mut tidied = 0;
    let table = Table::to_write(TABLE)?;
    for key in keys {
        tidied += i64::from(change(&table, key, |lease, now| match lease.state() {
            State::Held => {
                let until = lease.i64(Col::LeaseUntil);
                lease.put_i64(Col::LookAt, until.max(lease.i64(Col::LookAt)));
                Change::Write
            }
            _ => {
                let forget = lease.i64(Col::EndedAt).saturating_add(REMEMBERED_US);
                match forget <= now {
                    true => Change::Delete,
                    false => {
                        lease.put_i64(Col::LookAt, forget);
                        Change::Write
                    }
                }
            }
        })?);
    }
    Ok(tidied)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Write,
    Delete,
    Nothing,
}

/// Changes a lease as it is now, unless somebody has it locked. True: done.
fn change(
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

/// Leases of one machine that are swept together.
struct Batch<'a> {
    budget: &'a Budget,
    machine: std::rc::Rc<Machine>,
    owner: Oid,
    /// The table itself could be read and locked: what failed after that is a row's.
    reached: Cell<bool>,
}

impl<'b> Batch<'b> {
    /// Or why the machine's tables cannot be handled.
    fn of(
        name: &[u8],
        budget: &'b Budget,
    ) -> Result<std::result::Result<Batch<'b>, subxact::Failure>> {
        subxact::attempt(|| {
            let machine = Machine::for_tables(name)?;
            let owner = machine.shape.table.owner();
            let gone = || Error::new(Kind::InvalidDefinition, "the table is gone");
            Ok(Batch {
                budget,
                owner: owner.ok_or_else(gone)?,
                machine,
                reached: Cell::new(false),
            })
        })
    }

    fn sweep(&self, due: &[Due]) -> Result<Swept> {
        // Of a part that failed as a whole; no other is begun then.
        if self.budget.is_spent() {
            return Ok(Swept {
                more: true,
                ..Swept::default()
            });
        }
        self.reached.set(false);
        let failure = match subxact::attempt(|| self.revert(due))? {
            Ok(done) => {
                self.budget.settle(done);
                return Ok(Swept {
                    done,
                    ..Swept::default()
                });
            }
            Err(failure) => failure,
        };
        match due {
            // The table cannot be handled at all: that is no row's fault.
            due if !self.reached.get() => Ok(Swept::failure(due.len(), &failure)),
            [one] => {
                put_off(one, &failure)?;
                self.budget.settle(1);
                Ok(Swept::failure(1, &failure))
            }
            due => {
                let (first, second) = due.split_at(due.len() / 2);
                let mut swept = self.sweep(first)?;
                swept.add(self.sweep(second)?);
                Ok(swept)
            }
        }
    }

    /// Reverts what is still due; how many rows or dead leases it dealt with.
    fn revert(&self, due: &[Due]) -> Result<i64> {
        let _owner = SwitchedUser::to_owner_of_table(self.owner)?;
        let ids = self.ids(due)?;
        let taken = self.statement("sweep take", TAKE, &ids)?;
        let present = self.statement("sweep present", PRESENT, &ids)?;
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
                if now_lease.state() != State::Held || now_lease.i64(Col::LeaseUntil) > now {
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
        let ids = self.ids(due.iter().copied())?;
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
            change(table, &lease.key, |lease, now| {
                lease.end(State::Swept, now, 0, *version);
                lease.put(Col::Note, None);
                Change::Write
            })?;
        }
        Ok(due.len() as i64)
    }

    fn statement(&self, key: &str, template: &str, ids: &Datum) -> Result<Vec<spi::Row>> {
        let machine = &self.machine;
        let plan = machine.plan(key, &[self.machine.id_array_type()], || {
            machine.parts().fill(template, &[])
        })?;
        plan.query(&[Some(*ids)])
    }

    fn ids<'a>(&self, due: impl IntoIterator<Item = &'a Due>) -> Result<Datum> {
        let base = self.machine.shape.id.base_type;
        let values = due
            .into_iter()
            .map(|d| Ok(RowId::read(base, &d.row_id, "id")?.value))
            .collect::<Result<Vec<_>>>()?;
        Ok(row::array(values.into_iter(), self.machine.id_type()))
    }
}

/// A row that could not be reverted is tried again later, each time twice as long.
fn put_off(due: &Due, failure: &str) -> Result<()> {
    let note = from_utf8(failure);
    change(&Table::to_write(TABLE)?, &due.key, |lease, now| {
        let failures = lease.i32(Col::Failures).saturating_add(1);
        let wait = PUT_OFF_US.saturating_mul(1 << (failures.clamp(1, 20) - 1));
        lease.put_i32(Col::Failures, failures);
        lease.put_i64(Col::LookAt, now + wait.min(LONGEST_PUT_OFF_US));
        lease.put_text(Col::Note, Some(&note));
        Change::Write
    })?;
    Ok(())
}

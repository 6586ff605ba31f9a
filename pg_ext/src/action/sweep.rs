//! The sweep task `action_release`: rows whose action's lease is overdue go back to revert_to.
//!
//! For each machine: its overdue leases by the index, one batch after the other (`revert.rs`), until a budget of rows
//! and time is spent.
//!
//! Invariants: `more` is told only where this call has changed something, so whoever goes on while `more` comes to an
//! end. A table that cannot be handled takes no other row's place.

use super::lease::{BY_LOOK, Col, Lease, REMEMBERED_US, State, TABLE};
use super::revert::{Batch, Change, Due, change};
use crate::call::varlena;
use crate::cancel::pending;
use crate::clock;
use crate::error::Result;
use crate::janitor::{self, Budget, Swept};
use crate::machine::model::Machine;
use crate::machine::stored;
use crate::machine::stored::Stored;
use crate::patience::Patience;
use crate::row;
use crate::settings;
use crate::spi::{self, SwitchedUser};
use crate::subxact;
use crate::table::{Scan, ScanKey, Snapshot, Table};
use pgrx::pg_sys;
use std::cell::Cell;

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

thread_local! {
    static SWEEPING: Cell<bool> = const { Cell::new(false) };
}

/// A sweep under way in this backend; it ends when this is dropped, also while an error unwinds.
struct Sweeping(());

impl Sweeping {
    /// None: this is a trigger of a row that is being reverted. What it would do is being done.
    fn begin() -> Option<Sweeping> {
        (!SWEEPING.replace(true)).then(|| Sweeping(()))
    }
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        SWEEPING.set(false);
    }
}

/// Sweeps every machine, those that were swept longest ago first, at most `max` rows in all, and notes each.
pub fn sweep(max: i64, only: Option<&[u8]>, patience: &Patience) -> Result<Swept> {
    let mut all = Swept::default();
    let Some(_sweeping) = Sweeping::begin() else {
        return Ok(all);
    };
    let mut runs = Vec::new();
    let budget = Budget::of(max, patience);
    for name in by_last_end(machines(only)?, patience)? {
        if budget.is_spent() {
            all.more = true;
            break;
        }
        let is_spoiled = patience.is_lost();
        let mut swept = sweep_machine(&name, &budget, is_spoiled)?;
        if !swept.untried {
            close_teardowns(&name, patience)?;
        }
        swept.cut_short = swept.untried && swept.failed == 0 && (swept.done == 0 || is_spoiled);
        if swept.untried
            && swept.failed == 0
            && let Some(failure) = swept.last_error.take()
        {
            swept.add(Swept::failure(1, &failure));
        }
        all.add(swept.clone());
        // None of one that was dropped meanwhile.
        if Stored::find(&name)?.is_some() {
            runs.push((name, swept));
        }
    }
    if only.is_none() {
        // Its rows are counted for the machines.
        let end = Swept {
            untried: all.untried || all.failed > 0,
            ..Swept::default()
        };
        runs.push((Vec::new(), end));
    }
    Ok(match note(&runs, patience)? {
        Some(failure) => all.not_noted(&failure),
        None => all,
    })
}

/// Runs of machines (none: the task's), in one subtransaction; where one cannot be noted each by itself, waiting for a
/// moment only. Some: why one is not.
fn note(runs: &[(Vec<u8>, Swept)], patience: &Patience) -> Result<Option<subxact::Failure>> {
    let note = |(name, swept): &(Vec<u8>, Swept)| janitor::record(TASK, name, swept).map(drop);
    if patience.attempt(|| runs.iter().try_for_each(note))?.is_ok() {
        return Ok(None);
    }
    let mut not_noted = None;
    for run in runs {
        let noted = subxact::attempt(|| settings::briefly(|| note(run)))?;
        not_noted = not_noted.or(noted.err());
    }
    Ok(not_noted)
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

/// Teardowns whose row was deleted, or whose table was dropped, are over. What cannot be looked at stays as it is.
fn close_teardowns(name: &[u8], patience: &Patience) -> Result<()> {
    let open = patience.attempt(|| Ok(pending::first_open(name, None)?.is_some()))?;
    if open != Ok(true) {
        return Ok(());
    }
    let of_tables =
        patience.attempt(|| pending::close_of_gone_tables(name, TEARDOWNS_LOOKED_AT))?;
    let of_rows = patience.attempt(|| {
        let machine = Machine::for_tables(name)?;
        let Some(owner) = machine.shape.table.owner_soon(pg_sys::AccessShareLock)? else {
            return Ok(());
        };
        let _owner = SwitchedUser::to_owner_of_table(owner)?;
        pending::close_of_gone_rows(&machine, TEARDOWNS_LOOKED_AT)
    })?;
    drop((of_tables, of_rows));
    Ok(())
}

/// Names of machines. A definition that cannot be read is its machine's own failure.
fn machines(only: Option<&[u8]>) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut add = |stored: &Stored| -> Result<()> {
        names.extend(
            stored
                .column(stored::Col::Machine)
                .map(|name| varlena(name).to_vec()),
        );
        Ok(())
    };
    match only {
        Some(name) => add(&Stored::of(name)?)?,
        None => stored::each_stored(&mut add)?,
    }
    Ok(names)
}

/// Whose last sweep ended the longest ago comes first.
fn by_last_end(mut names: Vec<Vec<u8>>, patience: &Patience) -> Result<Vec<Vec<u8>>> {
    names.sort();
    let ends = || {
        let ends = names.iter().map(|name| janitor::last_end(TASK, name));
        ends.collect::<Result<Vec<_>>>()
    };
    let Ok(ends) = patience.attempt(ends)? else {
        // Somebody keeps once.janitor from us: each is the first at some time.
        let first = clock::now_us()?.unsigned_abs() as usize % names.len().max(1);
        names.rotate_left(first);
        return Ok(names);
    };
    let mut found: Vec<_> = ends.into_iter().zip(names).collect();
    found.sort();
    Ok(found.into_iter().map(|(_, name)| name).collect())
}

/// `is_spoiled`: another machine has lost the patience for what is due.
fn sweep_machine(name: &[u8], budget: &Budget, is_spoiled: bool) -> Result<Swept> {
    let mut swept = Swept::default();
    let max = budget.rows() as usize;
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
            prepare()?;
            let (now, _) = due.split_at(due.len().min(budget.rows() as usize));
            let turn = sweep_due(name, now, budget, is_spoiled, &mut swept)?;
            (_, due) = due.split_at(turn.settled);
            swept.untried |= turn.settled < now.len();
            if swept.untried && is_spoiled {
                // It comes first the next time.
                swept.more |= budget.is_used();
                return Ok(swept);
            }
            if !turn.has_table {
                // Trying on would not end.
                swept.more = false;
                return Ok(swept);
            }
        }
        if budget.is_spent() {
            swept.more |= chunk.full || !due.is_empty();
            swept.untried |= !due.is_empty() && swept.done + swept.failed == 0;
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

/// What became of leases that were due.
struct Turn {
    /// So many had it, from the first.
    settled: usize,
    /// Otherwise all of them failed, and have taken no other row's place.
    has_table: bool,
}

fn sweep_due(
    name: &[u8],
    due: &[Due],
    budget: &Budget,
    is_spoiled: bool,
    swept: &mut Swept,
) -> Result<Turn> {
    let batch = match Batch::of(name, budget, is_spoiled)? {
        Ok(batch) => batch,
        Err(failure) if is_spoiled && failure.is_wait => {
            return Ok(Turn {
                settled: 0,
                has_table: true,
            });
        }
        Err(failure) => {
            swept.add(Swept::failure(due.len(), &failure));
            return Ok(Turn {
                settled: due.len(),
                has_table: false,
            });
        }
    };
    let (done, settled) = batch.sweep(due)?;
    swept.add(done);
    Ok(Turn {
        settled,
        has_table: settled < due.len() || batch.reached.get(),
    })
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
                token: lease.i64(Col::Token),
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

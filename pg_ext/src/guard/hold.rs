//! A machine's tables locked together, for what puts guards on them or takes them off.
//!
//! Who writes items has those and wants the machine's row, refund has that and wants items: so a table is waited for
//! while none of the others is held, and those for a moment only. It gives way before anybody is a deadlock's victim.

use super::install::got_another_name;
use crate::error::{Error, Kind, Result};
use crate::machine::relation::Relation;
use crate::settings;
use crate::subxact;
use pgrx::pg_sys;
use std::time::{Duration, Instant};

/// How often they are asked for.
const ROUNDS: usize = 20;
/// The server looks whether somebody waits in a circle once he has waited for deadlock_timeout, by default so long.
/// Where it is more, the tables are kept from their writers no longer all the same.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits for these tables and their partitions, each of which is to have its name afterwards.
pub fn hold_all(machine: &str, mut tables: Vec<Relation>, mode: u32) -> Result<()> {
    for _ in 0..ROUNDS {
        if subxact::kept_if(|held| *held, || hold_together(&tables, mode))? {
            let is_named = |t: &Relation| Relation::of(t.oid).as_ref() == Some(t);
            return match tables.iter().all(is_named) {
                true => Ok(()),
                false => Err(got_another_name(machine)),
            };
        }
        // The next one is waited for with nothing held.
        tables.rotate_left(1);
    }
    Err(not_together(machine, &tables))
}

/// Waits for the first table as long as the caller would, and then a moment for the rest, which is over before
/// anybody has waited behind us for so long that he looks for a deadlock. False: somebody keeps one of them, and what
/// was locked is to be given back.
fn hold_together(tables: &[Relation], mode: u32) -> Result<bool> {
    let Some(first) = tables.first() else {
        return Ok(true);
    };
    // SAFETY: reads a setting, in milliseconds.
    let timeout = Duration::from_millis(unsafe { pg_sys::DeadlockTimeout }.unsigned_abs().into());
    let timeout = timeout.min(DEADLOCK_TIMEOUT);
    // Who queues behind us from now on may have another of the tables.
    let deadline = Instant::now() + timeout * 9 / 10;
    first.lock(mode);
    let until = deadline.min(Instant::now() + settings::at_most(timeout * 3 / 10));
    for table in tables {
        if !table.lock_with_partitions_until(mode, until)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn not_together(machine: &str, tables: &[Relation]) -> Error {
    let names: Vec<_> = tables.iter().map(|t| t.name.as_str()).collect();
    let names = names.join(", ");
    Error::new(
        Kind::LockNotAvailable,
        format!("could not lock the tables of machine \"{machine}\" together: {names}"),
    )
    .hint(format!(
        "Call it when fewer open transactions write them, or lock them before it, in the same transaction: \
         LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE."
    ))
}

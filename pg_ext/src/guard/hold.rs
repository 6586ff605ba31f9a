//! A machine's tables locked together, for what puts guards on them or takes them off.
//!
//! Who writes items has those and wants the machine's row, refund has that and wants items: so a table is waited for while
//! none of the others is held (but for what machine_define has looked at, ACCESS SHARE), and those for a moment only. It
//! gives way before a writer of theirs is a deadlock's victim.

use super::install::got_another_name;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::machine::relation::{self, Relation};
use crate::settings;
use crate::subxact;
use pgrx::pg_sys::{self, Oid};
use std::time::{Duration, Instant};

/// How often they are asked for.
const ROUNDS: usize = 20;
/// Between two rounds, for as long as the last one took but no longer, we are in nobody's way.
const NAP: Duration = Duration::from_millis(300);
/// The server looks whether somebody waits in a circle once he has waited for deadlock_timeout, by default so long. Where it
/// is more, the tables are kept from their writers no longer all the same.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits for these tables and their partitions, each of which is to have its name afterwards.
pub fn hold_all(machine: &str, tables: Vec<Relation>, mode: u32) -> Result<()> {
    let Some(mut first) = tables.first().map(|table| table.oid) else {
        return Ok(());
    };
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let held = || hold_together(&tables, first, mode);
        let Some(busy) = subxact::kept_if(Option::is_none, held)? else {
            let is_named = |t: &Relation| Relation::of(t.oid).as_ref() == Some(t);
            return match tables.iter().all(is_named) {
                true => Ok(()),
                false => Err(got_another_name(machine)),
            };
        };
        // Whatever could not be had is waited for with nothing held.
        first = busy;
        let until = Instant::now() + begin.elapsed().min(NAP);
        while Instant::now() < until {
            clock::nap();
        }
    }
    Err(not_together(machine, &tables))
}

/// Waits for the first, one of these tables or of their partitions, as long as the caller would, and then a moment for the
/// rest, which is over before anybody has waited behind us for so long that he looks for a deadlock. Some: what somebody
/// keeps; what was locked is to be given back.
fn hold_together(tables: &[Relation], first: Oid, mode: u32) -> Result<Option<Oid>> {
    // SAFETY: reads a setting, in milliseconds.
    let timeout = Duration::from_millis(unsafe { pg_sys::DeadlockTimeout }.unsigned_abs().into());
    let timeout = timeout.min(DEADLOCK_TIMEOUT);
    // Who queues behind us from now on may have another of the tables.
    let deadline = Instant::now() + timeout * 9 / 10;
    relation::lock(first, mode);
    let until = deadline.min(Instant::now() + settings::at_most(timeout * 3 / 10));
    for table in tables {
        if let Some(busy) = table.lock_with_partitions_until(mode, until)? {
            return Ok(Some(busy));
        }
    }
    Ok(None)
}

fn not_together(machine: &str, tables: &[Relation]) -> Error {
    let names: Vec<_> = tables.iter().map(|t| t.name.as_str()).collect();
    Error::new(
        Kind::LockNotAvailable,
        format!("could not lock the tables of machine \"{machine}\" together: {}", names.join(", ")),
    )
    .detail(format!("Other transactions kept one of them or of their partitions in each of {ROUNDS} tries."))
    .hint("Call it again while fewer transactions write them. LOCK TABLE before it, in the same transaction, would wait \
           for as long as it takes, and may cost writers a deadlock (40P01).")
}

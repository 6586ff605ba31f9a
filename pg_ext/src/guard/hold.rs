//! A machine's tables locked together, for what puts guards on them or takes them off.
//!
//! Who writes items has those and wants the machine's row, refund has that and wants items: so a table is waited for while
//! none of the others is held (but for what machine_define has looked at, ACCESS SHARE), and then those, until somebody who
//! keeps one of them waits for us, or long enough. It gives way, nearly always before a writer of theirs is a deadlock's victim.

use super::install::got_another_name;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::machine::relation::{self, Relation};
use crate::settings;
use crate::subxact;
use pgrx::pg_sys::{self, Oid};
use std::time::{Duration, Instant};

/// They are asked for so often at least, and for so many times deadlock_timeout.
const ROUNDS: usize = 10;
const TIMEOUTS: u32 = 20;
/// So often in a row, each time so soon, a circle is met with nothing held, until it is told: another call that waits
/// behind us gives way by itself.
const STUCK: u32 = 16;
const SOON: Duration = Duration::from_millis(100);
/// Between two rounds, for as long as the last one took but no longer, we are in nobody's way; ...
const NAP: Duration = Duration::from_millis(300);
/// ... and for so many times that, once more for each circle in a row.
const STUCK_NAP: Duration = Duration::from_millis(10);
/// How long others wait is what the server takes for long (deadlock_timeout), but no more than it is by default, ...
const LONG: Duration = Duration::from_secs(1);
const LEAST: Duration = Duration::from_millis(10);
/// ... and in later rounds so many times that: writers of one row come one after the other.
const LONGER: u32 = 4;

/// Waits for these tables and their partitions, each of which is to have its name afterwards.
pub fn hold_all(machine: &str, tables: Vec<Relation>, mode: u32) -> Result<()> {
    let Some(mut first) = tables.first().map(|table| table.oid) else {
        return Ok(());
    };
    let long = deadlock_timeout();
    let last = Instant::now() + long * TIMEOUTS;
    let (mut limit, mut nap) = (long, Duration::ZERO);
    let (mut rounds, mut stuck) = (0, 0);
    while rounds < ROUNDS || Instant::now() < last {
        rounds += 1;
        let until = Instant::now() + nap;
        while Instant::now() < until {
            clock::nap();
        }
        let begin = Instant::now();
        let hold = || hold_together(&tables, first, mode, limit);
        let Some(kept) = subxact::kept_if(Option::is_none, hold)? else {
            let is_named = |t: &Relation| Relation::of(t.oid).as_ref() == Some(t);
            return match tables.iter().all(is_named) {
                true => Ok(()),
                false => Err(got_another_name(machine)),
            };
        };
        let is_stuck = kept == first && begin.elapsed() < SOON;
        stuck = if is_stuck { stuck + 1 } else { 0 };
        if stuck > STUCK {
            return Err(waited_for(machine, kept));
        }
        // Whatever could not be had is waited for with nothing held.
        first = kept;
        limit = (limit * 2).min(long * LONGER);
        nap = begin.elapsed().min(NAP).max(STUCK_NAP * stuck);
    }
    Err(not_together(machine, &tables, rounds))
}

/// Waits for the first, one of these tables or of their partitions, as long as the caller would, and then for the rest.
/// Some: what somebody keeps, the first where he waits for us; what was locked is to be given back.
fn hold_together(
    tables: &[Relation],
    first: Oid,
    mode: u32,
    limit: Duration,
) -> Result<Option<Oid>> {
    if !relation::lock_watched(first, mode)? {
        return Ok(Some(first));
    }
    let until = Instant::now() + settings::at_most(limit);
    for table in tables {
        let kept = table.lock_with_partitions_until(mode, until)?;
        if kept.is_some() {
            return Ok(kept);
        }
    }
    Ok(None)
}

fn deadlock_timeout() -> Duration {
    // SAFETY: reads a setting, in milliseconds.
    let timeout = unsafe { pg_sys::DeadlockTimeout }.unsigned_abs();
    Duration::from_millis(timeout.into()).clamp(LEAST, LONG)
}

fn waited_for(machine: &str, kept: Oid) -> Error {
    let name = Relation::of(kept).map_or_else(|| kept.to_string(), |table| table.name);
    Error::new(
        Kind::Deadlock,
        format!("could not lock {name} for the guard of machine \"{machine}\": who keeps it waits for this transaction"),
    )
    .detail(
        "It waits for something that this transaction has had from before, or for its end (CREATE INDEX CONCURRENTLY and \
         REINDEX CONCURRENTLY wait for all that are open).",
    )
    .hint("Roll back, so that it can go on, and call it again, first in its transaction.")
}

fn not_together(machine: &str, tables: &[Relation], rounds: usize) -> Error {
    let names: Vec<_> = tables.iter().map(|t| t.name.as_str()).collect();
    Error::new(
        Kind::LockNotAvailable,
        format!("could not lock the tables of machine \"{machine}\" together: {}", names.join(", ")),
    )
    .detail(format!("Other transactions kept one of them or of their partitions in each of {rounds} tries."))
    .hint("Transactions that write more than one of them, in different orders, or rows for which many wait all the time, keep \
           it from having all: call it again while there are fewer. LOCK TABLE before it, in the same transaction, would \
           wait for as long as it takes, and may cost writers a deadlock (40P01).")
}

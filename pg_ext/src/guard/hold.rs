//! A machine's tables locked together, for what puts guards on them or takes them off.
//!
//! Who writes items has those and wants the machine's row, refund has that and wants items: so a table is waited for while
//! none of the others is held (but for what machine_define has looked at, ACCESS SHARE), and then those, for as long as
//! nobody who keeps one of them waits behind us. It gives way before a writer of theirs is a deadlock's victim.

use super::install::got_another_name;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::machine::relation::{self, Relation};
use crate::row;
use crate::settings;
use crate::spi::{self, Kept};
use crate::subxact;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// The server's only one for tables.
const LOCK_METHOD: u16 = pg_sys::DEFAULT_LOCKMETHOD as u16;

/// They are asked for so often at least, and for so many times deadlock_timeout.
const ROUNDS: usize = 20;
const TIMEOUTS: u32 = 10;
/// Between two rounds, for as long as the last one took but no longer, we are in nobody's way.
const NAP: Duration = Duration::from_millis(300);
/// The server looks whether somebody waits in a circle once he has waited for deadlock_timeout, by default so long. Where it
/// is more, the tables are kept from their writers no longer all the same.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// So many tenths of that we wait for the rest, and then once more, where nobody is in a circle with us: he who comes into
/// one meanwhile does not look before that is over.
const TENTHS: [u32; 2] = [3, 9];

/// Somebody has a lock of one of these ($1) that we have not in this mode ($2), and waits for us, or for who does.
const IN_CIRCLE: &CStr = c"
    WITH RECURSIVE edge AS MATERIALIZED (
        SELECT l.pid, pg_catalog.unnest(pg_catalog.pg_blocking_pids(l.pid)) AS waits_for
          FROM pg_catalog.pg_locks l WHERE NOT l.granted),
    behind (pid) AS (
        SELECT pg_catalog.pg_backend_pid()
        UNION
        SELECT e.pid FROM behind b JOIN edge e ON e.waits_for = b.pid),
    held AS MATERIALIZED (
        SELECT l.pid, l.relation, l.mode FROM pg_catalog.pg_locks l
         WHERE l.granted AND l.relation = ANY ($1)
           AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()))
    SELECT EXISTS (
        SELECT FROM held h JOIN behind b ON b.pid = h.pid
         WHERE h.pid <> pg_catalog.pg_backend_pid()
           AND NOT EXISTS (SELECT FROM held o
                            WHERE o.pid = pg_catalog.pg_backend_pid() AND o.relation = h.relation AND o.mode = $2))";

thread_local! {
    static CIRCLE: Kept = const { Kept::new(IN_CIRCLE, &[pg_sys::OIDARRAYOID, pg_sys::TEXTOID]) };
}

/// Waits for these tables and their partitions, each of which is to have its name afterwards.
pub fn hold_all(machine: &str, tables: Vec<Relation>, mode: u32) -> Result<()> {
    let Some(mut first) = tables.first().map(|table| table.oid) else {
        return Ok(());
    };
    let last = Instant::now() + deadlock_timeout() * TIMEOUTS;
    let mut nap = Duration::ZERO;
    let mut rounds = 0;
    while rounds < ROUNDS || Instant::now() < last {
        rounds += 1;
        let until = Instant::now() + nap;
        while Instant::now() < until {
            clock::nap();
        }
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
        nap = begin.elapsed().min(NAP);
    }
    Err(not_together(machine, &tables, rounds))
}

/// Waits for the first, one of these tables or of their partitions, as long as the caller would, and then for the rest.
/// Some: what somebody keeps; what was locked is to be given back.
fn hold_together(tables: &[Relation], first: Oid, mode: u32) -> Result<Option<Oid>> {
    let timeout = deadlock_timeout();
    relation::lock(first, mode);
    let mut until = Instant::now();
    let mut tenths = TENTHS.into_iter();
    loop {
        let mut busy = None;
        for table in tables {
            busy = table.lock_with_partitions_until(mode, until)?;
            if busy.is_some() {
                break;
            }
        }
        match (busy, tenths.next()) {
            (Some(_), Some(part)) if !is_in_circle(tables, mode)? => {
                until = Instant::now() + settings::at_most(timeout * part / 10);
            }
            (busy, _) => return Ok(busy),
        }
    }
}

/// Who keeps one of the tables waits for us, by whatever way.
fn is_in_circle(tables: &[Relation], mode: u32) -> Result<bool> {
    let with_partitions = |t: &Relation| std::iter::once(t.oid).chain(t.partitions());
    let oids = tables.iter().flat_map(with_partitions).map(Datum::from);
    // SAFETY: a name that the server has for each mode, as a C string.
    let mode = unsafe { CStr::from_ptr(pg_sys::GetLockmodeName(LOCK_METHOD, mode as i32)) };
    let args = [
        Some(row::array(oids, pg_sys::OIDOID)),
        Some(row::text(mode.to_bytes())),
    ];
    let rows = spi::query(&CIRCLE, &args)?;
    Ok(spi::first(&rows).is_some_and(|d| d.value() != 0))
}

fn deadlock_timeout() -> Duration {
    // SAFETY: reads a setting, in milliseconds.
    let timeout = unsafe { pg_sys::DeadlockTimeout }.unsigned_abs();
    Duration::from_millis(timeout.into()).min(DEADLOCK_TIMEOUT)
}

fn not_together(machine: &str, tables: &[Relation], rounds: usize) -> Error {
    let names: Vec<_> = tables.iter().map(|t| t.name.as_str()).collect();
    Error::new(
        Kind::LockNotAvailable,
        format!("could not lock the tables of machine \"{machine}\" together: {}", names.join(", ")),
    )
    .detail(format!("Other transactions kept one of them or of their partitions in each of {rounds} tries."))
    .hint("Transactions that write more than one of them, in different orders, keep it from having all: call it again while \
           fewer do. LOCK TABLE before it, in the same transaction, would wait for as long as it takes, and may cost \
           writers a deadlock (40P01).")
}

//! A machine's tables locked together, for what puts guards on them or takes them off.
//!
//! Who writes items has those and wants the machine's row, refund has that and wants items: so a table is waited for while
//! none of the others is held (but for what machine_define has looked at, ACCESS SHARE), and then those, for as long as
//! nobody who keeps one of them waits behind us. It gives way before a writer of theirs is a deadlock's victim. Rows that
//! many write leave no time for that between two who look for a deadlock: where the first rounds have met no circle, a later
//! one does not ask who looks.

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
/// After so many without a circle who looks is not asked.
const WARY_ROUNDS: usize = 3;
/// Between two rounds, for as long as the last one took but no longer, we are in nobody's way.
const NAP: Duration = Duration::from_millis(300);
/// The server looks whether somebody waits in a circle once he has waited for deadlock_timeout, by default so long. Where it
/// is more, the tables are kept from their writers no longer all the same.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// So many tenths of that we wait for the rest at a time, first and then, and in all, where nobody is in a circle with us.
const TENTHS: [u32; 2] = [3, 9];
const ALL_TENTHS: u32 = 12;
/// Such a part of it before somebody looks we are in nobody's queue, where he could find us.
const MARGIN: u32 = 20;

/// $1 tables, $2 how we want them, $3 what is in the way of that, $4 microseconds. Does somebody who keeps one of them from
/// us wait for us, or for who does? And in how many microseconds will one of those who keep one, or wait for us, have waited
/// for $4? He will look once, then. Processes of one query count as one.
const IN_CIRCLE: &CStr = c"
    WITH RECURSIVE process AS MATERIALIZED (
        SELECT a.pid, COALESCE(a.leader_pid, a.pid) AS leader FROM pg_catalog.pg_stat_activity a),
    waiter AS MATERIALIZED (
        SELECT COALESCE(p.leader, l.pid) AS leader, l.pid,
               COALESCE(l.waitstart, pg_catalog.clock_timestamp()) + $4 * interval '1 microsecond' AS looks_at
          FROM pg_catalog.pg_locks l LEFT JOIN process p ON p.pid = l.pid WHERE NOT l.granted),
    edge AS MATERIALIZED (
        SELECT w.leader, pg_catalog.unnest(pg_catalog.pg_blocking_pids(w.pid)) AS waits_for FROM waiter w),
    behind (leader) AS (
        SELECT pg_catalog.pg_backend_pid()
        UNION
        SELECT e.leader FROM behind b JOIN edge e ON e.waits_for = b.leader),
    held AS MATERIALIZED (
        SELECT COALESCE(p.leader, l.pid) AS leader, l.relation, l.mode
          FROM pg_catalog.pg_locks l LEFT JOIN process p ON p.pid = l.pid
         WHERE l.granted AND l.relation = ANY ($1)
           AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())),
    keeper AS MATERIALIZED (
        SELECT h.leader FROM held h
         WHERE h.mode = ANY ($3) AND h.leader <> pg_catalog.pg_backend_pid()
           AND NOT EXISTS (SELECT FROM held o WHERE o.leader = pg_catalog.pg_backend_pid()
                                                AND o.relation = h.relation AND o.mode = $2))
    SELECT EXISTS (SELECT FROM keeper k JOIN behind b ON b.leader = k.leader),
           (SELECT pg_catalog.min(pg_catalog.date_part('epoch', w.looks_at - pg_catalog.clock_timestamp()) * 1000000)::int8
              FROM waiter w
             WHERE w.looks_at > pg_catalog.clock_timestamp() AND w.leader <> pg_catalog.pg_backend_pid()
               AND (w.leader IN (SELECT k.leader FROM keeper k) OR w.leader IN (SELECT b.leader FROM behind b)))";

const CIRCLE_OF: &[Oid] = &[
    pg_sys::OIDARRAYOID,
    pg_sys::TEXTOID,
    pg_sys::TEXTARRAYOID,
    pg_sys::INT8OID,
];

thread_local! {
    static CIRCLE: Kept = const { Kept::new(IN_CIRCLE, CIRCLE_OF) };
}

/// Waits for these tables and their partitions, each of which is to have its name afterwards.
pub fn hold_all(machine: &str, tables: Vec<Relation>, mode: u32) -> Result<()> {
    let Some(mut first) = tables.first().map(|table| table.oid) else {
        return Ok(());
    };
    let last = Instant::now() + deadlock_timeout() * TIMEOUTS;
    let mut nap = Duration::ZERO;
    let mut rounds = 0;
    let (mut has_circles, mut is_wary) = (false, true);
    while rounds < ROUNDS || Instant::now() < last {
        rounds += 1;
        let until = Instant::now() + nap;
        while Instant::now() < until {
            clock::nap();
        }
        let begin = Instant::now();
        let hold = || hold_together(&tables, first, mode, is_wary);
        let Some(kept) = subxact::kept_if(Option::is_none, hold)? else {
            let is_named = |t: &Relation| Relation::of(t.oid).as_ref() == Some(t);
            return match tables.iter().all(is_named) {
                true => Ok(()),
                false => Err(got_another_name(machine)),
            };
        };
        has_circles |= kept.in_circle;
        is_wary = has_circles || rounds < WARY_ROUNDS;
        // Whatever could not be had is waited for with nothing held.
        first = kept.relation;
        nap = begin.elapsed().min(NAP);
    }
    Err(not_together(machine, &tables, rounds))
}

/// What somebody keeps, who may be in a circle with us.
struct KeptFromUs {
    relation: Oid,
    in_circle: bool,
}

/// Waits for the first, one of these tables or of their partitions, as long as the caller would, and then for the rest.
/// Some: what was locked is to be given back.
fn hold_together(
    tables: &[Relation],
    first: Oid,
    mode: u32,
    is_wary: bool,
) -> Result<Option<KeptFromUs>> {
    let timeout = deadlock_timeout();
    relation::lock(first, mode);
    let mut until = Instant::now();
    let end = until + settings::at_most(timeout * ALL_TENTHS / 10);
    let mut part = TENTHS[0];
    loop {
        let mut busy = None;
        for table in tables {
            busy = table.lock_with_partitions_until(mode, until)?;
            if busy.is_some() {
                break;
            }
        }
        let Some(relation) = busy else {
            return Ok(None);
        };
        let kept = |in_circle| {
            Ok(Some(KeptFromUs {
                relation,
                in_circle,
            }))
        };
        if Instant::now() >= end {
            return kept(false);
        }
        let Some(mut safe) = safe_wait(tables, mode, timeout)? else {
            return kept(true);
        };
        if !is_wary {
            (safe, part) = (timeout, TENTHS[1]);
        }
        until = Instant::now();
        if safe.is_zero() {
            clock::nap();
            continue;
        }
        until = end.min(until + safe.min(timeout * part / 10));
        part = TENTHS[1];
    }
}

/// How long nobody will find us in a circle with him, if we wait for the tables; None: we are in one.
fn safe_wait(tables: &[Relation], mode: u32, timeout: Duration) -> Result<Option<Duration>> {
    let with_partitions = |t: &Relation| std::iter::once(t.oid).chain(t.partitions());
    let oids = tables.iter().flat_map(with_partitions).map(Datum::from);
    let in_the_way = (1..=pg_sys::AccessExclusiveLock)
        // SAFETY: compares two modes of those that there are.
        .filter(|m| unsafe { pg_sys::DoLockModesConflict(*m as i32, mode as i32) });
    let args = [
        Some(row::array(oids, pg_sys::OIDOID)),
        Some(name_of(mode)),
        Some(row::array(in_the_way.map(name_of), pg_sys::TEXTOID)),
        Some(Datum::from(timeout.as_micros() as i64)),
    ];
    // SAFETY: forgets who was there when this transaction asked first.
    unsafe { pg_sys::pgstat_clear_backend_activity_snapshot() };
    let rows = spi::query(&CIRCLE, &args)?;
    let column = |i| rows.first().and_then(|row| spi::column(row, i));
    if column(0).is_none_or(|d| d.value() != 0) {
        return Ok(None);
    }
    let soonest = column(1).map_or(timeout, |d| Duration::from_micros(d.value() as u64));
    Ok(Some(soonest.saturating_sub(timeout / MARGIN)))
}

fn name_of(mode: u32) -> Datum {
    // SAFETY: a name that the server has for each mode, as a C string.
    let name = unsafe { CStr::from_ptr(pg_sys::GetLockmodeName(LOCK_METHOD, mode as i32)) };
    row::text(name.to_bytes())
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

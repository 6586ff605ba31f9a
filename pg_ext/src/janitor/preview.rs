//! `sweep_preview()`: what a sweep would do now, changing nothing.
//!
//! Each look follows the index that the sweep itself follows and ends after so many rows, so its cost does not grow
//! with the tables.

use super::task::Task;
use crate::call::Call;
use crate::clock;
use crate::error::Result;
use crate::outbox::preview as outbox;
use crate::row::{self, Rows};
use crate::spi::{self, Kept};
use crate::swept::Due;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;
use std::thread::LocalKey;

/// Rows that are looked at, of each machine.
const LOOKS: i64 = 10_000;

// In all of them: $1 now, $2 the bound, $3 the default of gone_for in microseconds.

const ACTIONS: &CStr = c"
    SELECT LEAST(pg_catalog.count(*), $2), $1 - min(l.lease_until)
      FROM once.machine m CROSS JOIN LATERAL (
           SELECT a.state, a.lease_until FROM once.action_lease a
            WHERE a.machine = m.machine AND a.look_at <= $1 ORDER BY a.look_at LIMIT $2) l
     WHERE l.state = 'h' AND l.lease_until <= $1";

// Tombstones, and keys that were never emptied: as in key_reap.
const REAP: &CStr = c"
    SELECT LEAST(pg_catalog.count(*), $2), $1 - min(d.due_at)
      FROM (SELECT k.finished_at + k.ttl_us * interval '1 microsecond'
                   + COALESCE(s.gone_for_us, $3) * interval '1 microsecond' AS due_at
              FROM ((SELECT t.finished_at, t.ttl_us, t.scope FROM once.key t WHERE t.reap_stage = '1' AND t.reap_at <= $1
                      ORDER BY t.reap_at LIMIT $2)
                    UNION ALL
                    (SELECT t.finished_at, t.ttl_us, t.scope FROM once.key t WHERE t.reap_stage = '0' AND t.reap_at <= $1
                      ORDER BY t.reap_at LIMIT $2)) k
                   LEFT JOIN once.scope s ON s.scope = k.scope) d
     WHERE d.due_at <= $1";

const TOMBSTONE: &CStr = c"
    SELECT pg_catalog.count(*), $1 - min(d.expires_at)
      FROM (SELECT k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at,
                   COALESCE(s.gone_for_us, $3) * interval '1 microsecond' AS gone_for
              FROM (SELECT t.finished_at, t.ttl_us, t.scope FROM once.key t WHERE t.reap_stage = '0' AND t.reap_at <= $1
                     ORDER BY t.reap_at LIMIT $2) k
                   LEFT JOIN once.scope s ON s.scope = k.scope) d
     WHERE d.expires_at <= $1 AND d.expires_at + d.gone_for > $1";

const INBOX: &CStr = c"
    SELECT pg_catalog.count(*), $1 - min(d.expires_at)
      FROM (SELECT i.expires_at FROM once.inbox i WHERE i.expires_at <= $1 ORDER BY i.expires_at LIMIT $2) d";

const DEDUPE: &CStr = c"
    SELECT pg_catalog.count(*), $1 - min(d.until)
      FROM (SELECT u.until FROM once.dedupe u WHERE u.until <= $1 ORDER BY u.until LIMIT $2) d";

const TYPES: &[pg_sys::Oid] = &[pg_sys::TIMESTAMPTZOID, pg_sys::INT8OID, pg_sys::INT8OID];

thread_local! {
    static ACTION_RELEASE: Kept = const { Kept::new(ACTIONS, TYPES) };
    static KEY_REAP: Kept = const { Kept::new(REAP, TYPES) };
    static KEY_TOMBSTONE: Kept = const { Kept::new(TOMBSTONE, TYPES) };
    static INBOX_REAP: Kept = const { Kept::new(INBOX, TYPES) };
    static DEDUPE_REAP: Kept = const { Kept::new(DEDUPE, TYPES) };
}

/// `once.sweep_preview`.
pub fn sweep_preview(call: &Call) -> Result<Datum> {
    let rows = Rows::begin(call);
    let now = clock::now_us()?;
    for task in Task::ALL {
        let [due, oldest] = look(task, now)?;
        rows.push(&[Some(row::text(task.name().as_bytes())), due, oldest]);
    }
    Ok(call.return_null())
}

/// For how long something has waited for a task that has never run, in microseconds; None: nothing does.
pub fn waited_us(task: Task, now: i64) -> Result<Option<i64>> {
    let [_, oldest] = match task {
        Task::OutboxRetire => told(&outbox::stored(None)?, now),
        _ => look(task, now)?,
    };
    Ok(oldest.and_then(|age| clock::interval_us(age).ok()))
}

/// How many rows are due, and for how long the oldest has been.
fn look(task: Task, now: i64) -> Result<[Option<Datum>; 2]> {
    Ok(match task {
        Task::ActionRelease => counted(&ACTION_RELEASE, now)?,
        Task::KeyReap => counted(&KEY_REAP, now)?,
        Task::KeyTombstone => counted(&KEY_TOMBSTONE, now)?,
        Task::InboxReap => counted(&INBOX_REAP, now)?,
        Task::DedupeReap => counted(&DEDUPE_REAP, now)?,
        Task::OutboxRequeue => told(&outbox::requeue(now, LOOKS)?, now),
        Task::OutboxRetire => told(&outbox::retire()?, now),
    })
}

fn counted(statement: &'static LocalKey<Kept>, now: i64) -> Result<[Option<Datum>; 2]> {
    let args = [now, LOOKS, clock::DAY_US].map(|value| Some(Datum::from(value)));
    let rows = spi::query(statement, &args)?;
    let column = |i| rows.first().and_then(|row| spi::column(row, i));
    Ok([column(0), column(1)])
}

fn told(due: &Due, now: i64) -> [Option<Datum>; 2] {
    let age = |since: i64| clock::interval_datum((now - since).max(0));
    [Some(Datum::from(due.rows.min(LOOKS))), due.since.map(age)]
}

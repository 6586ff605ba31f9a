//! `janitor_status()` shows the due rows of each task, and the rows that once.janitor has for it. It writes nothing.
//!
//! Each count reads the index that the sweep reads and stops at a bound, so its cost does not grow with the tables.
//! janitor_status counts the rows of all scopes and machines, whoever owns them.

use super::task::Task;
use crate::call::{Call, varlena};
use crate::clock;
use crate::error::Result;
use crate::key::abandon::OverdueKeys;
use crate::machine::history;
use crate::outbox::due as outbox;
use crate::row::{self, Rows};
use crate::spi::{self, Kept, column};
use crate::subxact;
use crate::swept::DueWork;
use pgrx::pg_sys::{self, Datum, INT8OID, TEXTOID, TIMESTAMPTZOID};
use std::ffi::CStr;

/// A reported count is at most this. Up to this many moves are read for each machine, and this many dead letters for
/// each subscriber. Up to a million leases are read for each machine, ended ones included.
const MOST_DUE: i64 = 10_000;

// In the statements that count: $1 now, $2 the bound, $3 the default of gone_for in microseconds. Each answers the
// number of due rows, the time at which the first of them became due and, for actions, the machine.

const OVERDUE_ACTIONS: &CStr = c"
    SELECT LEAST(pg_catalog.count(*), $2), min(l.lease_until), m.machine
      FROM once.machine m CROSS JOIN LATERAL (
           SELECT a.state, a.lease_until FROM once.action_lease a
            WHERE a.machine = m.machine AND a.look_at <= $1 ORDER BY a.look_at LIMIT 1000000) l
     WHERE l.state = 'h' AND l.lease_until <= $1
     GROUP BY m.machine";

const REAPABLE_KEYS: &CStr = c"
    SELECT pg_catalog.count(*), min(d.due_at)
      FROM (SELECT k.finished_at + k.ttl_us * interval '1 microsecond'
                   + COALESCE(s.gone_for_us, $3) * interval '1 microsecond' AS due_at
              FROM (SELECT t.finished_at, t.ttl_us, t.scope FROM once.key t WHERE t.reap_stage = '0' AND t.reap_at <= $1
                     ORDER BY t.reap_at LIMIT $2) k
                   LEFT JOIN once.scope s ON s.scope = k.scope) d
     WHERE d.due_at <= $1";

const LARGE_KEYS: &CStr = c"
    SELECT pg_catalog.count(*), min(d.reap_at)
      FROM (SELECT k.reap_at FROM once.key k WHERE k.reap_stage = '1' AND k.reap_at <= $1
             ORDER BY k.reap_at LIMIT $2) d";

const EXPIRED_MESSAGES: &CStr = c"
    SELECT pg_catalog.count(*), min(d.expires_at)
      FROM (SELECT i.expires_at FROM once.inbox i WHERE i.expires_at <= $1 ORDER BY i.expires_at LIMIT $2) d";

const EXPIRED_DEDUPES: &CStr = c"
    SELECT pg_catalog.count(*), min(d.until)
      FROM (SELECT u.until FROM once.dedupe u WHERE u.until <= $1 ORDER BY u.until LIMIT $2) d";

const EXPIRED_LETTERS: &CStr = c"
    SELECT LEAST(pg_catalog.count(*), $2), min(d.died_at + s.dead_for_us * interval '1 microsecond')
      FROM once.subscriber s CROSS JOIN LATERAL (
           SELECT l.died_at FROM once.dead l
            WHERE l.subscriber_id = s.subscriber_id AND l.died_at <= $1 - s.dead_for_us * interval '1 microsecond'
            ORDER BY l.died_at LIMIT $2) d";

// The rows of once.janitor for task $1; one row for the task even if it never ran.
const RUNS: &CStr = c"
    SELECT NULLIF(j.machine, ''), j.last_end, COALESCE(j.done, 0), COALESCE(j.failed, 0),
           j.last_error, j.last_error_at, j.served_by
      FROM (SELECT '' UNION SELECT machine FROM once.janitor WHERE task = $1) m (machine)
           LEFT JOIN once.janitor j ON j.task = $1 AND j.machine = m.machine
     ORDER BY m.machine";

const TYPES: &[pg_sys::Oid] = &[TIMESTAMPTZOID, INT8OID, INT8OID];

static DUE_ACTION_RELEASE: Kept = Kept::new(OVERDUE_ACTIONS, TYPES);
static DUE_KEY_REAP: Kept = Kept::new(REAPABLE_KEYS, TYPES);
static DUE_KEY_TOMBSTONE: Kept = Kept::new(LARGE_KEYS, TYPES);
static DUE_INBOX_REAP: Kept = Kept::new(EXPIRED_MESSAGES, TYPES);
static DUE_DEDUPE_REAP: Kept = Kept::new(EXPIRED_DEDUPES, TYPES);
static DUE_DEAD_REAP: Kept = Kept::new(EXPIRED_LETTERS, TYPES);
static TASK_RUNS: Kept = Kept::new(RUNS, &[TEXTOID]);

/// The due rows of a task. Only action_release can have several parts: one for each machine with due rows.
type DueParts = Vec<(Option<Vec<u8>>, DueWork)>;

/// `once.janitor_status`.
pub fn janitor_status(call: &Call) -> Result<Datum> {
    let rows = Rows::begin(call);
    let now = clock::now_us()?;
    for task in Task::ALL {
        let name = row::text(task.name().as_bytes());
        // If a table is locked, this task gets NULL for its due rows, and the other tasks are still counted.
        let parts = subxact::attempt_briefly(|| due_parts(task, now))?.ok();
        for run in spi::query(&TASK_RUNS, &[Some(name)])? {
            let machine = column(&run, 0).map(varlena);
            let due = parts.as_deref().map(|parts| sum_of(parts, machine));
            let age = |since: i64| clock::interval_datum((now - since).max(0));
            let of_due = [
                Some(name),
                column(&run, 0),
                due.as_ref().map(|due| Datum::from(due.rows.min(MOST_DUE))),
                due.as_ref().and_then(|due| due.since).map(age),
            ];
            rows.push(&[&of_due, &run[1..]].concat());
        }
    }
    Ok(call.return_null())
}

/// The microseconds that the oldest due row of a task has waited. For outbox_retire, each stored event counts as due.
/// Call this only for a task that never ran.
pub fn waited_us(task: Task, now: i64) -> Result<Option<i64>> {
    let due = match task {
        Task::OutboxRetire => outbox::stored(None)?,
        _ => sum_of(&due_parts(task, now)?, None),
    };
    Ok(due.since.map(|since| (now - since).max(0)))
}

/// The sum of the due rows of one machine, or of all.
fn sum_of(parts: &[(Option<Vec<u8>>, DueWork)], machine: Option<&[u8]>) -> DueWork {
    let mut all = DueWork::default();
    for (of, due) in parts {
        if machine.is_none() || machine == of.as_deref() {
            all.add(due.rows, due.since);
        }
    }
    all
}

fn due_parts(task: Task, now: i64) -> Result<DueParts> {
    Ok(match task {
        Task::ActionRelease => counted(&DUE_ACTION_RELEASE, now)?,
        Task::KeyAbandon => vec![(None, abandoned(now)?)],
        Task::KeyReap => counted(&DUE_KEY_REAP, now)?,
        Task::KeyTombstone => counted(&DUE_KEY_TOMBSTONE, now)?,
        Task::InboxReap => counted(&DUE_INBOX_REAP, now)?,
        Task::DedupeReap => counted(&DUE_DEDUPE_REAP, now)?,
        Task::DeadReap => counted(&DUE_DEAD_REAP, now)?,
        Task::HistoryReap => vec![(None, history::due(MOST_DUE)?)],
        Task::OutboxRequeue => vec![(None, outbox::requeue(now, MOST_DUE)?)],
        Task::OutboxRetire => vec![(None, outbox::retire()?)],
    })
}

fn abandoned(now: i64) -> Result<DueWork> {
    let (rows, since) = OverdueKeys::count(now, MOST_DUE as usize)?;
    let rows = rows as i64;
    Ok(DueWork { rows, since })
}

fn counted(statement: &'static Kept, now: i64) -> Result<DueParts> {
    let args = [now, MOST_DUE, clock::DAY_US].map(|value| Some(Datum::from(value)));
    let part = |row: &spi::Row| {
        let number = |i| column(row, i).map(|found| found.value() as i64);
        let due = DueWork {
            rows: number(0).unwrap_or(0),
            since: number(1),
        };
        (column(row, 2).map(|name| varlena(name).to_vec()), due)
    };
    Ok(spi::query(statement, &args)?.iter().map(part).collect())
}

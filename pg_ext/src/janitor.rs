//! janitor: the sweeps. Each task is one bounded statement over rows that time has made due, taken with
//! SKIP LOCKED, so that any number of sessions may sweep at once.

use crate::action::sweep as sweep_actions;
use crate::call::{Call, SCOPE_MAX, from_utf8};
use crate::clock;
use crate::error::Result;
use crate::outbox::requeue as sweep_outbox;
use crate::outbox::retire as sweep_segments;
use crate::row::{self, Rows, Shape};
use crate::settings;
use crate::spi::{self, Kept};
use crate::table::{self, Column, Name, Outcome, ScanKey, Snapshot, Table, Wait};
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;
use std::thread::LocalKey;

const MOST: i32 = 1_000_000;

// A key goes with its steps, in one statement. Tombstones come first by their own stage of the index; one
// that is not due (gone_for was raised, or it was only to be looked at) is moved to its next look. Keys
// that were never emptied (no sweep ran for long) are looked for among the oldest of the other stage, in a
// bounded range: key_tombstone moves what stands before them out of the way.
const REAP: &CStr = c"
    WITH oldest AS MATERIALIZED (
        SELECT k.id, k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at,
               COALESCE(s.gone_for_us, $3) * interval '1 microsecond' AS gone_for
          FROM once.key k LEFT JOIN once.scope s ON s.scope = k.scope
         WHERE k.reap_stage = '1' AND k.reap_at <= $1
         ORDER BY k.reap_at LIMIT $2 FOR UPDATE OF k SKIP LOCKED),
    later AS (
        UPDATE once.key k
           SET reap_at = LEAST(o.expires_at + o.gone_for,
                               $1 + GREATEST(interval '1 day', $1 - o.expires_at))
          FROM oldest o WHERE k.id = o.id AND o.expires_at + o.gone_for > $1),
    never_emptied AS MATERIALIZED (
        SELECT k.id
          FROM (SELECT o.id FROM once.key o WHERE o.reap_stage = '0' AND o.reap_at <= $1
                 ORDER BY o.reap_at LIMIT 2 * $2) oldest
               JOIN once.key k ON k.id = oldest.id
               LEFT JOIN once.scope s ON s.scope = k.scope
         WHERE k.finished_at + k.ttl_us * interval '1 microsecond'
               + COALESCE(s.gone_for_us, $3) * interval '1 microsecond' <= $1
         LIMIT $2 FOR UPDATE OF k SKIP LOCKED),
    due AS MATERIALIZED (
        SELECT id FROM oldest WHERE expires_at + gone_for <= $1
        UNION ALL
        SELECT id FROM never_emptied LIMIT $2),
    steps AS (DELETE FROM once.key_step s USING due WHERE s.key_id = due.id),
    reaped AS (DELETE FROM once.key k USING due WHERE k.id = due.id RETURNING 1)
    SELECT pg_catalog.count(*),
           pg_catalog.count(*) >= $2 OR (SELECT pg_catalog.count(*) FROM oldest) >= $2 FROM reaped";

// Keys whose time has not come yet (finished after they were claimed, or not at all) are moved to when
// it will have; that counts towards the bound, not towards what was done. An unfinished one is shown to
// completers again: should a clock that stepped back have hidden it from them, that ends here. A tombstone is looked at again
// when gone_for ends, but at the latest after a day, then after twice its age: a gone_for that is lowered
// meanwhile gives its space back, and a long one costs a few writes in all.
const TOMBSTONE: &CStr = c"
    WITH due AS MATERIALIZED (
        SELECT k.id, k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at,
               k.ttl_us * interval '1 microsecond' AS ttl,
               COALESCE(s.gone_for_us, $3) * interval '1 microsecond' AS gone_for
          FROM once.key k LEFT JOIN once.scope s ON s.scope = k.scope
         WHERE k.reap_stage = '0' AND k.reap_at <= $1
         ORDER BY k.reap_at LIMIT $2 FOR UPDATE OF k SKIP LOCKED),
    steps AS (
        DELETE FROM once.key_step s USING due WHERE s.key_id = due.id AND due.expires_at <= $1),
    later AS (
        UPDATE once.key k
           SET reap_at = COALESCE(due.expires_at, $1 + GREATEST(due.ttl, interval '10 minutes')),
               look_at = CASE WHEN k.status IN ('r', 'l') THEN GREATEST(k.look_at, $1)
                              ELSE k.look_at END
          FROM due WHERE k.id = due.id AND (due.expires_at > $1 OR due.expires_at IS NULL)
        RETURNING 1),
    emptied AS (
        UPDATE once.key k
           SET status = 'g', reap_stage = '1',
               reap_at = LEAST(due.expires_at + due.gone_for,
                               $1 + GREATEST(interval '1 day', $1 - due.expires_at)),
               state = NULL, request = NULL, note = NULL, holder = NULL,
               response_code = NULL, response_body = NULL, response_headers = NULL
          FROM due WHERE k.id = due.id AND due.expires_at <= $1
        RETURNING 1)
    SELECT (SELECT pg_catalog.count(*) FROM emptied),
           (SELECT pg_catalog.count(*) FROM due) >= $2";

// Messages and steps of sagas that count as new.
const INBOX: &CStr = c"
    WITH due AS MATERIALIZED (
        SELECT i.id FROM once.inbox i WHERE i.expires_at <= $1
         ORDER BY i.expires_at LIMIT $2 FOR UPDATE OF i SKIP LOCKED),
    reaped AS (DELETE FROM once.inbox i USING due WHERE i.id = due.id RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2 FROM reaped";

// dedupe_keys whose topic's window is over.
const DEDUPE: &CStr = c"
    WITH due AS MATERIALIZED (
        SELECT d.topic_id, d.id FROM once.dedupe d WHERE d.until <= $1
         ORDER BY d.until LIMIT $2 FOR UPDATE OF d SKIP LOCKED),
    reaped AS (
        DELETE FROM once.dedupe d USING due WHERE d.topic_id = due.topic_id AND d.id = due.id RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2 FROM reaped";

/// Now, the bound, and (for keys) the default of gone_for in microseconds.
const TYPES: &[pg_sys::Oid] = &[pg_sys::TIMESTAMPTZOID, pg_sys::INT4OID, pg_sys::INT8OID];

thread_local! {
    static KEY_REAP: Kept = const { Kept::new(REAP, TYPES) };
    static KEY_TOMBSTONE: Kept = const { Kept::new(TOMBSTONE, TYPES) };
    static INBOX_REAP: Kept = const { Kept::new(INBOX, TYPES) };
    static DEDUPE_REAP: Kept = const { Kept::new(DEDUPE, TYPES) };
    static NEW_RUN: Kept = const { Kept::new(INSERT_RUN, &[pg_sys::TEXTOID, pg_sys::TEXTOID]) };
    static TASK: Shape = const { Shape::new(&[
        (c"task", pg_sys::TEXTOID),
        (c"done", pg_sys::INT8OID),
        (c"failed", pg_sys::INT8OID),
        (c"more", pg_sys::BOOLOID),
    ]) };
}

/// What one run of a task did.
#[derive(Default)]
pub struct Swept {
    pub done: i64,
    pub failed: i64,
    pub more: bool,
    pub last_error: Option<String>,
}

impl Swept {
    /// So many rows failed, for the same reason.
    pub fn failure(rows: usize, reason: &str) -> Swept {
        Swept {
            failed: rows as i64,
            last_error: Some(reason.to_owned()),
            ..Swept::default()
        }
    }

    pub fn add(&mut self, other: Swept) {
        self.done += other.done;
        self.failed += other.failed;
        self.more |= other.more;
        self.last_error = other.last_error.or(self.last_error.take());
    }
}

/// Notes the end of a run for one machine. Another session that is noting one is not waited for: it says
/// the same.
pub fn record(task: &str, machine: &[u8], swept: &Swept) -> Result<()> {
    let table = Table::to_write(RUNS)?;
    let snapshot = Snapshot::latest();
    let mut run = match find_run(&table, task, machine, &snapshot)? {
        Some(run) => run,
        None => {
            let args = [Some(row::text(task.as_bytes())), Some(row::text(machine))];
            spi::query(&NEW_RUN, &args)?;
            return match find_run(&table, task, machine, &Snapshot::latest())? {
                Some(_) => record(task, machine, swept),
                None => Ok(()),
            };
        }
    };
    let Some(tid) = run.tid() else {
        return Ok(());
    };
    if table.lock(tid, &snapshot, Wait::No)? != Outcome::Done {
        return Ok(());
    }
    let now = clock::now_us()?;
    run.put_i64(Run::LastEnd, now);
    if swept.failed == 0 {
        run.put_i64(Run::GoodEnd, now);
    }
    run.put_i64(Run::Done, run.i64(Run::Done).saturating_add(swept.done));
    run.put_i64(
        Run::Failed,
        run.i64(Run::Failed).saturating_add(swept.failed),
    );
    if let Some(error) = &swept.last_error {
        run.put_text(Run::LastError, Some(&from_utf8(error)));
    }
    run.update_at(&table, tid, Wait::Yes).map(drop)
}

/// When a task last ended for a machine; i64::MIN: never.
pub fn last_end(task: &str, machine: &[u8]) -> Result<i64> {
    let run = find_run(&Table::to_read(RUNS)?, task, machine, &Snapshot::latest())?;
    let end = run.filter(|r| r.raw(Run::LastEnd).is_some());
    Ok(end.map_or(i64::MIN, |r| r.i64(Run::LastEnd)))
}

/// A sweep of the machine's claim states has ended without failure within once.janitor_grace.
pub fn covers(machine: &[u8]) -> Result<bool> {
    let table = Table::to_read(RUNS)?;
    let run = find_run(&table, sweep_actions::TASK, machine, &Snapshot::latest())?;
    let good = run.filter(|r| r.raw(Run::GoodEnd).is_some());
    let since = clock::now_us()?.saturating_sub(settings::janitor_grace_us());
    Ok(good.is_some_and(|r| r.i64(Run::GoodEnd) >= since))
}

/// What the last failure of a machine's sweep said.
pub fn last_error(machine: &[u8]) -> Result<Option<Vec<u8>>> {
    let table = Table::to_read(RUNS)?;
    let run = find_run(&table, sweep_actions::TASK, machine, &Snapshot::latest())?;
    Ok(run.and_then(|r| r.bytes(Run::LastError).map(<[u8]>::to_vec)))
}

const RUNS: Name = c"janitor";

/// Columns of once.janitor.
#[derive(Clone, Copy)]
enum Run {
    LastEnd = 3,
    GoodEnd,
    Done,
    Failed,
    LastError,
}

impl Column for Run {
    fn number(self) -> usize {
        self as usize
    }
}

fn find_run(
    table: &Table,
    task: &str,
    machine: &[u8],
    snapshot: &Snapshot,
) -> Result<Option<table::Record<Run, 7>>> {
    let keys = &mut [
        ScanKey::text(1, row::text(task.as_bytes())),
        ScanKey::text(2, row::text(machine)),
    ];
    let found = table.find(c"janitor_pkey", keys, snapshot)?;
    Ok(found.map(table::Record::load))
}

const INSERT_RUN: &CStr = c"
    INSERT INTO once.janitor (task, machine, done, failed) VALUES ($1, $2, 0, 0) ON CONFLICT DO NOTHING";

/// A task's name and its statement.
type Task = (&'static [u8], &'static LocalKey<Kept>);

const REAP_TASK: Task = (b"key_reap", &KEY_REAP);
const TOMBSTONE_TASK: Task = (b"key_tombstone", &KEY_TOMBSTONE);
const INBOX_TASK: Task = (b"inbox_reap", &INBOX_REAP);
const DEDUPE_TASK: Task = (b"dedupe_reap", &DEDUPE_REAP);

/// `once.sweep`.
pub fn sweep(call: &Call) -> Result<Datum> {
    let max = call.limit(0, "max", MOST)?;
    let rows = Rows::begin(call);
    rows.push(&release_actions(max, None)?);
    for task in [REAP_TASK, TOMBSTONE_TASK] {
        rows.push(&run(task, max)?);
    }
    rows.push(&requeue(max)?);
    for task in [INBOX_TASK, DEDUPE_TASK] {
        rows.push(&run(task, max)?);
    }
    rows.push(&retire(max)?);
    Ok(call.return_null())
}

/// `once.sweep_action_release`.
pub fn sweep_action_release(call: &Call) -> Result<Datum> {
    let max = call.limit(0, "max", MOST)?;
    let machine = call.opt_text(1, "machine", SCOPE_MAX)?;
    let values = release_actions(max, machine)?;
    Ok(TASK.with(|shape| shape.row(&values)))
}

fn release_actions(max: i32, machine: Option<&[u8]>) -> Result<[Option<Datum>; 4]> {
    table::ensure_writable(c"action_lease")?;
    let swept = sweep_actions::sweep(max.into(), machine)?;
    Ok(told(sweep_actions::TASK, &swept))
}

/// `once.sweep_outbox_requeue`.
pub fn sweep_outbox_requeue(call: &Call) -> Result<Datum> {
    let values = requeue(call.limit(0, "max", MOST)?)?;
    Ok(TASK.with(|shape| shape.row(&values)))
}

fn requeue(max: i32) -> Result<[Option<Datum>; 4]> {
    let swept = sweep_outbox::sweep(max.into())?;
    Ok(told(sweep_outbox::TASK, &swept))
}

fn told(task: &str, swept: &Swept) -> [Option<Datum>; 4] {
    [
        Some(row::text(task.as_bytes())),
        Some(Datum::from(swept.done)),
        Some(Datum::from(swept.failed)),
        Some(Datum::from(swept.more)),
    ]
}

/// `once.sweep_key_reap`.
pub fn sweep_key_reap(call: &Call) -> Result<Datum> {
    alone(call, REAP_TASK)
}

/// `once.sweep_key_tombstone`.
pub fn sweep_key_tombstone(call: &Call) -> Result<Datum> {
    alone(call, TOMBSTONE_TASK)
}

/// `once.sweep_inbox_reap`.
pub fn sweep_inbox_reap(call: &Call) -> Result<Datum> {
    alone(call, INBOX_TASK)
}

/// `once.sweep_dedupe_reap`.
pub fn sweep_dedupe_reap(call: &Call) -> Result<Datum> {
    alone(call, DEDUPE_TASK)
}

/// `once.sweep_outbox_retire`.
pub fn sweep_outbox_retire(call: &Call) -> Result<Datum> {
    let values = retire(call.limit(0, "max", MOST)?)?;
    Ok(TASK.with(|shape| shape.row(&values)))
}

/// Last of all tasks: what it truncates is locked until the transaction ends.
fn retire(max: i32) -> Result<[Option<Datum>; 4]> {
    let swept = sweep_segments::sweep(max.into())?;
    Ok(told(sweep_segments::TASK, &swept))
}

fn alone(call: &Call, task: Task) -> Result<Datum> {
    let values = run(task, call.limit(0, "max", MOST)?)?;
    Ok(TASK.with(|shape| shape.row(&values)))
}

fn run((name, statement): Task, max: i32) -> Result<[Option<Datum>; 4]> {
    table::ensure_writable(c"key")?;
    let args = [
        Some(Datum::from(clock::now_us()?)),
        Some(Datum::from(max)),
        Some(Datum::from(clock::DAY_US)),
    ];
    let result = spi::query(statement, &args)?;
    let column = |i: usize| result.first().and_then(|r| r.get(i).copied().flatten());
    Ok([
        Some(row::text(name)),
        column(0),
        Some(Datum::from(0i64)),
        column(1),
    ])
}

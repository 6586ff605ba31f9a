//! janitor: the sweeps. Each task is one bounded statement over rows that time has made due, taken with
//! SKIP LOCKED, so that any number of sessions may sweep at once.

use crate::call::Call;
use crate::clock;
use crate::error::Result;
use crate::row::{self, Rows, Shape};
use crate::spi::{self, Kept};
use crate::table;
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

/// Now, the bound, and the default of gone_for in microseconds.
const TYPES: &[pg_sys::Oid] = &[pg_sys::TIMESTAMPTZOID, pg_sys::INT4OID, pg_sys::INT8OID];

thread_local! {
    static KEY_REAP: Kept = const { Kept::new(REAP, TYPES) };
    static KEY_TOMBSTONE: Kept = const { Kept::new(TOMBSTONE, TYPES) };
    static TASK: Shape = const { Shape::new(&[
        (c"task", pg_sys::TEXTOID),
        (c"done", pg_sys::INT8OID),
        (c"failed", pg_sys::INT8OID),
        (c"more", pg_sys::BOOLOID),
    ]) };
}

/// A task's name and its statement.
type Task = (&'static [u8], &'static LocalKey<Kept>);

const REAP_TASK: Task = (b"key_reap", &KEY_REAP);
const TOMBSTONE_TASK: Task = (b"key_tombstone", &KEY_TOMBSTONE);

/// `once.sweep`.
pub fn sweep(call: &Call) -> Result<Datum> {
    let max = call.limit(0, "max", MOST)?;
    let rows = Rows::begin(call);
    for task in [REAP_TASK, TOMBSTONE_TASK] {
        rows.push(&run(task, max)?);
    }
    Ok(call.return_null())
}

/// `once.sweep_key_reap`.
pub fn sweep_key_reap(call: &Call) -> Result<Datum> {
    alone(call, REAP_TASK)
}

/// `once.sweep_key_tombstone`.
pub fn sweep_key_tombstone(call: &Call) -> Result<Datum> {
    alone(call, TOMBSTONE_TASK)
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

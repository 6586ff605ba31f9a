//! key_reap, key_tombstone, inbox_reap, dedupe_reap and dead_reap: one statement each, on the extension's own tables.
//! Each statement processes the oldest due rows (dead_reap: of each subscriber) and skips locked rows.

use crate::clock;
use crate::error::Result;
use crate::settings;
use crate::spi::{self, Kept, column, number};
use crate::swept::Swept;
use pgrx::pg_sys::{self, Datum, INT8OID, TIMESTAMPTZOID};
use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, Ordering};

// $1 now, $2 the bound, $3 the earliest due time (not dead_reap), $4 (for keys) the default of gone_for in
// microseconds. Each answers how many rows it processed, whether it reached the bound, and (not dead_reap) the latest
// due time. The subquery on v skips a key that changed after the statement's snapshot. Such a key may have new steps,
// which the DELETE would not see.

// Deletes due keys with their steps. The CTE "later" sets the next reap_at of the other keys. For a finished key it is
// the end of gone_for, or a limit that comes earlier. The limit is a day from now. For a key that expired n > 1 days
// ago, the limit is n days from now. With these limits, a lowered gone_for frees space soon, and a long gone_for costs
// few writes. For an unfinished key the next reap_at is a ttl from now, at least ten minutes. A running key moves into
// the lane PENDING, because key_abandon may have missed it when a clock stepped back. The keys of the CTE "later" count
// towards the bound, but not as processed.
const KEY_REAP: &CStr = c"
    WITH locked AS MATERIALIZED (
        SELECT k.id, k.ctid, k.reap_at, k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at,
               COALESCE((SELECT s.gone_for_us FROM once.scope s WHERE s.scope = k.scope), $4)
               * interval '1 microsecond' AS gone_for
          FROM once.key k WHERE k.reap_stage = '0' AND k.reap_at BETWEEN $3 AND $1
         ORDER BY k.reap_at LIMIT $2 FOR UPDATE SKIP LOCKED),
    looked AS MATERIALIZED (
        SELECT l.id, l.expires_at + l.gone_for <= $1 IS TRUE AS is_due,
               LEAST(l.expires_at + l.gone_for, $1 + GREATEST(interval '1 day', $1 - l.expires_at)) AS later_at
          FROM locked l WHERE (SELECT true FROM once.key v WHERE v.ctid = l.ctid)),
    later AS (
        UPDATE once.key k
           SET reap_at = CASE WHEN k.finished_at IS NULL
                              THEN $1 + GREATEST(k.ttl_us * interval '1 microsecond', interval '10 minutes')
                              ELSE (SELECT o.later_at FROM looked o WHERE o.id = k.id) END,
               look_lane = CASE k.status WHEN 'r' THEN '1' ELSE k.look_lane END,
               look_at = CASE WHEN k.status = 'r' AND k.look_lane = '0' THEN k.lease_until ELSE k.look_at END
         WHERE k.id = ANY (ARRAY(SELECT id FROM looked WHERE NOT is_due))),
    steps AS (DELETE FROM once.key_step WHERE key_id = ANY (ARRAY(SELECT id FROM looked WHERE is_due))),
    reaped AS (DELETE FROM once.key WHERE id = ANY (ARRAY(SELECT id FROM looked WHERE is_due)) RETURNING 1)
    SELECT pg_catalog.count(*), (SELECT pg_catalog.count(*) FROM locked) >= $2,
           (SELECT pg_catalog.max(reap_at) FROM locked) FROM reaped";

// Deletes the steps of due keys. The CTE "over" deletes keys whose gone_for has ended, "emptied" empties the others.
const KEY_TOMBSTONE: &CStr = c"
    WITH locked AS MATERIALIZED (
        SELECT k.id, k.ctid, k.reap_at, k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at,
               COALESCE((SELECT s.gone_for_us FROM once.scope s WHERE s.scope = k.scope), $4)
               * interval '1 microsecond' AS gone_for
          FROM once.key k WHERE k.reap_stage = '1' AND k.reap_at BETWEEN $3 AND $1
         ORDER BY k.reap_at LIMIT $2 FOR UPDATE SKIP LOCKED),
    due AS MATERIALIZED (
        SELECT l.id, l.expires_at + l.gone_for <= $1 IS TRUE AS is_over,
               LEAST(l.expires_at + l.gone_for, $1 + GREATEST(interval '1 day', $1 - l.expires_at)) AS later_at
          FROM locked l WHERE (SELECT true FROM once.key v WHERE v.ctid = l.ctid)),
    steps AS (DELETE FROM once.key_step WHERE key_id = ANY (ARRAY(SELECT id FROM due))),
    over AS (DELETE FROM once.key WHERE id = ANY (ARRAY(SELECT id FROM due WHERE is_over)) RETURNING 1),
    emptied AS (
        UPDATE once.key k
           SET status = 'g', reap_stage = '0', reap_at = (SELECT d.later_at FROM due d WHERE d.id = k.id),
               state = NULL, request = NULL, note = NULL, holder = NULL,
               response_code = NULL, response_body = NULL, response_headers = NULL
         WHERE k.id = ANY (ARRAY(SELECT id FROM due WHERE NOT is_over)) RETURNING 1)
    SELECT (SELECT pg_catalog.count(*) FROM emptied) + (SELECT pg_catalog.count(*) FROM over),
           (SELECT pg_catalog.count(*) FROM locked) >= $2, (SELECT pg_catalog.max(reap_at) FROM locked)";

const INBOX_REAP: &CStr = c"
    WITH due AS MATERIALIZED (
        SELECT i.id, i.expires_at FROM once.inbox i WHERE i.expires_at BETWEEN $3 AND $1
         ORDER BY i.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED),
    reaped AS (DELETE FROM once.inbox WHERE id = ANY (ARRAY(SELECT id FROM due)) RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2, (SELECT pg_catalog.max(expires_at) FROM due) FROM reaped";

const DEDUPE_REAP: &CStr = c"
    WITH due AS MATERIALIZED (
        SELECT d.ctid, d.until FROM once.dedupe d WHERE d.until BETWEEN $3 AND $1
         ORDER BY d.until LIMIT $2 FOR UPDATE SKIP LOCKED),
    reaped AS (DELETE FROM once.dedupe WHERE ctid = ANY (ARRAY(SELECT ctid FROM due)) RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2, (SELECT pg_catalog.max(until) FROM due) FROM reaped";

const DEAD_REAP: &CStr = c"
    WITH due AS MATERIALIZED (
        SELECT d.subscriber_id, d.event_id
          FROM once.subscriber s CROSS JOIN LATERAL (
               SELECT l.subscriber_id, l.event_id FROM once.dead l
                WHERE l.subscriber_id = s.subscriber_id AND l.died_at <= $1 - s.dead_for_us * interval '1 microsecond'
                ORDER BY l.died_at LIMIT $2 FOR UPDATE SKIP LOCKED) d
         LIMIT $2),
    attempts AS (DELETE FROM once.delivery a USING due d
                  WHERE a.subscriber_id = d.subscriber_id AND a.event_id = d.event_id),
    reaped AS (DELETE FROM once.dead l USING due d
                WHERE l.subscriber_id = d.subscriber_id AND l.event_id = d.event_id RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2 FROM reaped";

const TYPES: &[pg_sys::Oid] = &[TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID, INT8OID];
/// -infinity.
const START: i64 = i64::MIN;

/// A statement, and the due time from which the backend's next run reads. A run that reaches its bound stores its
/// latest due time. The next run then skips the index entries of the deleted rows, which an old snapshot may keep.
pub struct Reap {
    statement: Kept,
    from: AtomicI64,
}

pub static DELETE_KEYS: Reap = Reap::new(KEY_REAP, TYPES);
pub static EMPTY_LARGE_KEYS: Reap = Reap::new(KEY_TOMBSTONE, TYPES);
pub static INBOX: Reap = Reap::new(INBOX_REAP, TYPES.split_at(3).0);
pub static DEDUPE: Reap = Reap::new(DEDUPE_REAP, TYPES.split_at(3).0);
pub static DEAD: Reap = Reap::new(DEAD_REAP, TYPES.split_at(3).0);

impl Reap {
    const fn new(sql: &'static CStr, types: &'static [pg_sys::Oid]) -> Reap {
        Reap {
            statement: Kept::new(sql, types),
            from: AtomicI64::new(START),
        }
    }

    /// Processes at most `max` rows. `more` is the statement's $4, if it has one.
    pub fn run(&'static self, max: i64, more: &[i64]) -> Result<Swept> {
        let mut swept = Swept::default();
        // The second pass, from -infinity, finds rows that were locked or that a transaction committed late.
        for from in [self.from.swap(START, Ordering::Relaxed), START] {
            let args = [&[clock::now_us()?, max - swept.done, from], more].concat();
            let args: Vec<_> = args.into_iter().map(|n| Some(Datum::from(n))).collect();
            let rows = settings::by_index(|| spi::query_latest(&self.statement, &args))?;
            let number = |i| rows.first().map_or(0, |row| number(row, i));
            swept.done += number(0);
            swept.more = number(1) != 0;
            if swept.more {
                let end = rows.first().and_then(|row| column(row, 2));
                let end = end.map_or(START, |at| at.value() as i64);
                self.from.store(end, Ordering::Relaxed);
            }
            if swept.more || from == START {
                break;
            }
        }
        Ok(swept)
    }
}

//! Deletes copies of events that no subscriber needs any more, and old batches with their receipts and failed attempts.

use super::need::{self, EventPlace, Needs, place, place_arrays};
use crate::clock;
use crate::error::Result;
use crate::outbox::event::{Col, Event, KEPT};
use crate::outbox::topic::MAX_LEASE_LIFE_US;
use crate::settings;
use crate::spi::{self, Kept, number};
use crate::swept::Swept;
use crate::table::Table;
use pgrx::pg_sys::{self, Datum, INT8OID, TIMESTAMPTZOID};
use std::ffi::CStr;

/// [`kept`] reads about `max` times this many copies. [`batches`] stops after `max` times this many redelivered events.
const READ_PER_ROW: usize = 10;

// SKIP LOCKED: a copy that a redrive has locked is still needed (dead.rs).
const LOCK_KEPT: &CStr = c"
    SELECT k.topic_id, k.lane, k.event_id, k.xid, k.series
      FROM once.event_kept k JOIN unnest($1, $2, $3) n (topic_id, lane, event_id)
           ON k.topic_id = n.topic_id AND k.lane = n.lane AND k.event_id = n.event_id
     ORDER BY k.topic_id, k.lane, k.event_id FOR UPDATE OF k SKIP LOCKED";

const DELETE_KEPT: &CStr = c"
    DELETE FROM once.event_kept k USING unnest($1, $2, $3) n (topic_id, lane, event_id)
     WHERE k.topic_id = n.topic_id AND k.lane = n.lane AND k.event_id = n.event_id";

// $1 now; $2 the limit of batches; $3 the default of max_lease_life; $4 the real time, or the largest bigint while
// once.fake_now is set. Tokens come from the real clock, and are compared with $4. $5: after this many
// redelivered events no further batch is deleted.
// The last row of a lane in once.batch stores how far the lane is read, so the batch of that row stays. A batch is
// deleted whole, under the lock of its head (batch.rs): a remaining part would look like an open batch. The failed
// attempts at an event are deleted with the batch in which it was acked; that batch has `redelivered` set.
const BATCHES: &CStr = c"
    WITH over AS MATERIALIZED (
        SELECT b.subscriber_id, b.token,
               (SELECT COALESCE(sum(pg_catalog.cardinality(p.event_ids)), 0) FROM once.batch p
                 WHERE p.subscriber_id = b.subscriber_id AND p.token = b.token AND p.redelivered) AS again
          FROM once.subscriber s
               CROSS JOIN LATERAL (SELECT $1 - COALESCE(s.max_lease_life_us, $3) * interval '1 microsecond') l (until)
               CROSS JOIN LATERAL (
                   SELECT o.token, o.lane FROM once.batch o
                    WHERE o.subscriber_id = s.subscriber_id AND o.taken_at <= l.until
                      AND o.token <= $4 - COALESCE(s.max_lease_life_us, $3)
                    ORDER BY o.token, o.lane LIMIT $2 + 2000) old
               JOIN once.batch b ON b.subscriber_id = s.subscriber_id AND b.token = old.token AND b.lane = old.lane
         WHERE NOT EXISTS (SELECT FROM once.batch h
                            WHERE h.subscriber_id = b.subscriber_id AND h.token = b.token AND h.lane < b.lane)
           AND (EXISTS (SELECT FROM once.receipt r
                         WHERE r.subscriber_id = b.subscriber_id AND r.token = b.token
                           AND r.remaining = 0 AND r.at <= l.until)
                OR NOT EXISTS (SELECT FROM once.batch p
                                WHERE p.subscriber_id = b.subscriber_id AND p.token = b.token
                                  AND pg_catalog.cardinality(p.event_ids) > 0))
           AND NOT EXISTS (SELECT FROM once.batch p
                            WHERE p.subscriber_id = b.subscriber_id AND p.token = b.token
                              AND NOT EXISTS (SELECT FROM once.batch n
                                               WHERE n.subscriber_id = p.subscriber_id AND n.lane = p.lane
                                                 AND n.token > p.token))
         LIMIT $2 FOR UPDATE OF b SKIP LOCKED),
    now AS MATERIALIZED (
        SELECT o.subscriber_id, o.token, o.again
          FROM (SELECT v.*, sum(v.again) OVER (ORDER BY v.subscriber_id, v.token) AS so_far FROM over v) o
         WHERE o.so_far - o.again < $5),
    not_acked AS (
        SELECT o.subscriber_id, o.token, i.event_id
          FROM now o
               JOIN once.receipt r ON r.subscriber_id = o.subscriber_id AND r.token = o.token
               CROSS JOIN LATERAL unnest(r.event_ids) i (event_id)
         WHERE o.again > 0 AND r.kind <> 'a'),
    acked AS MATERIALIZED (
        SELECT o.subscriber_id, i.event_id
          FROM now o
               JOIN once.batch p ON p.subscriber_id = o.subscriber_id AND p.token = o.token
               CROSS JOIN LATERAL unnest(p.event_ids) i (event_id)
         WHERE p.redelivered
           AND NOT EXISTS (SELECT FROM once.receipt r
                            WHERE r.subscriber_id = o.subscriber_id AND r.token = o.token
                              AND r.kind <> 'a' AND r.event_ids IS NULL)
           AND NOT EXISTS (SELECT FROM not_acked n
                            WHERE n.subscriber_id = o.subscriber_id AND n.token = o.token
                              AND n.event_id = i.event_id)),
    attempts AS (
        DELETE FROM once.delivery d USING acked a
         WHERE d.subscriber_id = a.subscriber_id AND d.event_id = a.event_id),
    receipts AS (
        DELETE FROM once.receipt r USING now o WHERE r.subscriber_id = o.subscriber_id AND r.token = o.token),
    gone AS (
        DELETE FROM once.batch b USING now o
         WHERE b.subscriber_id = o.subscriber_id AND b.token = o.token RETURNING 1)
    SELECT pg_catalog.count(*), (SELECT pg_catalog.count(*) FROM over) > (SELECT pg_catalog.count(*) FROM now)
      FROM gone";

const PLACES: &[pg_sys::Oid] = &[
    pg_sys::INT4ARRAYOID,
    pg_sys::INT4ARRAYOID,
    pg_sys::INT8ARRAYOID,
];

static LOCKED: Kept = Kept::new(LOCK_KEPT, PLACES);
static DELETED: Kept = Kept::new(DELETE_KEPT, PLACES);
static BATCHES_OVER: Kept = Kept::new(
    BATCHES,
    &[TIMESTAMPTZOID, INT8OID, INT8OID, INT8OID, INT8OID],
);

/// Deletes copies of events that no subscriber needs any more.
pub fn kept(max: i64) -> Result<Swept> {
    let found = unneeded(max as usize)?;
    if found.is_empty() {
        return Ok(Swept::default());
    }
    // Checked again under the lock: a redrive may have committed since.
    let mut needs = Needs::begin()?;
    let mut gone = Vec::new();
    for row in spi::query_latest(&LOCKED, &place_arrays(&found).map(Some))? {
        let mut event = Event::empty();
        event.put_i32(Col::TopicId, number(&row, 0) as i32);
        event.put_i32(Col::Lane, number(&row, 1) as i32);
        event.put_i64(Col::EventId, number(&row, 2));
        event.put_i64(Col::Xid, number(&row, 3));
        event.put_i32(Col::Series, number(&row, 4) as i32);
        if !needs.wants(&event)? {
            gone.push(place(&event));
        }
    }
    if !gone.is_empty() {
        spi::query_latest(&DELETED, &place_arrays(&gone).map(Some))?;
    }
    Ok(Swept {
        done: gone.len() as i64,
        // If other transactions have locked all candidates, this sweep stops, and the next sweep tries again.
        more: found.len() as i64 >= max && !gone.is_empty(),
        ..Swept::default()
    })
}

/// Candidates: at most `max` copies that nobody needs, from consecutive pages, the first page chosen by the clock.
fn unneeded(max: usize) -> Result<Vec<EventPlace>> {
    let table = Table::to_read(KEPT.table)?;
    let all = table.pages();
    if all == 0 {
        return Ok(Vec::new());
    }
    let first = (clock::real_us() % i64::from(all)) as u32;
    let pages = (first..all).chain(0..first).take(max);
    let mut needs = Needs::begin()?;
    let mut found = Vec::new();
    for event in need::events_on(&table, pages, max.saturating_mul(READ_PER_ROW)) {
        if found.len() < max && !needs.wants(&event)? {
            found.push(place(&event));
        }
    }
    Ok(found)
}

/// Deletes batches that ended at least max_lease_life ago, their receipts, and the failed attempts at events that were
/// acked in them.
pub fn batches(max: i64) -> Result<Swept> {
    let real = match settings::fake_now()? {
        Some(_) => i64::MAX,
        None => clock::real_us(),
    };
    let args = [
        clock::now_us()?,
        max,
        MAX_LEASE_LIFE_US,
        real,
        max.saturating_mul(READ_PER_ROW as i64),
    ];
    let rows = spi::query_latest(&BATCHES_OVER, &args.map(|n| Some(Datum::from(n))))?;
    let number = |i| rows.first().map_or(0, |row| number(row, i));
    Ok(Swept {
        done: number(0),
        more: number(0) >= max || number(1) != 0,
        ..Swept::default()
    })
}

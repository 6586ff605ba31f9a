//! `verify` checks the invariants between the extension's own tables, each by one statement. `cancel_audit` checks the
//! sums of money.

use crate::call::Call;
use crate::error::Result;
use crate::row::{self, Rows};
use crate::settings;
use crate::spi::{self, Kept, column};
use pgrx::pg_sys::{Datum, INT8OID};
use std::ffi::CStr;

const MOST_VERIFIED: i32 = 1_000_000;

// A statement checks up to $1 rows. STORED checks up to $1 rows of once.retry, and up to $1 events of batches.

const ANSWERS: &CStr = c"
    SELECT pg_catalog.format('key %L of scope %L has status %s', k.key, k.scope, k.status)
      FROM (SELECT * FROM once.key LIMIT $1) k
     WHERE k.status <> 'g'
       AND ((k.status IN ('c', 'a')) IS DISTINCT FROM (k.finished_at IS NOT NULL)
            OR (k.status IN ('c', 'a')) IS DISTINCT FROM (k.response_code IS NOT NULL))
     LIMIT 10";

const STEPS: &CStr = c"
    SELECT pg_catalog.format('step %L has key_id %s', s.step, s.key_id)
      FROM (SELECT * FROM once.key_step LIMIT $1) s
     WHERE NOT EXISTS (SELECT FROM once.key k WHERE k.id = s.key_id)
     LIMIT 10";

const LEASES: &CStr = c"
    SELECT pg_catalog.format('the lease of row %L of machine %L', l.row_id, l.machine)
      FROM (SELECT * FROM once.action_lease LIMIT $1) l
     WHERE NOT EXISTS (SELECT FROM once.machine m WHERE m.machine = l.machine)
        OR (l.state = 'h') IS DISTINCT FROM (l.ended_at IS NULL)
     LIMIT 10";

const SUBSCRIBERS: &CStr = c"
    SELECT pg_catalog.format('topic %L counts %s subscribers and has %s', t.topic, t.subscribers, n.number)
      FROM (SELECT * FROM once.topic LIMIT $1) t
           CROSS JOIN LATERAL (SELECT pg_catalog.count(*) FROM once.subscriber s WHERE s.topic_id = t.topic_id) n (number)
     WHERE n.number <> t.subscribers
     LIMIT 10";

const FIRST: &CStr = c"
    SELECT pg_catalog.format('event %s of order_key %L, subscriber %s', r.event_id, r.order_key, r.subscriber_id)
      FROM (SELECT * FROM once.retry LIMIT $1) r
     WHERE r.due_at = 'infinity' AND r.token IS NULL
       AND NOT EXISTS (SELECT FROM once.retry o
                        WHERE o.subscriber_id = r.subscriber_id AND o.lane = r.lane AND o.order_key = r.order_key
                          AND o.event_id < r.event_id)
     LIMIT 10";

// Each event in once.retry or in a batch without receipts must be stored. A delayed or redriven event is stored in
// lane -1.
const STORED: &CStr = c"
    SELECT pg_catalog.format('event %s of topic %s', n.event_id, n.topic_id)
      FROM ((SELECT r.topic_id, r.lane, r.event_id FROM once.retry r LIMIT $1)
            UNION ALL
            (SELECT s.topic_id, b.lane, i.event_id
               FROM (SELECT * FROM once.batch LIMIT $1) b
                    JOIN once.subscriber s ON s.subscriber_id = b.subscriber_id
                    CROSS JOIN LATERAL pg_catalog.unnest(b.event_ids) i (event_id)
              WHERE NOT EXISTS (SELECT FROM once.receipt c
                                 WHERE c.subscriber_id = b.subscriber_id AND c.token = b.token)
              LIMIT $1)) n
     WHERE NOT EXISTS (SELECT FROM once.event_0 e
                        WHERE e.topic_id = n.topic_id AND e.lane IN (n.lane, -1) AND e.event_id = n.event_id)
       AND NOT EXISTS (SELECT FROM once.event_1 e
                        WHERE e.topic_id = n.topic_id AND e.lane IN (n.lane, -1) AND e.event_id = n.event_id)
       AND NOT EXISTS (SELECT FROM once.event_2 e
                        WHERE e.topic_id = n.topic_id AND e.lane IN (n.lane, -1) AND e.event_id = n.event_id)
       AND NOT EXISTS (SELECT FROM once.event_3 e
                        WHERE e.topic_id = n.topic_id AND e.lane IN (n.lane, -1) AND e.event_id = n.event_id)
       AND NOT EXISTS (SELECT FROM once.event_kept e
                        WHERE e.topic_id = n.topic_id AND e.lane IN (n.lane, -1) AND e.event_id = n.event_id)
     LIMIT 10";

static KEY_ANSWERS: Kept = Kept::new(ANSWERS, &[INT8OID]);
static KEY_STEPS: Kept = Kept::new(STEPS, &[INT8OID]);
static ACTION_LEASES: Kept = Kept::new(LEASES, &[INT8OID]);
static SUBSCRIBERS_COUNTED: Kept = Kept::new(SUBSCRIBERS, &[INT8OID]);
static FIRST_OF_KEY: Kept = Kept::new(FIRST, &[INT8OID]);
static EVENTS_STORED: Kept = Kept::new(STORED, &[INT8OID]);

static INVARIANTS: [(&str, &Kept); 6] = [
    (
        "a finished key has its answer, and no other key has one",
        &KEY_ANSWERS,
    ),
    ("a step belongs to a key", &KEY_STEPS),
    (
        "a lease belongs to a machine and is held until it ends",
        &ACTION_LEASES,
    ),
    ("a topic counts its subscribers", &SUBSCRIBERS_COUNTED),
    (
        "the first retried event of an order_key does not wait for another event",
        &FIRST_OF_KEY,
    ),
    (
        "an event in a batch or in once.retry is stored",
        &EVENTS_STORED,
    ),
];

/// `once.verify`.
pub fn verify(call: &Call) -> Result<Datum> {
    let max = i64::from(call.limit(0, "max", MOST_VERIFIED)?);
    let rows = Rows::begin(call);
    for (name, statement) in INVARIANTS {
        let found = settings::by_index(|| spi::query_once(statement, &[Some(Datum::from(max))]))?;
        for violation in &found {
            rows.push(&[Some(row::text(name.as_bytes())), column(violation, 0)]);
        }
    }
    Ok(call.return_null())
}

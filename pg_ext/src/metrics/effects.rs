//! The share of recent attempts at side effects that failed.

use super::Sheet;
use crate::clock;
use crate::error::Result;
use crate::settings;
use crate::spi::{self, Kept, float, text};
use pgrx::pg_sys::{Datum, INT8OID, TIMESTAMPTZOID};
use std::ffi::CStr;

/// A call reads at most the newest FAILURES failures of all subscribers together. A subscriber with such a failure is
/// failing. Of each failing subscriber, a call reads at most the newest RECEIPTS receipts.
const FAILURES: i64 = 4_000;
const RECEIPTS: i64 = 300;

// $1 now, $2 and $3 the bounds. Failures and acks are counted over the same time: five minutes, or less where a bound
// is reached. A receipt of a whole batch has no event_ids. The kind `error` has a row even while nothing fails.
const RATES: &CStr = c"
    WITH failed AS MATERIALIZED (
        SELECT d.subscriber_id, d.at, d.kind FROM once.delivery d
         WHERE d.at > $1 - interval '5 minutes' ORDER BY d.at DESC LIMIT $2),
    failing AS (SELECT DISTINCT f.subscriber_id FROM failed f),
    newest AS MATERIALIZED (
        SELECT f.subscriber_id, n.at, n.events
          FROM failing f CROSS JOIN LATERAL (
               SELECT r.at, CASE r.kind WHEN 'a' THEN COALESCE(pg_catalog.cardinality(r.event_ids), r.acked)
                                        ELSE 0 END
                 FROM once.receipt r WHERE r.subscriber_id = f.subscriber_id
                ORDER BY r.token DESC, r.n DESC LIMIT $3) n (at, events)),
    begin AS MATERIALIZED (
        SELECT f.subscriber_id,
               GREATEST($1 - interval '5 minutes',
                        (SELECT min(o.at) FROM failed o HAVING pg_catalog.count(*) >= $2),
                        (SELECT min(n.at) FROM newest n WHERE n.subscriber_id = f.subscriber_id
                         HAVING pg_catalog.count(*) >= $3)) AS at
          FROM failing f),
    counted AS (
        SELECT s.subscriber_id, 'error' AS kind, 0 AS failures FROM once.subscriber s
        UNION ALL
        SELECT f.subscriber_id, f.kind, 1 FROM failed f JOIN begin b ON b.subscriber_id = f.subscriber_id
         WHERE f.at > b.at AND f.kind <> 'released'),
    kinds AS (
        SELECT c.subscriber_id, c.kind, sum(c.failures) AS failures FROM counted c GROUP BY c.subscriber_id, c.kind)
    SELECT t.topic, s.subscriber, k.kind,
           k.failures::double precision
           / GREATEST(sum(k.failures) OVER (PARTITION BY s.subscriber_id) + COALESCE(a.events, 0), 1)
      FROM once.subscriber s
           JOIN once.topic t ON t.topic_id = s.topic_id
           JOIN kinds k ON k.subscriber_id = s.subscriber_id
           LEFT JOIN (SELECT n.subscriber_id, sum(n.events)
                        FROM newest n JOIN begin b ON b.subscriber_id = n.subscriber_id
                       WHERE n.at > b.at GROUP BY n.subscriber_id) a (subscriber_id, events)
             ON a.subscriber_id = s.subscriber_id
     ORDER BY t.topic, s.subscriber, k.kind";

static OF_SUBSCRIBERS: Kept = Kept::new(RATES, &[TIMESTAMPTZOID, INT8OID, INT8OID]);

/// `side_effect_failure_rate` by topic, subscriber and kind.
pub fn failures(sheet: &Sheet) -> Result<()> {
    let args = [clock::now_us()?, FAILURES, RECEIPTS].map(|n| Some(Datum::from(n)));
    for row in settings::by_index(|| spi::query(&OF_SUBSCRIBERS, &args))? {
        let (topic, subscriber, kind) = (text(&row, 0), text(&row, 1), text(&row, 2));
        sheet.put(
            "side_effect_failure_rate",
            &[("topic", &*topic), ("subscriber", &*subscriber), ("kind", &*kind)],
            float(&row, 3),
            "Share of the attempts at the subscriber's events that failed with this kind in the last five minutes; 0 without attempts. A call reads at most the newest 4000 failures of all subscribers, and the newest 300 receipts of each subscriber with failures. If it reaches a limit, the share may cover a shorter time.",
        )?;
    }
    Ok(())
}

//! Dead letters, paused subscribers, and events whose transaction id this server has not assigned yet.

use super::Report;
use crate::call::from_utf8;
use crate::error::Result;
use crate::incarnation;
use crate::metrics::dead;
use crate::row;
use crate::spi::Kept;
use pgrx::pg_sys::{BOOLOID, Datum, INT8OID, TEXTOID, TIMESTAMPTZOID};
use std::ffi::CStr;

/// Up to this many subscribers get a row for their dead letters.
const MOST_SUBSCRIBERS: usize = 100;

// $1 topic, $2 subscriber, $3 how many died within the last hour, $4 when the first of all dead letters
// died, $5 whether $3 is only a lower bound.
const DEAD: &CStr = c"
    SELECT CASE WHEN $3 > 0 THEN 'warning' ELSE 'info' END,
           CASE WHEN $3 > 0
                THEN pg_catalog.format('dead letters are growing: topic \"%s\", subscriber \"%s\"', $1, $2)
                ELSE pg_catalog.format('there are dead letters: topic \"%s\", subscriber \"%s\"', $1, $2) END,
           pg_catalog.format('%s%s died within the last hour, the first of all at %s',
                             $3, CASE WHEN $5 THEN ' or more' END, COALESCE($4::text, '?')),
           pg_catalog.format('Read why with once.outbox_dead(%L, %L); once the cause is mended, once.outbox_redrive sends them again (100 a call, or max).', $1, $2)";

const PAUSED: &CStr = c"
    SELECT 'info', pg_catalog.format('paused: topic \"%s\", subscriber \"%s\"', t.topic, s.subscriber),
           'Its takes answer no rows, and its backlog grows.',
           pg_catalog.format('Go on with: SELECT once.subscriber_set(%L, %L, ''{\"paused\": false}'');', t.topic, s.subscriber)
      FROM once.subscriber s JOIN once.topic t ON t.topic_id = s.topic_id
     WHERE s.paused ORDER BY t.topic, s.subscriber LIMIT 100";

// $1 the present incarnation. Reads the newest transactions' events in each segment and in once.event_kept.
const FUTURE: &CStr = c"
    SELECT 'error', 'events come from the future',
           pg_catalog.format('event %s was emitted by transaction %s, which this server has not begun', e.event_id, e.xid),
           'Rows of another cluster were loaded into this one. Before clients connect: SELECT once.incarnation_renew();'
      FROM ((SELECT xid, event_id, series FROM once.event_0 ORDER BY xid DESC LIMIT 100) UNION ALL
            (SELECT xid, event_id, series FROM once.event_1 ORDER BY xid DESC LIMIT 100) UNION ALL
            (SELECT xid, event_id, series FROM once.event_2 ORDER BY xid DESC LIMIT 100) UNION ALL
            (SELECT xid, event_id, series FROM once.event_3 ORDER BY xid DESC LIMIT 100) UNION ALL
            (SELECT xid, event_id, series FROM once.event_kept ORDER BY xid DESC LIMIT 100)) e
           JOIN (SELECT s.series, s.incarnation FROM once.series s ORDER BY s.series DESC LIMIT 1) p
             ON p.series = e.series AND p.incarnation = $1
     WHERE e.xid >= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint
       AND e.xid IS DISTINCT FROM pg_catalog.pg_current_xact_id_if_assigned()::text::bigint
     ORDER BY e.xid DESC LIMIT 1";

static SUBSCRIBERS_PAUSED: Kept = Kept::new(PAUSED, &[]);
static FROM_THE_FUTURE: Kept = Kept::new(FUTURE, &[INT8OID]);
static LETTERS: Kept = Kept::new(DEAD, &[TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID, BOOLOID]);

pub fn ask(report: &Report) -> Result<()> {
    report.ask(
        &FROM_THE_FUTURE,
        &[Some(Datum::from(incarnation::present()?))],
    )?;
    report.ask(&SUBSCRIBERS_PAUSED, &[])?;
    let dead = dead::count()?;
    for letters in dead.iter().filter(|l| l.count > 0.0).take(MOST_SUBSCRIBERS) {
        let args = [
            Some(row::text(&from_utf8(&letters.topic))),
            Some(row::text(&from_utf8(&letters.subscriber))),
            Some(Datum::from(letters.within_an_hour as i64)),
            letters.first,
            Some(Datum::from(
                letters.within_an_hour >= dead::MOST_COUNTED as f64,
            )),
        ];
        report.ask(&LETTERS, &args)?;
    }
    Ok(())
}

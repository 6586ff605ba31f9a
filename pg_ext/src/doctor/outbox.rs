//! Dead letters.

use super::Report;
use crate::clock;
use crate::error::Result;
use crate::spi::Kept;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

const DEAD: &CStr = c"
    SELECT CASE WHEN l.n > 0 THEN 'warning' ELSE 'info' END,
           CASE WHEN l.n > 0
                THEN pg_catalog.format('dead letters are growing: topic \"%s\", subscriber \"%s\"', t.topic, s.subscriber)
                ELSE pg_catalog.format('there are dead letters: topic \"%s\", subscriber \"%s\"', t.topic, s.subscriber) END,
           pg_catalog.format('%s died within the last hour, the first of all at %s',
                             CASE WHEN l.n > 1000 THEN 'more than 1000' ELSE l.n::text END, f.died_at),
           pg_catalog.format('Read why with once.outbox_dead(%L, %L); once.outbox_redrive sends them again once the cause is mended.', t.topic, s.subscriber)
      FROM once.subscriber s
           JOIN once.topic t ON t.topic_id = s.topic_id
           CROSS JOIN LATERAL (
               SELECT d.died_at FROM once.dead d WHERE d.subscriber_id = s.subscriber_id
                ORDER BY d.died_at LIMIT 1) f
           CROSS JOIN LATERAL (
               SELECT pg_catalog.count(*) FROM (
                   SELECT FROM once.dead d
                    WHERE d.subscriber_id = s.subscriber_id AND d.died_at > $1 - interval '1 hour'
                    LIMIT 1001) y) l (n)
     ORDER BY t.topic, s.subscriber LIMIT 100";

thread_local! {
    static LETTERS: Kept = const { Kept::new(DEAD, &[pg_sys::TIMESTAMPTZOID]) };
}

pub fn ask(report: &Report) -> Result<()> {
    report.ask(&LETTERS, &[Some(Datum::from(clock::now_us()?))])
}

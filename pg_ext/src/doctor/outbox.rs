//! Dead letters.

use super::Report;
use crate::error::Result;
use crate::metrics::dead::Dead;
use crate::outbox::topic::all_subscribers;
use crate::row;
use crate::spi::Kept;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

/// Subscribers that are told.
const MOST: usize = 100;

// $1 topic, $2 subscriber, $3 how many died within the last hour ($5: or more), $4 when the first of all died.
const DEAD: &CStr = c"
    SELECT CASE WHEN $3 > 0 THEN 'warning' ELSE 'info' END,
           CASE WHEN $3 > 0
                THEN pg_catalog.format('dead letters are growing: topic \"%s\", subscriber \"%s\"', $1, $2)
                ELSE pg_catalog.format('there are dead letters: topic \"%s\", subscriber \"%s\"', $1, $2) END,
           pg_catalog.format('%s%s died within the last hour, the first of all at %s',
                             $3, CASE WHEN $5 THEN ' or more' END, COALESCE($4::text, '?')),
           pg_catalog.format('Read why with once.outbox_dead(%L, %L); once.outbox_redrive sends them again once the cause is mended.', $1, $2)";

thread_local! {
    static LETTERS: Kept = const { Kept::new(DEAD, &[
        pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID, pg_sys::BOOLOID,
    ]) };
}

pub fn ask(report: &Report) -> Result<()> {
    let subscribers = all_subscribers()?;
    let dead = Dead::look(&subscribers)?;
    let there = dead.letters.iter().filter(|(_, l)| l.count > 0.0);
    for (i, letters) in there.take(MOST) {
        let subscriber = &subscribers[*i];
        let args = [
            Some(row::text(&subscriber.topic.name)),
            Some(row::text(&subscriber.name)),
            Some(Datum::from(letters.lately as i64)),
            letters.first.map(Datum::from),
            Some(Datum::from(letters.or_more)),
        ];
        report.ask(&LETTERS, &args)?;
    }
    Ok(())
}

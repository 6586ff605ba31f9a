//! Dead letters, and batches that cannot be put back.

use super::Report;
use crate::error::Result;
use crate::metrics::dead::Dead;
use crate::outbox::batch::{self, Batch};
use crate::outbox::requeue;
use crate::outbox::topic::all_subscribers;
use crate::row;
use crate::spi::Kept;
use crate::table::{Snapshot, Table};
use pgrx::pg_sys::{self, Datum};
use std::collections::HashSet;
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

// $1 topic, $2 subscriber, $3 how many, $4 the most attempts, $5 when the next of these is tried, $6 the task.
const PUT_OFF: &CStr = c"
    SELECT 'warning',
           pg_catalog.format('topic \"%s\", subscriber \"%s\": %s batches could not be put back and were put off', $1, $2, $3),
           pg_catalog.format('tried up to %s times, next at %s; the last failure of %s said: %s',
                             $4, $5, $6, COALESCE((SELECT j.last_error FROM once.janitor j
                                                    WHERE j.task = $6 AND j.machine = ''), '?')),
           'Their events wait for it. Mend what the message names (the server''s log has a warning for each batch); the sweep tries again by itself.'";

thread_local! {
    static WERE_PUT_OFF: Kept = const { Kept::new(PUT_OFF, &[
        pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT8OID, pg_sys::INT4OID, pg_sys::TIMESTAMPTZOID, pg_sys::TEXTOID,
    ]) };
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

/// Batches that no take and no sweep could put back.
pub fn ask_batches(report: &Report) -> Result<()> {
    let snapshot = Snapshot::latest();
    let batches = Table::to_read(batch::TABLE)?;
    let takers: HashSet<i32> = HashSet::from_iter(batch::takers(&batches, &snapshot)?);
    let mut told = 0;
    for subscriber in all_subscribers()? {
        if !takers.contains(&subscriber.id) {
            continue;
        }
        let mut batches = requeue::out(&subscriber, &snapshot)?;
        batches.retain(|batch| batch.failures() > 0);
        let Some(next) = batches.iter().map(Batch::lease_until).min() else {
            continue;
        };
        let most = batches.iter().map(Batch::failures).max().unwrap_or(0);
        let args = [
            Some(row::text(&subscriber.topic.name)),
            Some(row::text(&subscriber.name)),
            Some(Datum::from(batches.len() as i64)),
            Some(Datum::from(most)),
            Some(Datum::from(next)),
            Some(row::text(requeue::TASK.as_bytes())),
        ];
        report.ask(&WERE_PUT_OFF, &args)?;
        told += 1;
        if told == MOST {
            break;
        }
    }
    Ok(())
}

//! Due work of the sweep tasks outbox_requeue and outbox_retire, for `janitor_status` and the background worker.

use super::batch::Batch;
use super::event::{self, Col, Event, SEGMENTS};
use super::overdue;
use super::receipt::Ledger;
use super::topic;
use crate::error::Result;
use crate::swept::DueWork;
use crate::table::{Snapshot, Table};

/// Counts the events that batches with an expired lease still hold. Stops after the batch that reaches `most`.
pub fn requeue(now: i64, most: i64) -> Result<DueWork> {
    let mut due = DueWork::default();
    for subscriber in topic::all_subscribers()? {
        for (token, _) in overdue::overdue_batches(&subscriber, now)? {
            if due.rows >= most {
                return Ok(due);
            }
            if let Some(batch) = Batch::find(subscriber.id, token)? {
                let held = Ledger::read(&batch)?.held.len() as i64;
                due.add(held, Some(batch.lease_until()));
            }
        }
    }
    Ok(due)
}

/// The earliest end of a lease among batches that hold events.
pub fn next_lease_end() -> Result<Option<i64>> {
    let mut first = None;
    for subscriber in topic::all_subscribers()? {
        let open = overdue::overdue_batches(&subscriber, i64::MAX)?;
        let ends = open.into_iter().map(|(_, lease_until)| lease_until);
        first = first.into_iter().chain(ends).min();
    }
    Ok(first)
}

/// Counts the segments that hold events, except the current segment: see [`stored`].
pub fn retire() -> Result<DueWork> {
    let current = event::current_segment(&Snapshot::latest())?;
    stored(Some(current))
}

/// Counts the segments that hold events, except segment `but`. A segment is due since the time of its first event.
/// While outbox_retire has never run, the current segment has the whole log. Then the caller passes None, and the
/// current segment is counted, too.
pub fn stored(but: Option<usize>) -> Result<DueWork> {
    let mut due = DueWork::default();
    let snapshot = Snapshot::latest();
    for (number, home) in SEGMENTS.iter().enumerate() {
        let table = Table::to_read(home.table)?;
        if Some(number) == but || table.is_blank() {
            continue;
        }
        let first = table.find(home.xid, &mut [], &snapshot)?;
        due.add(1, first.map(|event| Event::load(event).i64(Col::EmittedAt)));
    }
    Ok(due)
}

//! What `sweep_preview()` says of the outbox's sweep tasks; changes nothing.

use super::batch::Batch;
use super::event::{self, Col, Event, SEGMENTS};
use super::overdue;
use super::receipt::Ledger;
use super::topic;
use crate::error::Result;
use crate::swept::Due;
use crate::table::{Snapshot, Table};

/// Events of batches that are out past their lease; no more are looked for once there are `most`.
pub fn requeue(now: i64, most: i64) -> Result<Due> {
    let mut due = Due::default();
    for subscriber in topic::all_subscribers()? {
        for token in overdue::tokens(&subscriber, now)? {
            if due.rows >= most {
                return Ok(due);
            }
            if let Some(batch) = Batch::find(subscriber.id, token)? {
                let held = Ledger::of(&batch)?.held.len() as i64;
                due.add(held, batch.lease_until());
            }
        }
    }
    Ok(due)
}

/// Segments that are to be emptied, since the first event in them.
pub fn retire() -> Result<Due> {
    let current = event::current_segment(&Snapshot::latest())?;
    stored(Some(current))
}

/// Segments that hold anything, since the first event in them: where nobody retires, the current one grows.
pub fn stored(but: Option<usize>) -> Result<Due> {
    let mut due = Due::default();
    let snapshot = Snapshot::latest();
    for (number, home) in SEGMENTS.iter().enumerate() {
        let table = Table::to_read(home.table)?;
        if Some(number) == but || table.is_blank() {
            continue;
        }
        match table.find(home.xid, &mut [], &snapshot)? {
            Some(first) => due.add(1, Event::load(first).i64(Col::EmittedAt)),
            None => due.rows += 1,
        }
    }
    Ok(due)
}

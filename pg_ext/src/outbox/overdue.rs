//! Puts back expired batches: moves the events that they still hold to once.retry or once.dead. A take does this for
//! the lanes that it locks; the sweep task outbox_requeue does it for all subscribers.
//!
//! If the batch had only one event, the expiry counts as a failed attempt. In a larger batch any event may have killed
//! the worker, so no attempt is counted. Every event put back becomes a suspect: a take hands it out alone.

use super::batch::{self, Batch, Part};
use super::leave::{self, Fate, HeldEvent, Leaving, Reason};
use super::nack::EXPIRED;
use super::receipt::{self, Ledger, ReceiptKind};
use super::topic::{self, Subscriber};
use crate::clock;
use crate::error::Result;
use crate::subxact;
use crate::swept::Swept;
use crate::table::{Snapshot, Table, Wait, WriteOutcome};
use std::collections::{BTreeSet, HashSet};

/// The task outbox_requeue. Puts back expired batches until at least `max` events are put back. One subscriber's
/// failure does not end the task.
pub fn requeue(max: i64) -> Result<Swept> {
    let now = clock::now_us()?;
    let mut all = Swept::default();
    for sub in topic::all_subscribers()? {
        let tokens: Vec<i64> = overdue_batches(&sub, now)?
            .into_iter()
            .map(|(token, _)| token)
            .collect();
        if tokens.is_empty() {
            continue;
        }
        let left = max - all.done;
        if left <= 0 {
            all.more = true;
            break;
        }
        match subxact::attempt_briefly(|| put_back(&sub, &tokens, left as usize))? {
            Ok(done) => {
                all.done += done.events;
                all.more |= done.more;
            }
            Err(failure) => {
                let said = format!("{}: {}", sub.shown(), failure.message);
                all.add(Swept::failure(1, &said));
            }
        }
    }
    Ok(all)
}

#[derive(Default)]
pub struct PutBack {
    /// The batches that no longer hold an event.
    pub over: HashSet<i64>,
    pub events: i64,
    /// Whether [`put_back`] stopped at its limit `most` and left some batches.
    pub more: bool,
}

/// Puts back batches whose lease expired, until at least `most` events were put back.
pub fn put_back(sub: &Subscriber, tokens: &[i64], most: usize) -> Result<PutBack> {
    let mut done = PutBack::default();
    for token in tokens {
        if done.events >= most as i64 {
            done.more = true;
            break;
        }
        if let Some(events) = put_back_one(sub, *token)? {
            done.events += events as i64;
            done.over.insert(*token);
        }
    }
    Ok(done)
}

/// Puts back the events that the batch still holds, and returns their number. None: the lease is alive after all, or
/// another transaction has locked the batch.
fn put_back_one(sub: &Subscriber, token: i64) -> Result<Option<usize>> {
    loop {
        let Some(batch) = Batch::find(sub.id, token)? else {
            return Ok(Some(0));
        };
        match batch.lock(Wait::No)? {
            WriteOutcome::Busy => return Ok(None),
            WriteOutcome::Changed => continue,
            WriteOutcome::Done => {}
        }
        let now = clock::now_us()?;
        if batch.lease_until() > now {
            return Ok(None);
        }
        let mut ledger = Ledger::read(&batch)?;
        let ids = ledger.held.clone();
        if ids.is_empty() {
            return Ok(Some(0));
        }
        let events = leave::held(sub, &batch, &ids)?;
        let leaving = match batch.ids().len() {
            1 => failed(sub, events, now),
            _ => suspects(events, now),
        };
        let reason = Reason {
            kind: EXPIRED,
            error: None,
        };
        leave::leave(sub, token, &leaving, &reason, now)?;
        ledger.append(ReceiptKind::Expired, &ids, None)?;
        return Ok(Some(ids.len()));
    }
}

/// Counts a failed attempt at the only event of a batch.
fn failed(sub: &Subscriber, events: Vec<HeldEvent>, now: i64) -> Vec<Leaving> {
    let suspect = |event| HeldEvent {
        suspect: true,
        ..event
    };
    let failed = |event| leave::failed(sub, suspect(event), None, now);
    events.into_iter().map(failed).collect()
}

/// In a larger batch, the first event of each order_key and events without one are due now. Later ones of a key wait.
fn suspects(events: Vec<HeldEvent>, now: i64) -> Vec<Leaving> {
    let mut keys = HashSet::new();
    let mut fate = |key: &Option<Vec<u8>>| match key {
        Some(key) if !keys.insert(key.clone()) => Fate::Waits,
        _ => Fate::Due(now),
    };
    events
        .into_iter()
        .map(|event| Leaving {
            fate: fate(&event.order_key),
            counted: false,
            event: HeldEvent {
                suspect: true,
                ..event
            },
        })
        .collect()
}

/// Token and lease_until of each open batch whose lease ends by `now`. Each row of once.batch lists earlier batches of
/// its lane that may be open, so the last row of a lane lists all.
pub fn overdue_batches(sub: &Subscriber, now: i64) -> Result<Vec<(i64, i64)>> {
    let snapshot = &Snapshot::latest();
    let table = Table::to_read(batch::TABLE)?;
    let mut tokens = BTreeSet::new();
    for lane in table.values(batch::BY_LANE, &[sub.id], snapshot)? {
        if let Some(last) = Part::last_in(&table, sub.id, lane, snapshot)? {
            tokens.extend(last.out());
        }
    }
    let mut overdue = Vec::new();
    for token in tokens {
        if receipt::is_over(sub.id, token, snapshot)? {
            continue;
        }
        let found = Batch::find_under(sub.id, token, snapshot)?;
        let is_late = |b: &Batch| !b.ids().is_empty() && b.lease_until() <= now;
        overdue.extend(found.filter(is_late).map(|b| (token, b.lease_until())));
    }
    Ok(overdue)
}

//! The sweep task `outbox_requeue`: batches whose lease ran out are put back. A take does so by itself for the
//! lane that it looks at; the sweep serves those that nobody takes from.
//!
//! An event that was alone in its batch has failed once more. The others may have died with one that kills its
//! worker: they come back uncounted, as suspects, one per take.

use super::batch::{self, Batch, Part};
use super::leave::{self, Fate, Held, Leaving, Reason};
use super::nack::EXPIRED;
use super::receipt::{self, Kind, Ledger};
use super::topic::{self, Subscriber};
use crate::clock;
use crate::error::Result;
use crate::janitor::{self, Swept};
use crate::subxact;
use crate::table::{self, Outcome, Snapshot, Wait};
use std::collections::{BTreeSet, HashSet};

pub const TASK: &str = "outbox_requeue";

/// The lease ran out: puts what the batch still holds back. True: it holds nothing any more. False: its lease
/// lives after all, or somebody is at it.
pub fn expire(sub: &Subscriber, batch: &Batch, now: i64) -> Result<bool> {
    Ok(put_back(sub, batch.token(), now)?.is_some())
}

/// How many events were put back; None: see [`expire`].
fn put_back(sub: &Subscriber, token: i64, now: i64) -> Result<Option<usize>> {
    loop {
        let Some(batch) = Batch::find(sub.id, token)? else {
            return Ok(Some(0));
        };
        match batch.lock(Wait::No)? {
            Outcome::Busy => return Ok(None),
            Outcome::Changed => continue,
            Outcome::Done if batch.lease_until() > now => return Ok(None),
            Outcome::Done => {}
        }
        let mut ledger = Ledger::of(&batch)?;
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
        leave::leave(sub, &leaving, &reason, now)?;
        ledger.append(Kind::Expired, &ids, 0, None)?;
        return Ok(Some(ids.len()));
    }
}

/// What was given out alone.
fn failed(sub: &Subscriber, events: Vec<Held>, now: i64) -> Vec<Leaving> {
    let suspect = |event| Held {
        suspect: true,
        ..event
    };
    let failed = |event| leave::failed(sub, suspect(event), None, now);
    events.into_iter().map(failed).collect()
}

/// What was given out together: of each key the first is due, the rest waits behind it.
fn suspects(events: Vec<Held>, now: i64) -> Vec<Leaving> {
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
            event: Held {
                suspect: true,
                ..event
            },
        })
        .collect()
}

/// Puts back batches of all subscribers until `max` events were put back.
pub fn sweep(max: i64) -> Result<Swept> {
    table::ensure_writable(batch::TABLE)?;
    let now = clock::now_us()?;
    let mut all = Swept::default();
    for subscriber in topic::all_subscribers()? {
        let overdue = overdue(&subscriber, now)?;
        sweep_batches(&subscriber, &overdue, max, now, &mut all)?;
    }
    if all.failed > 0 {
        janitor::record(TASK, b"", &all)?;
    }
    Ok(all)
}

/// Tokens of batches that are out past their lease. The last batch of a lane knows those that may be.
pub fn overdue(sub: &Subscriber, now: i64) -> Result<Vec<i64>> {
    let snapshot = Snapshot::latest();
    let mut tokens = BTreeSet::new();
    for lane in sub.lanes() {
        if let Some(last) = Part::last(sub.id, lane, &snapshot)? {
            tokens.extend(last.out());
        }
    }
    let mut overdue = Vec::new();
    for token in tokens {
        let found = Batch::find_under(sub.id, token, &snapshot)?;
        let late = |b: &Batch| b.lease_until() <= now && !b.ids().is_empty();
        if found.as_ref().is_some_and(late) && !receipt::is_over(sub.id, token, &snapshot)? {
            overdue.push(token);
        }
    }
    Ok(overdue)
}

/// All in one subtransaction; of what fails, each half by itself.
fn sweep_batches(
    sub: &Subscriber,
    tokens: &[i64],
    max: i64,
    now: i64,
    all: &mut Swept,
) -> Result<()> {
    if tokens.is_empty() {
        return Ok(());
    }
    let left = max - all.done - all.failed;
    if left <= 0 {
        all.more = true;
        return Ok(());
    }
    let work = || {
        let mut swept = Swept::default();
        for token in tokens {
            if swept.done >= left {
                swept.more = true;
                break;
            }
            swept.done += put_back(sub, *token, now)?.unwrap_or(0) as i64;
        }
        Ok(swept)
    };
    match (subxact::attempt(work)?, tokens) {
        (Ok(swept), _) => all.add(swept),
        (Err(failure), [_]) => all.add(Swept::failure(1, &failure)),
        (Err(_), tokens) => {
            let (first, second) = tokens.split_at(tokens.len() / 2);
            sweep_batches(sub, first, max, now, all)?;
            sweep_batches(sub, second, max, now, all)?;
        }
    }
    Ok(())
}

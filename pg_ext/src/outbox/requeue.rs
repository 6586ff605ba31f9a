//! The sweep task `outbox_requeue`: batches whose lease ran out are put back. A take does so by itself for the
//! lane that it looks at; the sweep serves those that nobody takes from.
//!
//! An event that was alone in its batch has failed once more. The others may have died with one that kills its
//! worker: they come back uncounted, as suspects, one per take.
//!
//! A batch that cannot be put back (a row of it is damaged, a superuser's trigger refuses it) fails no take and
//! no sweep: its lease is prolonged by its age, so it is tried again each time twice as late, told in a warning
//! and noted as a failure of this task. Where somebody keeps a table from it nothing is tried, nor put off.

use super::batch::{self, Batch, Part};
use super::dead;
use super::delivery;
use super::event::{KEPT, SEGMENTS};
use super::leave::{self, Fate, Held, Leaving, Reason};
use super::nack::EXPIRED;
use super::receipt::{self, Kind, Ledger};
use super::retry;
use super::topic::{self, Subscriber};
use crate::clock;
use crate::error::Result;
use crate::janitor::{self, Budget, Swept, Tables};
use crate::patience::Patience;
use crate::raise;
use crate::settings;
use crate::subxact;
use crate::table::{Outcome, Snapshot, Table, Wait};
use std::collections::{BTreeSet, HashSet};

pub const TASK: &str = "outbox_requeue";

/// What batches are put back to, and where their events are.
const TABLES: Tables = Tables {
    written: &[
        batch::TABLE,
        receipt::TABLE,
        retry::TABLE,
        dead::TABLE,
        delivery::TABLE,
    ],
    read: &[
        SEGMENTS[0].table,
        SEGMENTS[1].table,
        SEGMENTS[2].table,
        SEGMENTS[3].table,
        KEPT.table,
    ],
};

/// The first wait of a batch that could not be put back, and the longest.
const PUT_OFF_US: i64 = 10_000_000;
const LONGEST_PUT_OFF_US: i64 = 3_600_000_000;

/// What became of batches that were to be put back.
#[derive(Default)]
pub struct PutBack {
    /// They hold nothing any more.
    pub over: HashSet<i64>,
    /// Events that were put back, batches that failed.
    pub swept: Swept,
    /// A batch was put off: the next call does not meet it.
    put_off: bool,
    /// Some of what failed together was not tried again.
    untried: bool,
}

/// For a take: puts back batches whose lease ran out, until `most` events were. What fails is noted, not raised.
pub fn expire(
    sub: &Subscriber,
    tokens: &[i64],
    most: usize,
    patience: &Patience,
) -> Result<PutBack> {
    let mut all = PutBack::default();
    // A take has its own work. Where somebody keeps a table (to truncate a segment, say) the next one, or the sweep, does it.
    let has_tables = || subxact::attempt(|| settings::briefly(|| janitor::open_tables(&TABLES)));
    if tokens.is_empty() || has_tables()?.is_err() {
        return Ok(all);
    }
    settings::patiently(|| {
        let budget = Budget::of(most as i64, patience);
        put_back_all(sub, tokens, &budget, &mut all)
    })?;
    if all.swept.failed > 0 {
        // Where that cannot be, the warning has told of it.
        drop(subxact::attempt(|| {
            settings::briefly(|| janitor::record(TASK, b"", &all.swept))
        })?);
    }
    Ok(all)
}

/// The lease ran out: puts back what the batch still holds, and says how many events these were. None: its lease
/// lives after all, or somebody is at it.
fn put_back(sub: &Subscriber, token: i64) -> Result<Option<usize>> {
    loop {
        let Some(batch) = Batch::find(sub.id, token)? else {
            return Ok(Some(0));
        };
        match batch.lock(Wait::No)? {
            Outcome::Busy => return Ok(None),
            Outcome::Changed => continue,
            Outcome::Done => {}
        }
        // Read after the lock, which gave this transaction its id: see floor.rs.
        let now = clock::now_us()?;
        if batch.lease_until() > now {
            return Ok(None);
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
pub fn sweep(max: i64, patience: &Patience) -> Result<Swept> {
    let overdue = match patience.attempt(all_overdue)? {
        Ok(overdue) => overdue,
        Err(failure) => return Ok(Swept::failure(1, &failure)),
    };
    if overdue.is_empty() {
        return Ok(Swept::default());
    }
    if let Err(failure) = janitor::lock_tables(&TABLES, patience)? {
        return Ok(not_locked(&failure));
    }
    let budget = Budget::of(max, patience);
    let swept = patience.attempt(|| {
        let mut all = PutBack::default();
        for (subscriber, tokens) in &overdue {
            put_back_all(subscriber, tokens, &budget, &mut all)?;
        }
        Ok(all.swept)
    })?;
    Ok(swept.unwrap_or_else(|failure| Swept::failure(1, &failure)))
}

/// By subscriber, of those that have any.
fn all_overdue() -> Result<Vec<(Subscriber, Vec<i64>)>> {
    let now = clock::now_us()?;
    let mut all = Vec::new();
    for subscriber in topic::all_subscribers()? {
        let tokens = overdue(&subscriber, now)?;
        if !tokens.is_empty() {
            all.push((subscriber, tokens));
        }
    }
    Ok(all)
}

/// Tokens of batches that are out past their lease. One probe for a subscriber that has never taken anything.
pub fn overdue(sub: &Subscriber, now: i64) -> Result<Vec<i64>> {
    let out = out(sub, &Snapshot::latest())?;
    let overdue = out.iter().filter(|b| b.lease_until() <= now);
    Ok(overdue.map(Batch::token).collect())
}

/// Batches that are out, by token. The last batch of a lane knows those that may be.
pub fn out(sub: &Subscriber, snapshot: &Snapshot) -> Result<Vec<Batch>> {
    let table = Table::to_read(batch::TABLE)?;
    let mut tokens = BTreeSet::new();
    for lane in batch::lanes_of(&table, sub.id, snapshot)? {
        if let Some(last) = Part::last_in(&table, sub.id, lane, snapshot)? {
            tokens.extend(last.out());
        }
    }
    let mut out = Vec::new();
    for token in tokens {
        if receipt::is_over(sub.id, token, snapshot)? {
            continue;
        }
        let found = Batch::find_under(sub.id, token, snapshot)?;
        out.extend(found.filter(|b| !b.ids().is_empty()));
    }
    Ok(out)
}

/// Somebody keeps a table: that is one failure, and no batch's.
fn not_locked(failure: &str) -> Swept {
    let waits = format!("the tables of the outbox could not be locked: {failure}");
    Swept::failure(1, &waits)
}

/// All in one subtransaction; of what fails, each half by itself.
fn put_back_all(
    sub: &Subscriber,
    tokens: &[i64],
    budget: &Budget,
    all: &mut PutBack,
) -> Result<()> {
    if budget.is_spent() {
        all.swept.more |= all.swept.done > 0 || all.put_off;
        all.untried = true;
        return Ok(());
    }
    let work = || {
        let mut part = PutBack::default();
        for token in tokens {
            if part.swept.done >= budget.rows() {
                part.swept.more = true;
                break;
            }
            if let Some(events) = put_back(sub, *token)? {
                part.swept.done += events as i64;
                part.over.insert(*token);
            }
        }
        Ok(part)
    };
    match (budget.patience.attempt(work)?, tokens) {
        (Ok(part), _) => {
            budget.settle(part.swept.done);
            all.over.extend(part.over);
            all.swept.add(part.swept);
        }
        (Err(failure), [token]) => {
            all.put_off |= put_off(sub, *token, &failure, budget.patience)?;
            budget.settle(1);
            all.swept.add(Swept::failure(1, &failure));
        }
        (Err(failure), tokens) => {
            let (first, second) = tokens.split_at(tokens.len() / 2);
            put_back_all(sub, first, budget, all)?;
            put_back_all(sub, second, budget, all)?;
            if all.untried && all.swept.failed == 0 {
                // It has not come to the batch yet.
                all.swept.add(Swept::failure(1, &failure));
            }
        }
    }
    Ok(())
}

/// A batch that could not be put back is left alone for as long as it is old: the next time it is twice as old. False: that
/// could not be done either.
fn put_off(sub: &Subscriber, token: i64, failure: &str, patience: &Patience) -> Result<bool> {
    raise::warn(
        format!(
            "batch {token} of {} could not be put back: {failure}",
            sub.shown()
        ),
        "Its events stay where they are and are tried again later: mend what the message says.",
    );
    // A table that takes no write at all is not this batch's fault, and fails whatever else the caller does.
    let put_off = patience.attempt(|| {
        let Some(mut batch) = Batch::find(sub.id, token)? else {
            return Ok(false);
        };
        if batch.lock(Wait::No)? != Outcome::Done {
            return Ok(false);
        }
        let now = clock::now_us()?;
        let age = now.saturating_sub(batch.taken_at());
        batch.put_off(now.saturating_add(age.clamp(PUT_OFF_US, LONGEST_PUT_OFF_US)))?;
        Ok(true)
    })?;
    Ok(put_off.unwrap_or(false))
}

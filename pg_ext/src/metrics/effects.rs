//! How many of the attempts at side effects fail, lately.
//!
//! Attempts that failed are in once.delivery by time, what was acked is in the receipts by token, which is the time of
//! the take. The newest of both are looked at, and both over the same time: at most five minutes, less where one of
//! the looks reaches its bound before.

use super::worst::{self, Labels};
use super::{Sheet, entries_for};
use crate::call::{self, shown, varlena};
use crate::clock;
use crate::counters::WINDOW_US;
use crate::error::Result;
use crate::outbox::delivery;
use crate::outbox::receipt::{self, Col, Receipt};
use crate::outbox::topic::Subscriber;
use crate::table::{ScanKey, Snapshot, Step, Table};
use std::collections::{BTreeMap, HashMap};

/// Failed attempts that are looked at, of all subscribers.
const FAILURES: usize = 4_000;
/// Receipts that are looked at: of each subscriber, and of all together.
const RECEIPTS: usize = 300;
const LEAST_RECEIPTS: usize = 50;
const ALL_RECEIPTS: usize = 10_000;
/// Kinds of a subscriber's failures that have a row of their own.
const KINDS: usize = 20;
const OTHER: &str = "other";
const ERROR: &str = "error";
const RELEASED: &str = "released";

/// Failed attempts: by subscriber, when and of what kind.
struct Failures {
    of: HashMap<i32, Vec<(i64, String)>>,
    since: i64,
    /// Nothing is hidden by rows that are over.
    complete: bool,
}

impl Failures {
    fn lately(now: i64, snapshot: &Snapshot) -> Result<Failures> {
        let table = Table::to_read(delivery::TABLE)?;
        let mut failures = Failures {
            of: HashMap::new(),
            since: now.saturating_sub(WINDOW_US),
            complete: true,
        };
        let keys = &mut [ScanKey::after(1, failures.since)];
        let mut scan = table.scan(delivery::BY_TIME, keys, snapshot)?.backwards();
        let mut looks = entries_for(FAILURES);
        let (mut looked, mut oldest) = (0, now);
        loop {
            let slot = match scan.step(&mut looks) {
                Step::Row(slot) => slot,
                Step::End => return Ok(failures),
                Step::Tired => {
                    failures.complete = false;
                    break;
                }
            };
            let column = |col: delivery::Col| slot.column(col as usize);
            oldest = column(delivery::Col::At).map_or(0, |d| d.value() as i64);
            if looked >= FAILURES {
                break;
            }
            looked += 1;
            let kind = column(delivery::Col::Kind);
            let kind = kind.map(|d| shown(varlena(d))).unwrap_or_default();
            let subscriber = column(delivery::Col::SubscriberId).map_or(0, |d| d.value() as i32);
            let of = failures.of.entry(subscriber).or_default();
            of.push((oldest, kind));
        }
        failures.since = oldest;
        Ok(failures)
    }

    /// How many of a subscriber's attempts count as failed; None: none of them.
    fn badness(&self, subscriber: &Subscriber) -> worst::Badness {
        let failures = self.of.get(&subscriber.id)?;
        let counted = failures.iter().filter(|f| f.1 != RELEASED).count();
        (counted > 0).then_some(counted as i64)
    }
}

/// What a subscriber has acked.
struct Acked {
    events: u64,
    /// Since when its newest receipts tell.
    since: i64,
    /// Nothing is hidden by rows that are over.
    complete: bool,
}

/// What a subscriber has acked since a time, as far as so many of its newest receipts tell.
fn acked(subscriber: i32, since: i64, most: usize, snapshot: &Snapshot) -> Result<Acked> {
    let table = Table::to_read(receipt::TABLE)?;
    let keys = &mut [ScanKey::i32(1, subscriber)];
    let mut scan = table.scan(receipt::BY_TOKEN, keys, snapshot)?.backwards();
    let mut found: Vec<(i64, u64)> = Vec::new();
    let (mut since, mut complete) = (since, true);
    let mut looks = entries_for(most);
    loop {
        let step = scan.step(&mut looks);
        complete &= !matches!(step, Step::Tired);
        let slot = match step {
            Step::Row(slot) if found.len() < most => slot,
            Step::End => break,
            Step::Row(_) | Step::Tired => {
                // The newest of those that are left out may be as young as the oldest that is in.
                let oldest = found.iter().map(|f| f.0).min().unwrap_or(since);
                since = since.max(oldest);
                break;
            }
        };
        let receipt = Receipt::look(slot);
        let is_ack = receipt.raw(Col::Kind).map(|d| d.value() as u8) == Some(b'a');
        let events = match receipt.raw(Col::EventIds).and_then(call::i64s) {
            _ if !is_ack => 0,
            Some(ids) => ids.len() as u64,
            None => receipt.i32(Col::Acked).max(0) as u64,
        };
        found.push((receipt.i64(Col::At), events));
    }
    Ok(Acked {
        events: found.iter().filter(|f| f.0 > since).map(|f| f.1).sum(),
        since,
        complete,
    })
}

/// `side_effect_failure_rate` by topic, subscriber and kind.
pub fn failures(sheet: &Sheet) -> Result<()> {
    let subscribers = sheet.subscribers()?;
    let snapshot = Snapshot::latest();
    let failures = Failures::lately(clock::now_us()?, &snapshot)?;
    let badness: Vec<_> = subscribers.iter().map(|s| failures.badness(s)).collect();
    let (told, mut complete) = worst::told(&badness);
    complete &= failures.complete;
    let failing = told.iter().filter(|i| badness[**i].is_some()).count();
    let receipts = (ALL_RECEIPTS / failing.max(1)).clamp(LEAST_RECEIPTS, RECEIPTS);
    for i in told {
        let subscriber = &subscribers[i];
        // Without failures it is 0, whatever was acked.
        let acked = match badness[i] {
            Some(_) => acked(subscriber.id, failures.since, receipts, &snapshot)?,
            None => Acked {
                events: 0,
                since: failures.since,
                complete: true,
            },
        };
        complete &= acked.complete;
        tell(sheet, subscriber, &failures, &acked)?;
    }
    worst::complete(sheet, "failures", &badness, complete)
}

fn tell(sheet: &Sheet, subscriber: &Subscriber, failures: &Failures, acked: &Acked) -> Result<()> {
    // There even while nothing fails.
    let mut kinds = BTreeMap::from([(ERROR, 0u64)]);
    let mut failed = 0;
    for (_, kind) in failures
        .of
        .get(&subscriber.id)
        .into_iter()
        .flatten()
        .filter(|f| f.0 > acked.since)
    {
        if kind == RELEASED {
            continue;
        }
        failed += 1;
        let known = kinds.len() < KINDS || kinds.contains_key(kind.as_str());
        *kinds.entry(if known { kind } else { OTHER }).or_default() += 1;
    }
    let labels = Labels::of_subscriber(subscriber);
    let [topic, name] = labels.pairs();
    for (kind, count) in kinds {
        let attempts = failed + acked.events;
        sheet.put(
            "side_effect_failure_rate",
            &[topic, name, ("kind", kind)],
            count as f64 / attempts.max(1) as f64,
            "Share of the attempts at the subscriber's events that ended in a failure of this kind, over the last five minutes; less time where there were more than 4000 failures or the subscriber ended more than 300 batches since (fewer where more than 30 subscribers fail). 0 without attempts. Of more than 200 subscribers those with the most failures have rows, see pg_once_outbox_complete.",
        )?;
    }
    Ok(())
}

//! How many of the attempts at side effects fail, lately.
//!
//! Attempts that failed are in once.delivery by time, what was acked is in the receipts by token, which is the time of
//! the take. The newest of both are looked at, and both over the same time: at most five minutes, less where one of
//! the looks reaches its bound before.

use super::Sheet;
use crate::call::{self, shown, varlena};
use crate::clock;
use crate::counters::WINDOW_US;
use crate::error::Result;
use crate::outbox::receipt::{Col, Receipt};
use crate::outbox::topic::{Subscriber, all_subscribers};
use crate::table::{Name, ScanKey, Snapshot, Table};
use std::collections::{BTreeMap, HashMap};

/// Failed attempts that are looked at, of all subscribers, and receipts of each.
const FAILURES: usize = 4_000;
const RECEIPTS: usize = 300;
/// Kinds of a subscriber's failures that have a row of their own.
const KINDS: usize = 20;
const OTHER: &str = "other";
const ERROR: &str = "error";
const RELEASED: &str = "released";

const DELIVERY: Name = c"delivery";
const BY_TIME: Name = c"delivery_at";
const RECEIPT: Name = c"receipt";
const BY_TOKEN: Name = c"receipt_pkey";

/// Failed attempts: by subscriber, when and of what kind.
struct Failures {
    of: HashMap<i32, Vec<(i64, String)>>,
    since: i64,
}

impl Failures {
    fn look(now: i64, snapshot: &Snapshot) -> Result<Failures> {
        let table = Table::to_read(DELIVERY)?;
        let mut failures = Failures {
            of: HashMap::new(),
            since: now.saturating_sub(WINDOW_US),
        };
        let keys = &mut [ScanKey::after(1, failures.since)];
        let mut scan = table.scan(BY_TIME, keys, snapshot)?.backwards();
        let mut looked = 0;
        while let Some(slot) = scan.advance() {
            let number = |i| {
                slot.column(i)
                    .map_or(0, |d: pgrx::pg_sys::Datum| d.value() as i64)
            };
            let at = number(4);
            if looked >= FAILURES {
                failures.since = at;
                break;
            }
            looked += 1;
            let kind = slot
                .column(5)
                .map(|d| shown(varlena(d)))
                .unwrap_or_default();
            let subscriber = failures.of.entry(number(1) as i32).or_default();
            subscriber.push((at, kind));
        }
        Ok(failures)
    }
}

/// What a subscriber has acked since a time, as far as its newest receipts tell; and since when they do.
fn acked(subscriber: i32, since: i64, snapshot: &Snapshot) -> Result<(u64, i64)> {
    let table = Table::to_read(RECEIPT)?;
    let keys = &mut [ScanKey::i32(1, subscriber)];
    let mut scan = table.scan(BY_TOKEN, keys, snapshot)?.backwards();
    let mut found: Vec<(i64, u64)> = Vec::new();
    let mut since = since;
    while let Some(slot) = scan.advance() {
        let receipt = Receipt::look(slot);
        if found.len() >= RECEIPTS {
            // The newest of those that are left out may be as young as the oldest that is in.
            let oldest = found.iter().map(|f| f.0).min().unwrap_or(since);
            since = since.max(oldest);
            break;
        }
        let is_ack = receipt.raw(Col::Kind).map(|d| d.value() as u8) == Some(b'a');
        let events = match receipt.raw(Col::EventIds).and_then(call::i64s) {
            _ if !is_ack => 0,
            Some(ids) => ids.len() as u64,
            None => receipt.i32(Col::Acked).max(0) as u64,
        };
        found.push((receipt.i64(Col::At), events));
    }
    let total = found.iter().filter(|f| f.0 > since).map(|f| f.1).sum();
    Ok((total, since))
}

/// `side_effect_failure_rate` by topic, subscriber and kind.
pub fn failures(sheet: &Sheet) -> Result<()> {
    let subscribers = all_subscribers()?;
    if subscribers.is_empty() {
        return Ok(());
    }
    let snapshot = Snapshot::latest();
    let failures = Failures::look(clock::now_us()?, &snapshot)?;
    for subscriber in &subscribers {
        tell(sheet, subscriber, &failures, &snapshot)?;
    }
    Ok(())
}

fn tell(
    sheet: &Sheet,
    subscriber: &Subscriber,
    failures: &Failures,
    snapshot: &Snapshot,
) -> Result<()> {
    let (acked, since) = acked(subscriber.id, failures.since, snapshot)?;
    // There even while nothing fails.
    let mut kinds = BTreeMap::from([(ERROR, 0u64)]);
    let mut failed = 0;
    for (_, kind) in failures
        .of
        .get(&subscriber.id)
        .into_iter()
        .flatten()
        .filter(|f| f.0 > since)
    {
        if kind == RELEASED {
            continue;
        }
        failed += 1;
        let known = kinds.len() < KINDS || kinds.contains_key(kind.as_str());
        *kinds.entry(if known { kind } else { OTHER }).or_default() += 1;
    }
    let (topic, name) = (shown(&subscriber.topic.name), shown(&subscriber.name));
    for (kind, count) in kinds {
        let labels = [
            ("topic", topic.as_str()),
            ("subscriber", name.as_str()),
            ("kind", kind),
        ];
        let attempts = failed + acked;
        sheet.put(
            "side_effect_failure_rate",
            &labels,
            count as f64 / attempts.max(1) as f64,
            "Share of the attempts at the subscriber's events that ended in a failure of this kind, over the last five minutes; less time where there were more than 4000 failures or the subscriber ended more than 300 batches since. 0 without attempts.",
        )?;
    }
    Ok(())
}

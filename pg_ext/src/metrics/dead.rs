//! Dead letters of each subscriber: how many there are, how many died lately, and since when. doctor tells them,
//! too.
//!
//! Who has any is told by the index alone; of these, those with the youngest are looked at first.

use super::estimate::IndexRange;
use super::worst::{self, Labels};
use super::{Sheet, entries_for};
use crate::clock;
use crate::error::Result;
use crate::outbox::dead::{BY_DEATH, BY_EVENT, Col, TABLE};
use crate::outbox::topic::Subscriber;
use crate::table::{ScanKey, Slot, Snapshot, Step, Table};
use std::collections::HashSet;

/// Dead letters that are counted one by one: of all subscribers together, and of each.
const COUNTED: usize = 20_000;
const EXACT: usize = 2_000;
const LEAST: usize = 100;
/// What "lately" means.
const HOUR_US: i64 = 3_600_000_000;

/// The dead letters of a subscriber.
#[derive(Default)]
pub struct Letters {
    pub count: f64,
    /// Within the last hour, up to a bound.
    pub lately: usize,
    /// There may be more of these.
    pub or_more: bool,
    /// When the first of all died.
    pub first: Option<i64>,
}

/// The dead letters of all subscribers, as far as they are looked at.
pub struct DeadLetters {
    /// When the last event of each of them died.
    last: Vec<worst::Badness>,
    /// By the subscriber's place, in their order.
    pub letters: Vec<(usize, Letters)>,
    /// Nobody was left out, and nothing hidden by rows that are over.
    pub complete: bool,
}

impl DeadLetters {
    /// Of those whose dead letters are the youngest.
    pub fn count(subscribers: &[Subscriber]) -> Result<DeadLetters> {
        let cemetery = Cemetery {
            table: Table::to_read(TABLE)?,
            snapshot: Snapshot::latest(),
            since: clock::now_us()?.saturating_sub(HOUR_US),
        };
        let last = cemetery.last_deaths(subscribers)?;
        let (told, mut complete) = worst::told(&last);
        let told: Vec<usize> = told.into_iter().filter(|i| last[*i].is_some()).collect();
        let exact = (COUNTED / told.len().max(1)).clamp(LEAST, EXACT);
        let mut letters = Vec::with_capacity(told.len());
        for i in told {
            let (found, tired) = cemetery.letters_of(subscribers[i].id, exact)?;
            complete &= !tired;
            letters.push((i, found));
        }
        Ok(DeadLetters {
            last,
            letters,
            complete,
        })
    }
}

/// once.dead as one call sees it.
struct Cemetery {
    table: Table,
    snapshot: Snapshot,
    since: i64,
}

impl Cemetery {
    /// When the last event of each subscriber died.
    fn last_deaths(&self, subscribers: &[Subscriber]) -> Result<Vec<worst::Badness>> {
        let any = self.table.values(BY_EVENT, &[], &self.snapshot)?;
        let any: HashSet<i32> = any.into_iter().collect();
        let last_of = |subscriber: &Subscriber| match any.contains(&subscriber.id) {
            true => self.last_death(subscriber.id),
            false => Ok(None),
        };
        subscribers.iter().map(last_of).collect()
    }

    fn last_death(&self, subscriber: i32) -> Result<worst::Badness> {
        let keys = &mut [ScanKey::i32(1, subscriber)];
        let scan = self.table.scan(BY_DEATH, keys, &self.snapshot)?;
        let mut scan = scan.backwards();
        Ok(match scan.step(&mut entries_for(LEAST)) {
            Step::Row(slot) => Some(number(slot, Col::DiedAt)),
            Step::End => None,
            // Rows that are over hide it: it may be as old as can be.
            Step::Tired => Some(i64::MIN),
        })
    }

    /// True: rows that are over may hide some.
    fn letters_of(&self, subscriber: i32, exact: usize) -> Result<(Letters, bool)> {
        let range = IndexRange {
            table: &self.table,
            index: BY_EVENT,
            of: &[subscriber],
            column: Col::EventId as usize,
            place: &|id| id,
        };
        let count = range.above(i64::MIN, exact, &self.snapshot)?;
        let mut tired = count.tired;
        let mut letters = Letters {
            count: count.rows.round(),
            ..Letters::default()
        };
        // From the youngest on: in front of those of the last hour there may be entries of redriven ones.
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::after(2, self.since)];
        let scan = self.table.scan(BY_DEATH, keys, &self.snapshot)?;
        let (mut scan, mut looks) = (scan.backwards(), entries_for(exact));
        while letters.lately < exact {
            match scan.step(&mut looks) {
                Step::Row(_) => letters.lately += 1,
                Step::End => break,
                Step::Tired => {
                    (tired, letters.or_more) = (true, true);
                    break;
                }
            }
        }
        letters.or_more |= letters.lately >= exact;
        let keys = &mut [ScanKey::i32(1, subscriber)];
        let mut scan = self.table.scan(BY_DEATH, keys, &self.snapshot)?;
        if let Step::Row(slot) = scan.step(&mut entries_for(LEAST)) {
            letters.first = Some(number(slot, Col::DiedAt));
        }
        Ok((letters, tired))
    }
}

/// Dead letters by topic and subscriber.
pub fn letters(sheet: &Sheet) -> Result<()> {
    let subscribers = sheet.subscribers()?;
    let dead = DeadLetters::count(subscribers)?;
    let mut badness: Vec<worst::Badness> = vec![None; subscribers.len()];
    for (i, letters) in &dead.letters {
        badness[*i] = Some(letters.lately as i64);
    }
    let none = Letters::default();
    for i in worst::told(&badness).0 {
        let found = dead.letters.iter().find(|(place, _)| *place == i);
        let letters = found.map_or(&none, |(_, letters)| letters);
        let labels = Labels::of_subscriber(&subscribers[i]);
        sheet.put(
            "outbox_dead_letters",
            &labels.pairs(),
            letters.count,
            "Events that the subscriber has given up (outbox_dead); exact below 2000 (fewer where more than ten subscribers have any), then an estimate. Of more than 200 subscribers those whose events died last have rows, see pg_once_outbox_complete.",
        )?;
        sheet.put(
            "outbox_dead_letters_lately",
            &labels.pairs(),
            letters.lately as f64,
            "Of these, events that died within the last hour; 2000 (fewer where more than ten subscribers have any) means at least so many.",
        )?;
    }
    worst::complete(sheet, "dead_letters", &dead.last, dead.complete)
}

fn number(slot: &Slot, column: Col) -> i64 {
    slot.column(column as usize).map_or(0, |d| d.value() as i64)
}

//! What a subscriber has not acked yet: how old the oldest of it is, and how much there is.
//!
//! It is in three places: in the log, from where each lane has come to; in the batches that are out; and in
//! once.retry, one by one. Of each the beginning is looked at. Delayed events are left out until they are due and
//! count from then, dead ones are counted apart.

use super::Sheet;
use super::estimate::Range;
use crate::call::shown;
use crate::clock::{self, INFINITY};
use crate::error::Result;
use crate::outbox::batch::{Batch, Part};
use crate::outbox::event::{self, Col as EventCol, DELAYED, Home};
use crate::outbox::receipt::{self, Ledger};
use crate::outbox::retry;
use crate::outbox::seen::Seen;
use crate::outbox::series;
use crate::outbox::topic::{Subscriber, all_subscribers};
use crate::outbox::window::{self, Window};
use crate::table::{Name, ScanKey, Slot, Snapshot, Table};
use std::collections::BTreeSet;

/// Events of a lane, and rows of once.retry, that are counted one by one.
const EXACT: usize = 64;
/// Rows of once.retry that are read to find one that is no delayed event.
const LOOKS: usize = 1_000;
/// Of these, so many are asked for their age.
const ASKED: usize = 16;
/// Batches of a subscriber that are looked into.
const BATCHES: usize = 1_000;
/// Dead letters that are counted one by one.
const DEAD_EXACT: usize = 2_000;
/// What "lately" means for them.
const HOUR_US: i64 = 3_600_000_000;

const DELIVERY: Name = c"delivery";
const DELIVERY_BY_EVENT: Name = c"delivery_event";
const DEAD: Name = c"dead";
const DEAD_BY_EVENT: Name = c"dead_pkey";
const DEAD_BY_TIME: Name = c"dead_died";

/// What is the same for every subscriber.
struct Look {
    seen: Seen,
    snapshot: Snapshot,
    /// The present series.
    series: i32,
    tables: Vec<(&'static Home, Table)>,
    retry: Table,
    now: i64,
}

/// What a subscriber has before it.
#[derive(Default)]
struct Backlog {
    depth: f64,
    /// When the oldest event was emitted, or became due.
    since: Option<i64>,
}

impl Backlog {
    fn older(&mut self, since: Option<i64>) {
        self.since = match (self.since, since) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// Lag, depth and dead letters by topic and subscriber.
pub fn outbox(sheet: &Sheet) -> Result<()> {
    let subscribers = all_subscribers()?;
    if subscribers.is_empty() {
        return Ok(());
    }
    let (seen, snapshot) = Seen::now()?;
    let look = Look {
        series: series::present(&snapshot)?,
        seen,
        snapshot,
        tables: window::tables()?,
        retry: Table::to_read(retry::TABLE)?,
        now: clock::now_us()?,
    };
    for subscriber in &subscribers {
        let backlog = look.backlog(subscriber)?;
        let (topic, name) = (shown(&subscriber.topic.name), shown(&subscriber.name));
        let labels = [("topic", topic.as_str()), ("subscriber", name.as_str())];
        let lag = backlog
            .since
            .map_or(0, |at| look.now.saturating_sub(at))
            .max(0);
        sheet.put(
            "outbox_lag_seconds",
            &labels,
            lag as f64 / 1e6,
            "Age of the oldest event that the subscriber has not acked; 0: none. A delayed or redriven event counts from when it is due, a dead one not at all.",
        )?;
        sheet.put(
            "outbox_depth",
            &labels,
            backlog.depth.round(),
            "Events that the subscriber has not acked, those in batches, retries and delays included. Exact while each lane has fewer than 64, then an estimate from samples.",
        )?;
        look.dead(sheet, subscriber.id, &labels)?;
    }
    Ok(())
}

impl Look {
    fn backlog(&self, subscriber: &Subscriber) -> Result<Backlog> {
        let mut backlog = Backlog::default();
        let mut out = BTreeSet::new();
        for lane in subscriber.lanes() {
            let last = Part::last(subscriber.id, lane, &self.snapshot)?;
            if let Some(last) = &last {
                out.extend(last.out());
            }
            let window = Window::of(subscriber, last.as_ref())?;
            self.log(subscriber.topic.id, lane, window, &mut backlog)?;
        }
        for token in out.into_iter().take(BATCHES) {
            if receipt::is_over(subscriber.id, token, &self.snapshot)? {
                continue;
            }
            if let Some(batch) = Batch::find_under(subscriber.id, token, &self.snapshot)? {
                self.batch(subscriber, &batch, &mut backlog)?;
            }
        }
        self.retries(subscriber, &mut backlog)?;
        Ok(backlog)
    }

    /// What a lane has not come to yet.
    fn log(&self, topic: i32, lane: i32, window: Window, backlog: &mut Backlog) -> Result<()> {
        if self.tables.is_empty() {
            return Ok(());
        }
        let mut window = window;
        let (mut read, mut last_id) = (0, 0);
        loop {
            let mut reader = window.read(topic, lane, &self.tables, &self.snapshot)?;
            while read < EXACT {
                let mut emitted_at = 0;
                let next = reader.next(|event| {
                    emitted_at = event.i64(EventCol::EmittedAt);
                    last_id = event.i64(EventCol::EventId);
                    Ok(())
                })?;
                if next.is_none() {
                    break;
                }
                if read == 0 {
                    backlog.older(Some(emitted_at));
                }
                read += 1;
            }
            drop(reader);
            if read >= EXACT {
                break;
            }
            match window.next(&self.seen, self.series) {
                Some(next) => window = next,
                None => break,
            }
            window.find_late(topic, lane, &self.tables, &self.snapshot)?;
        }
        backlog.depth += read as f64;
        if read >= EXACT {
            for (home, table) in &self.tables {
                let range = Range {
                    table,
                    index: home.position,
                    keys: &|from, to| {
                        vec![
                            ScanKey::i32(1, topic),
                            ScanKey::i32(2, lane),
                            ScanKey::above(3, from),
                            ScanKey::up_to(3, to),
                        ]
                    },
                    column: EventCol::EventId as usize,
                    place: &|id| event::place_in_lane(lane, id),
                };
                backlog.depth += range.estimate(last_id, &self.snapshot)?;
            }
        }
        Ok(())
    }

    /// What a batch still holds, but for what has a row in once.retry.
    fn batch(&self, subscriber: &Subscriber, batch: &Batch, backlog: &mut Backlog) -> Result<()> {
        let held = Ledger::of(batch)?.held;
        let redelivered = batch.is_redelivered();
        let mut first: Option<i64> = None;
        for id in held {
            if redelivered && self.retry_of(subscriber.id, id)?.is_some() {
                continue;
            }
            backlog.depth += 1.0;
            first = Some(first.map_or(id, |f| f.min(id)));
        }
        let Some(first) = first else {
            return Ok(());
        };
        let lane = batch.lanes().get(&first).copied().unwrap_or(0);
        let event = event::find(subscriber.topic.id, lane, first)?;
        backlog.older(event.map(|e| e.i64(EventCol::EmittedAt)));
        Ok(())
    }

    fn retry_of(&self, subscriber: i32, event_id: i64) -> Result<Option<Slot>> {
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, event_id)];
        self.retry.find(retry::BY_EVENT, keys, &self.snapshot)
    }

    /// What goes one by one.
    fn retries(&self, sub: &Subscriber, backlog: &mut Backlog) -> Result<()> {
        let subscriber = sub.id;
        let range = Range {
            table: &self.retry,
            index: retry::BY_EVENT,
            keys: &|from, to| {
                vec![
                    ScanKey::i32(1, subscriber),
                    ScanKey::above(2, from),
                    ScanKey::up_to(2, to),
                ]
            },
            column: retry::Col::EventId as usize,
            place: &|id| id,
        };
        let rows = range.above(i64::MIN, LOOKS, &self.snapshot)?;
        if rows == 0.0 {
            return Ok(());
        }
        backlog.depth += rows;
        let mut scan = self.retry.scan(
            retry::BY_EVENT,
            &mut [ScanKey::i32(1, subscriber)],
            &self.snapshot,
        )?;
        let (mut looked, mut asked) = (0, 0);
        while looked < LOOKS
            && asked < ASKED
            && let Some(slot) = scan.advance()
        {
            looked += 1;
            if self.is_delayed(slot) {
                continue;
            }
            asked += 1;
            let (since, in_order) = self.since(subscriber, slot)?;
            backlog.older(since);
            if in_order {
                return Ok(());
            }
        }
        if looked < LOOKS {
            return Ok(());
        }
        // Hidden behind delayed ones: what is due, and in lanes that have no delayed ones what will be first.
        for lane in sub.lanes() {
            for suspect in [false, true] {
                let mut keys = vec![
                    ScanKey::i32(1, subscriber),
                    ScanKey::i32(2, lane),
                    ScanKey::bool(3, suspect),
                ];
                if event::is_unordered(lane) {
                    keys.push(ScanKey::until(4, self.now));
                }
                if let Some(slot) = self.retry.find(retry::BY_DUE, &mut keys, &self.snapshot)? {
                    backlog.older(self.since(subscriber, &slot)?.0);
                }
            }
        }
        Ok(())
    }

    /// Nobody has tried it, and its time is still to come.
    fn is_delayed(&self, slot: &Slot) -> bool {
        let due_at = number(slot, retry::Col::DueAt as usize);
        slot.column(retry::Col::Token as usize).is_none()
            && number(slot, retry::Col::Failures as usize) == 0
            && number(slot, retry::Col::Suspect as usize) == 0
            && due_at > self.now
            && due_at != INFINITY
    }

    /// Since when a row of once.retry waits; true: since it was emitted, so none behind it waits for longer.
    fn since(&self, subscriber: i32, slot: &Slot) -> Result<(Option<i64>, bool)> {
        let id = number(slot, retry::Col::EventId as usize);
        let (topic, lane) = (
            number(slot, retry::Col::Topic as usize) as i32,
            number(slot, retry::Col::Lane as usize) as i32,
        );
        let Some(event) = event::find(topic, lane, id)? else {
            return Ok((None, false));
        };
        if event.i32(EventCol::Lane) != DELAYED {
            return Ok((Some(event.i64(EventCol::EmittedAt)), true));
        }
        let due_at = number(slot, retry::Col::DueAt as usize);
        let since = match (
            number(slot, retry::Col::Failures as usize),
            slot.column(retry::Col::Token as usize),
        ) {
            (1.., _) => self.first_failure(subscriber, id)?,
            (_, Some(token)) => Some(token.value() as i64),
            _ => Some(due_at).filter(|at| *at <= self.now),
        };
        Ok((since, false))
    }

    /// When the first attempt at an event failed, since it was redriven last.
    fn first_failure(&self, subscriber: i32, event_id: i64) -> Result<Option<i64>> {
        let table = Table::to_read(DELIVERY)?;
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, event_id)];
        let mut scan = table
            .scan(DELIVERY_BY_EVENT, keys, &self.snapshot)?
            .backwards();
        let mut at = None;
        let mut looked = 0;
        while looked < LOOKS
            && let Some(slot) = scan.advance()
        {
            looked += 1;
            at = Some(number(slot, 4));
            if number(slot, 2) <= 1 {
                break;
            }
        }
        Ok(at)
    }

    fn dead(&self, sheet: &Sheet, subscriber: i32, labels: &[(&str, &str)]) -> Result<()> {
        let table = Table::to_read(DEAD)?;
        let range = Range {
            table: &table,
            index: DEAD_BY_EVENT,
            keys: &|from, to| {
                vec![
                    ScanKey::i32(1, subscriber),
                    ScanKey::above(2, from),
                    ScanKey::up_to(2, to),
                ]
            },
            column: 3,
            place: &|id| id,
        };
        sheet.put(
            "outbox_dead_letters",
            labels,
            range.above(i64::MIN, DEAD_EXACT, &self.snapshot)?.round(),
            "Events that the subscriber has given up (outbox_dead); exact below 2000, then an estimate.",
        )?;
        let keys = &mut [
            ScanKey::i32(1, subscriber),
            ScanKey::after(2, self.now - HOUR_US),
        ];
        let mut scan = table.scan(DEAD_BY_TIME, keys, &self.snapshot)?;
        let mut lately = 0;
        while lately < DEAD_EXACT && scan.advance().is_some() {
            lately += 1;
        }
        sheet.put(
            "outbox_dead_letters_lately",
            labels,
            lately as f64,
            "Of these, events that died within the last hour; 2000 means at least so many.",
        )
    }
}

fn number(slot: &Slot, column: usize) -> i64 {
    slot.column(column).map_or(0, |d| d.value() as i64)
}

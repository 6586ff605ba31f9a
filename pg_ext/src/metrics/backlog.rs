//! What a subscriber has not acked yet: how old the oldest of it is, and how much there is.
//!
//! It is in three places: in the log, from where each lane has come to; in the batches that are out; and in
//! once.retry, one by one. Of each the beginning is looked at. Delayed events are left out until they are due and
//! count from then, dead ones are counted apart.
//!
//! All of it is stored in the log as well (stored.rs), so a subscriber of a topic of which nothing is stored costs
//! nothing. The others are looked at in the order of the oldest event that is stored for them, until so many lanes
//! were: who comes behind has an event that is younger, acked or not.

use super::estimate::IndexRange;
use super::late::Late;
use super::stored::{self, Content, StoredTopic};
use super::worst::{self, Labels};
use super::{Sheet, entries_for};
use crate::clock::{self, INFINITY};
use crate::error::Result;
use crate::outbox::batch::{self, Batch, Part};
use crate::outbox::delivery;
use crate::outbox::event::{self, Col as EventCol, DELAYED, Home};
use crate::outbox::receipt::{self, Ledger};
use crate::outbox::retry::{self, Col as RetryCol, Retry};
use crate::outbox::seen::Seen;
use crate::outbox::series;
use crate::outbox::topic::Subscriber;
use crate::outbox::window::{self, Window};
use crate::table::{ScanKey, Slot, Snapshot, Step, Table};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Lanes and batches of all subscribers together that are looked at, and how many of these the rows that one has in
/// once.retry stand for.
const LOOKS: usize = 5_000;
const FOR_RETRIES: usize = 4;
/// Probes that cost as much as one of these looks.
const PROBES: usize = 16;
/// Events of a lane, and rows of once.retry, that are counted one by one.
const EXACT: usize = 64;
/// Rows of once.retry that are read to find one that is no delayed event: of each subscriber, and of all together.
const RETRIES: usize = 1_000;
const LEAST_RETRIES: usize = 64;
const ALL_RETRIES: usize = 20_000;
/// Of these, so many are asked for their age.
const ASKED: usize = 16;

/// What is the same for every subscriber.
struct BacklogLook {
    seen: Seen,
    snapshot: Snapshot,
    /// The present series.
    series: i32,
    tables: Vec<(&'static Home, Table)>,
    stored: BTreeMap<i32, StoredTopic>,
    batches: Table,
    /// Subscribers that may have any.
    takers: HashSet<i32>,
    retry: Table,
    retriers: HashSet<i32>,
    now: i64,
    /// How many more may be looked at.
    looks: Cell<usize>,
    late: Late,
    complete: Cell<bool>,
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
        self.since = self.since.into_iter().chain(since).min();
    }

    fn lag(&self, now: i64) -> i64 {
        self.since.map_or(0, |at| now.saturating_sub(at)).max(0)
    }

    fn badness(&self, now: i64) -> worst::Badness {
        let nothing = self.since.is_none() && self.depth == 0.0;
        (!nothing).then(|| self.lag(now))
    }
}

/// Lag and depth by topic and subscriber.
pub fn outbox(sheet: &Sheet) -> Result<()> {
    let subscribers = sheet.subscribers()?;
    let look = BacklogLook::begin()?;
    let backlogs = look.backlogs(subscribers)?;
    let badness: Vec<_> = backlogs.iter().map(|b| b.badness(look.now)).collect();
    let (told, all_told) = worst::told(&badness);
    for i in told {
        look.tell(sheet, &subscribers[i], &backlogs[i])?;
    }
    let complete = all_told && look.complete.get();
    worst::complete(sheet, "backlog", &badness, complete)
}

impl BacklogLook {
    fn begin() -> Result<BacklogLook> {
        let (seen, snapshot) = Seen::now()?;
        let tables = window::tables()?;
        let (stored, complete) = stored::stored_topics(&tables, &snapshot)?;
        let (batches, retry) = (Table::to_read(batch::TABLE)?, Table::to_read(retry::TABLE)?);
        Ok(BacklogLook {
            series: series::present(&snapshot)?,
            takers: HashSet::from_iter(batch::takers(&batches, &snapshot)?),
            retriers: HashSet::from_iter(retry.values(retry::BY_EVENT, &[], &snapshot)?),
            seen,
            snapshot,
            tables,
            stored,
            batches,
            retry,
            now: clock::now_us()?,
            looks: Cell::new(LOOKS),
            late: Late::default(),
            complete: Cell::new(complete),
        })
    }

    /// Of every subscriber, in their order.
    fn backlogs(&self, subscribers: &[Subscriber]) -> Result<Vec<Backlog>> {
        let stored = |i: &usize| self.stored.get(&subscribers[*i].topic.id);
        let mut order: Vec<usize> = (0..subscribers.len())
            .filter(|i| stored(i).is_some() || self.retriers.contains(&subscribers[*i].id))
            .collect();
        order.sort_by_key(|i| stored(i).map_or(i64::MAX, |s| s.oldest));
        let mut backlogs: Vec<Backlog> = subscribers.iter().map(|_| Backlog::default()).collect();
        for i in order {
            backlogs[i] = self.backlog(&subscribers[i], stored(&i))?;
        }
        Ok(backlogs)
    }

    fn backlog(&self, subscriber: &Subscriber, stored: Option<&StoredTopic>) -> Result<Backlog> {
        let mut backlog = Backlog::default();
        let mut out = BTreeSet::new();
        for (lane, content) in stored.into_iter().flat_map(StoredTopic::lanes) {
            let theirs = event::is_unordered(lane) || (1..=subscriber.topic.lanes).contains(&lane);
            if !theirs || !self.may_look(1) {
                continue;
            }
            let last = match self.takers.contains(&subscriber.id) {
                true => Part::last_in(&self.batches, subscriber.id, lane, &self.snapshot)?,
                false => None,
            };
            if let Some(last) = &last {
                out.extend(last.out());
            }
            let window = Window::behind(subscriber, last.as_ref())?;
            match content {
                Content::Few(events) => {
                    for event in events.iter().filter(|e| e.is_before(&window)) {
                        backlog.depth += 1.0;
                        backlog.older(Some(event.emitted_at));
                    }
                }
                Content::Many => self.log(subscriber.topic.id, lane, window, &mut backlog)?,
            }
        }
        for token in out {
            if !self.may_look(1) {
                break;
            }
            if receipt::is_over(subscriber.id, token, &self.snapshot)? {
                continue;
            }
            if let Some(batch) = Batch::find_under(subscriber.id, token, &self.snapshot)? {
                self.batch(subscriber, &batch, &mut backlog)?;
            }
        }
        if self.retriers.contains(&subscriber.id) && self.may_look(FOR_RETRIES) {
            self.retries(subscriber, &mut backlog)?;
        }
        Ok(backlog)
    }

    /// So many more looks; false: there were enough.
    fn may_look(&self, looks: usize) -> bool {
        let left = self.looks.get();
        self.looks.set(left.saturating_sub(looks));
        self.cut_short(left == 0);
        left > 0
    }

    /// Something may be there that was not looked at.
    fn cut_short(&self, is_so: bool) {
        self.complete.set(self.complete.get() && !is_so);
    }

    /// What a lane has not come to yet.
    fn log(&self, topic: i32, lane: i32, window: Window, backlog: &mut Backlog) -> Result<()> {
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
            (self.late).keep(&mut window, (topic, lane), &self.tables, &self.snapshot)?;
            self.cut_short(self.late.is_used_up());
        }
        backlog.depth += read as f64;
        if read >= EXACT {
            for (home, table) in &self.tables {
                let range = IndexRange {
                    table,
                    index: home.position,
                    of: &[topic, lane],
                    column: EventCol::EventId as usize,
                    place: &|id| event::place_in_lane(lane, id),
                };
                backlog.depth += range.estimate(last_id, &self.snapshot)?.rows;
            }
        }
        Ok(())
    }

    /// What a batch still holds, but for what has a row in once.retry.
    fn batch(&self, subscriber: &Subscriber, batch: &Batch, backlog: &mut Backlog) -> Result<()> {
        let held = Ledger::read(batch)?.held;
        let redelivered = batch.is_redelivered();
        if redelivered && !self.may_look(held.len() / PROBES) {
            return Ok(());
        }
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
        let range = IndexRange {
            table: &self.retry,
            index: retry::BY_EVENT,
            of: &[subscriber],
            column: RetryCol::EventId as usize,
            place: &|id| id,
        };
        let most = (ALL_RETRIES / self.retriers.len().max(1)).clamp(LEAST_RETRIES, RETRIES);
        let count = range.above(i64::MIN, most, &self.snapshot)?;
        backlog.depth += count.rows;
        self.cut_short(count.tired);
        if count.rows == 0.0 && !count.tired {
            return Ok(());
        }
        let keys = &mut [ScanKey::i32(1, subscriber)];
        let mut scan = self.retry.scan(retry::BY_EVENT, keys, &self.snapshot)?;
        let mut looks = entries_for(most);
        let (mut looked, mut asked) = (0, 0);
        while looked < most && asked < ASKED {
            let row = match scan.step(&mut looks) {
                Step::Row(slot) => Retry::look(slot),
                Step::End => return Ok(()),
                Step::Tired => break,
            };
            looked += 1;
            if self.is_delayed(&row) {
                continue;
            }
            asked += 1;
            let (since, in_order) = self.since(subscriber, &row)?;
            backlog.older(since);
            if in_order {
                return Ok(());
            }
        }
        self.hidden_retries(sub, backlog)
    }

    /// Behind those that were looked at, delayed ones or entries of those that are over among them: what is due, and
    /// in lanes that have no delayed ones what will be first.
    fn hidden_retries(&self, sub: &Subscriber, backlog: &mut Backlog) -> Result<()> {
        for lane in sub.lanes() {
            for suspect in [false, true] {
                let mut keys = vec![
                    ScanKey::i32(1, sub.id),
                    ScanKey::i32(2, lane),
                    ScanKey::bool(3, suspect),
                ];
                if event::is_unordered(lane) {
                    keys.push(ScanKey::until(4, self.now));
                }
                let mut scan = self.retry.scan(retry::BY_DUE, &mut keys, &self.snapshot)?;
                match scan.step(&mut entries_for(EXACT)) {
                    Step::Row(slot) => backlog.older(self.since(sub.id, &Retry::look(slot))?.0),
                    Step::End => {}
                    Step::Tired => self.cut_short(true),
                }
            }
        }
        Ok(())
    }

    /// Nobody has tried it, and its time is still to come.
    fn is_delayed(&self, row: &Retry) -> bool {
        let tried = [RetryCol::Token, RetryCol::Failures, RetryCol::Suspect];
        let due_at = row.i64(RetryCol::DueAt);
        tried.iter().all(|col| row.i64(*col) == 0) && due_at > self.now && due_at != INFINITY
    }

    /// Since when a row of once.retry waits; true: since it was emitted, so none behind it waits for longer.
    fn since(&self, subscriber: i32, row: &Retry) -> Result<(Option<i64>, bool)> {
        let id = row.i64(RetryCol::EventId);
        let (topic, lane) = (row.i32(RetryCol::Topic), row.i32(RetryCol::Lane));
        let Some(event) = event::find(topic, lane, id)? else {
            return Ok((None, false));
        };
        if event.i32(EventCol::Lane) != DELAYED {
            return Ok((Some(event.i64(EventCol::EmittedAt)), true));
        }
        let due_at = row.i64(RetryCol::DueAt);
        let since = match (row.i32(RetryCol::Failures), row.raw(RetryCol::Token)) {
            (1.., _) => self.first_failure(subscriber, id)?,
            (_, Some(token)) => Some(token.value() as i64),
            _ => Some(due_at).filter(|at| *at <= self.now),
        };
        Ok((since, false))
    }

    /// When the first attempt at an event failed, since it was redriven last.
    fn first_failure(&self, subscriber: i32, event_id: i64) -> Result<Option<i64>> {
        let table = Table::to_read(delivery::TABLE)?;
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, event_id)];
        let mut scan = table
            .scan(delivery::BY_EVENT, keys, &self.snapshot)?
            .backwards();
        let mut looks = entries_for(RETRIES);
        let mut at = None;
        while let Step::Row(slot) = scan.step(&mut looks) {
            let number = |col| slot.column(col as usize).map(|d| d.value() as i64);
            at = number(delivery::Col::At);
            if number(delivery::Col::Attempt) <= Some(1) {
                break;
            }
        }
        Ok(at)
    }

    fn tell(&self, sheet: &Sheet, subscriber: &Subscriber, backlog: &Backlog) -> Result<()> {
        let labels = Labels::of_subscriber(subscriber);
        sheet.put(
            "outbox_lag_seconds",
            &labels.pairs(),
            backlog.lag(self.now) as f64 / 1e6,
            "Age of the oldest event that the subscriber has not acked; 0: none. A delayed or redriven event counts from when it is due, a dead one not at all. Of more than 200 subscribers the worst have rows, see pg_once_outbox_complete.",
        )?;
        sheet.put(
            "outbox_depth",
            &labels.pairs(),
            backlog.depth.round(),
            "Events that the subscriber has not acked, those in batches, retries and delays included. Exact while each lane has fewer than 64, then an estimate from samples.",
        )
    }
}

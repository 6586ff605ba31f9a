//! The backlog of each subscriber: the age of its oldest event that is not acked, and the number of such events.
//!
//! Such events are in the log after a lane's cursor, in batches that still hold events, and in once.retry. Each of them
//! has a row in a table of events. A topic that has no rows in these tables has no backlog, and costs one probe of each
//! table. The lag leaves out an event that has not failed and is not due yet (delayed, or released). The age of a
//! delayed or redriven event counts from its first failure. Before a failure, the age counts from the take if the event
//! is in a batch, and from the due time if it is not. Dead events are counted separately (dead.rs).

use super::estimate::LaneRange;
use super::{Sheet, entries_for};
use crate::call::shown;
use crate::clock::{self, INFINITY};
use crate::error::Result;
use crate::outbox::batch::{self, Batch, Part};
use crate::outbox::delivery;
use crate::outbox::event::{self, Col as EventCol, DELAYED_LANE, Home};
use crate::outbox::receipt::{self, Ledger};
use crate::outbox::retry::{self, Col as RetryCol, Retry};
use crate::outbox::seen::Seen;
use crate::outbox::series;
use crate::outbox::topic::{Subscriber, all_subscribers};
use crate::outbox::window::{self, LaneLog, Window};
use crate::table::{ScanKey, ScanStep, Snapshot, Table};
use std::collections::BTreeSet;

/// Limit: up to this many events of a lane are counted one by one.
const EXACT: usize = 64;
/// Per subscriber, a call reads at most entries_for(RETRIES) index entries of once.retry, and looks up LOOKUPS events.
const RETRIES: usize = 10_000;
const LOOKUPS: usize = 1_000;

/// The state that one call reads for all subscribers.
pub struct BacklogLook {
    seen: Seen,
    snapshot: Snapshot,
    /// The present series.
    series: i32,
    tables: Vec<(&'static Home, Table)>,
    batches: Table,
    retry: Table,
    now: i64,
}

#[derive(Default)]
pub struct Backlog {
    pub depth: f64,
    /// The time from which the age of the oldest event counts.
    since: Option<i64>,
    /// Whether a bound was reached, and there may be more or older events.
    is_cut_short: bool,
}

impl Backlog {
    fn older(&mut self, since: Option<i64>) {
        self.since = self.since.into_iter().chain(since).min();
    }
}

/// Lag and depth by topic and subscriber.
pub fn outbox(sheet: &Sheet) -> Result<()> {
    let look = BacklogLook::begin()?;
    let mut is_complete = true;
    for subscriber in all_subscribers()? {
        let backlog = look.backlog(&subscriber)?;
        is_complete &= !backlog.is_cut_short;
        look.report(sheet, &subscriber, &backlog)?;
    }
    sheet.put(
        "pg_once_outbox_complete",
        &[],
        f64::from(u8::from(is_complete)),
        "1: the call read every backlog. 0: for some subscriber the call stopped at a limit, and this subscriber's numbers are lower bounds. One limit is for rows of once.retry. The other is 1000 delayed or redriven events that are due, taken or failed.",
    )
}

impl BacklogLook {
    pub fn begin() -> Result<BacklogLook> {
        let (seen, snapshot) = Seen::now()?;
        Ok(BacklogLook {
            series: series::present(&snapshot)?,
            seen,
            snapshot,
            tables: window::tables()?,
            batches: Table::to_read(batch::TABLE)?,
            retry: Table::to_read(retry::TABLE)?,
            now: clock::now_us()?,
        })
    }

    pub fn backlog(&self, subscriber: &Subscriber) -> Result<Backlog> {
        let mut backlog = Backlog::default();
        let topic = subscriber.topic.id;
        let mut lanes = BTreeSet::new();
        for (home, table) in &self.tables {
            lanes.extend(table.values(home.position, &[topic], &self.snapshot)?);
        }
        if lanes.is_empty() {
            return Ok(backlog);
        }
        let mut out = BTreeSet::new();
        for lane in subscriber.lanes().filter(|lane| lanes.contains(lane)) {
            let last = Part::last_in(&self.batches, subscriber.id, lane, &self.snapshot)?;
            if let Some(last) = &last {
                out.extend(last.out());
            }
            let window = Window::behind(subscriber, last.as_ref())?;
            self.log(topic, lane, window, &mut backlog)?;
        }
        for token in out {
            if receipt::is_over(subscriber.id, token, &self.snapshot)? {
                continue;
            }
            if let Some(batch) = Batch::find_under(subscriber.id, token, &self.snapshot)? {
                self.batch(subscriber, &batch, &mut backlog)?;
            }
        }
        self.retries(subscriber.id, &mut backlog)?;
        Ok(backlog)
    }

    /// Counts the events that the lane's cursor has not passed.
    fn log(&self, topic: i32, lane: i32, window: Window, backlog: &mut Backlog) -> Result<()> {
        let log = LaneLog {
            topic,
            lane,
            tables: &self.tables,
            snapshot: &self.snapshot,
            seen: &self.seen,
            series: self.series,
        };
        let mut read = 0;
        let last = window.walk(&log, |event| {
            if read == 0 {
                backlog.older(Some(event.i64(EventCol::EmittedAt)));
            }
            read += 1;
            Ok(read < EXACT)
        })?;
        backlog.depth += read as f64;
        if read >= EXACT {
            for (home, table) in &self.tables {
                let range = LaneRange {
                    home,
                    table,
                    topic,
                    lane,
                };
                backlog.depth += range.estimate(last.last_id, &self.snapshot)?;
            }
        }
        Ok(())
    }

    /// Counts the events that a batch still holds and that have no row in once.retry.
    fn batch(&self, subscriber: &Subscriber, batch: &Batch, backlog: &mut Backlog) -> Result<()> {
        let is_redelivered = batch.is_redelivered();
        let mut first: Option<i64> = None;
        for id in Ledger::read(batch)?.held {
            if is_redelivered && self.is_in_retry(subscriber.id, id)? {
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

    fn is_in_retry(&self, subscriber: i32, event_id: i64) -> Result<bool> {
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, event_id)];
        let row = self.retry.find(retry::BY_EVENT, keys, &self.snapshot)?;
        Ok(row.is_some())
    }

    /// Counts the rows of once.retry in the order of their event ids, which is the order of emission. Looks
    /// up events until it finds one that has waited since its emission. Every later event was emitted later, so it has
    /// not waited longer. The later rows are counted without a look-up.
    fn retries(&self, subscriber: i32, backlog: &mut Backlog) -> Result<()> {
        let keys = &mut [ScanKey::i32(1, subscriber)];
        let mut scan = self.retry.scan(retry::BY_EVENT, keys, &self.snapshot)?;
        let (mut looks, mut lookups, mut in_order) = (entries_for(RETRIES), LOOKUPS, false);
        loop {
            let row = match scan.step(&mut looks) {
                ScanStep::Row(slot) => Retry::borrow(slot),
                ScanStep::End => return Ok(()),
                ScanStep::LimitReached => break,
            };
            backlog.depth += 1.0;
            if in_order || self.is_delayed(&row) {
                continue;
            }
            if lookups == 0 {
                backlog.is_cut_short = true;
                continue;
            }
            lookups -= 1;
            let since;
            (since, in_order) = self.since(subscriber, &row)?;
            backlog.older(since);
        }
        backlog.is_cut_short = true;
        Ok(())
    }

    /// Whether the event has no counted attempt, is in no batch, is no suspect, and is not due yet.
    fn is_delayed(&self, row: &Retry) -> bool {
        let tried = [RetryCol::Token, RetryCol::Failures, RetryCol::Suspect];
        let due_at = row.i64(RetryCol::DueAt);
        tried.iter().all(|col| row.i64(*col) == 0) && due_at > self.now && due_at != INFINITY
    }

    /// The time since which a row of once.retry waits, and whether this is the time when the event was emitted.
    fn since(&self, subscriber: i32, row: &Retry) -> Result<(Option<i64>, bool)> {
        let id = row.i64(RetryCol::EventId);
        let (topic, lane) = (row.i32(RetryCol::Topic), row.i32(RetryCol::Lane));
        let Some(event) = event::find(topic, lane, id)? else {
            return Ok((None, false));
        };
        if event.i32(EventCol::Lane) != DELAYED_LANE && row.i32(RetryCol::Redriven) == 0 {
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

    /// The time of the first failed attempt at an event since its last redrive.
    fn first_failure(&self, subscriber: i32, event_id: i64) -> Result<Option<i64>> {
        let table = Table::to_read(delivery::TABLE)?;
        let keys = &mut [ScanKey::i32(1, subscriber), ScanKey::i64(2, event_id)];
        let scan = table.scan(delivery::BY_EVENT, keys, &self.snapshot)?;
        let mut scan = scan.backwards();
        let mut at = None;
        while let Some(slot) = scan.advance() {
            let number = |col| slot.column(col as usize).map(|d| d.value() as i64);
            at = number(delivery::Col::At);
            if number(delivery::Col::Attempt) <= Some(1) {
                break;
            }
        }
        Ok(at)
    }

    /// The age of the oldest event, in microseconds; None: there is none.
    pub fn lag_us(&self, backlog: &Backlog) -> Option<i64> {
        backlog.since.map(|at| self.now.saturating_sub(at).max(0))
    }

    fn report(&self, sheet: &Sheet, subscriber: &Subscriber, backlog: &Backlog) -> Result<()> {
        let (topic, name) = (shown(&subscriber.topic.name), shown(&subscriber.name));
        let labels = [("topic", &*topic), ("subscriber", &*name)];
        sheet.put(
            "outbox_lag_seconds",
            &labels,
            self.lag_us(backlog).unwrap_or(0) as f64 / 1e6,
            "Age of the oldest event that the subscriber has not acked; 0: none. The age of a delayed or redriven event starts at its first failure. Before a failure the age starts when the event is due, or at the take once the event is in a batch. A dead event does not count.",
        )?;
        sheet.put(
            "outbox_depth",
            &labels,
            backlog.depth.round(),
            "Events that the subscriber has not acked, with those in batches, retries and delays. Exact while each lane has fewer than 64, then an estimate from samples.",
        )?;
        sheet.put(
            "outbox_paused",
            &labels,
            f64::from(u8::from(subscriber.paused)),
            "1: the subscriber is paused (subscriber_set), and takes answer no rows; 0: it is not.",
        )
    }
}

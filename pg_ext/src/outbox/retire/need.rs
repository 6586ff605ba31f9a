//! Who still needs an event: a lane that has not come to it, an open batch that holds it, a retry.
//!
//! Everything is looked up when it is first asked for, as it is committed then, and kept for one (topic, lane)
//! at a time: ask in that order.

use crate::error::Result;
use crate::outbox::batch::{Batch, Part};
use crate::outbox::event::{Col, DELAYED, Event, KEPT};
use crate::outbox::receipt::Ledger;
use crate::outbox::retry;
use crate::outbox::topic::{Subscriber, all_subscribers};
use crate::outbox::window::Window;
use crate::table::{ScanKey, Snapshot, Table};
use std::collections::{HashMap, HashSet};

/// One lane of one subscriber.
struct LaneNeeds {
    subscriber: i32,
    /// None: no cursor passes this lane.
    window: Option<Window>,
    /// What its open batches hold.
    held: HashSet<i64>,
    /// From after the look at its batches; None: it has no retries.
    retries: Option<Snapshot>,
}

/// What is needed, as far as it was asked.
pub struct Needs {
    subscribers: HashMap<i32, Vec<Subscriber>>,
    here: Option<(i32, i32)>,
    places: Vec<LaneNeeds>,
    retry: Table,
    kept: Table,
    snapshot: Snapshot,
}

impl Needs {
    pub fn begin() -> Result<Needs> {
        let mut subscribers: HashMap<i32, Vec<Subscriber>> = HashMap::new();
        for subscriber in all_subscribers()? {
            let topic = subscribers.entry(subscriber.topic.id).or_default();
            topic.push(subscriber);
        }
        Ok(Needs {
            subscribers,
            here: None,
            places: Vec::new(),
            retry: Table::to_read(retry::TABLE)?,
            kept: Table::to_read(KEPT.table)?,
            snapshot: Snapshot::latest(),
        })
    }

    /// Somebody needs it.
    pub fn wants(&mut self, event: &Event) -> Result<bool> {
        let (topic, lane) = (event.i32(Col::TopicId), event.i32(Col::Lane));
        if self.here != Some((topic, lane)) {
            self.places.clear();
            for subscriber in self.subscribers.get(&topic).into_iter().flatten() {
                self.places
                    .push(LaneNeeds::read(subscriber, lane, &self.retry)?);
            }
            self.here = Some((topic, lane));
        }
        for place in &self.places {
            if place.wants(event, &self.retry)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// It is in once.event_kept, in this lane.
    pub fn is_kept(&self, event: &Event, lane: i32) -> Result<bool> {
        let keys = &mut [
            ScanKey::i32(1, event.i32(Col::TopicId)),
            ScanKey::i32(2, lane),
            ScanKey::i64(3, event.i64(Col::EventId)),
        ];
        Ok(self
            .kept
            .find(KEPT.position, keys, &self.snapshot)?
            .is_some())
    }
}

impl LaneNeeds {
    /// In this order: see the head of mod.rs.
    fn read(subscriber: &Subscriber, lane: i32, retry: &Table) -> Result<LaneNeeds> {
        let mut window = None;
        let mut held = HashSet::new();
        if lane != DELAYED {
            let last = Part::last(subscriber.id, lane, &Snapshot::latest())?;
            window = Some(Window::behind(subscriber, last.as_ref())?);
            if let Some(last) = &last {
                held = held_by_batches(subscriber.id, last)?;
            }
        }
        let snapshot = Snapshot::latest();
        let keys = &mut [ScanKey::i32(1, subscriber.id)];
        let any = retry.find(retry::BY_EVENT, keys, &snapshot)?.is_some();
        Ok(LaneNeeds {
            subscriber: subscriber.id,
            window,
            held,
            retries: any.then_some(snapshot),
        })
    }

    fn wants(&self, event: &Event, retry: &Table) -> Result<bool> {
        let id = event.i64(Col::EventId);
        if let Some(window) = &self.window
            && !window.has_passed(event.i32(Col::Series), event.i64(Col::Xid), id)
        {
            return Ok(true);
        }
        if self.held.contains(&id) {
            return Ok(true);
        }
        let Some(snapshot) = &self.retries else {
            return Ok(false);
        };
        let keys = &mut [ScanKey::i32(1, self.subscriber), ScanKey::i64(2, id)];
        Ok(retry.find(retry::BY_EVENT, keys, snapshot)?.is_some())
    }
}

/// What the batches of a lane that are not over hold; the last one knows which these may be.
fn held_by_batches(subscriber: i32, last: &Part) -> Result<HashSet<i64>> {
    let mut held = HashSet::new();
    for token in last.out() {
        if let Some(batch) = Batch::find(subscriber, token)? {
            held.extend(Ledger::read(&batch)?.held);
        }
    }
    Ok(held)
}

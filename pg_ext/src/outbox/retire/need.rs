//! A subscriber needs the events that it has not read past, and the events of its open batches and of its retries.
//!
//! [`Needs`] reads the committed state of a (topic, lane) when a caller first asks about an event there. It holds one
//! state at a time, so callers ask in the order of topic and lane.

use crate::error::Result;
use crate::outbox::batch::{Batch, Part};
use crate::outbox::event::{Col, DELAYED_LANE, Event, KEPT};
use crate::outbox::receipt::Ledger;
use crate::outbox::retry;
use crate::outbox::topic::{Subscriber, all_subscribers};
use crate::outbox::window::Window;
use crate::row;
use crate::table::{ScanKey, Slot, Snapshot, Table};
use pgrx::pg_sys::{self, Datum};
use std::collections::{HashMap, HashSet};

/// Where an event is: topic, lane, event id.
pub type EventPlace = (i32, i32, i64);

pub fn place(event: &Event) -> EventPlace {
    let (topic, lane) = (event.i32(Col::TopicId), event.i32(Col::Lane));
    (topic, lane, event.i64(Col::EventId))
}

/// Topics, lanes and event ids as arrays.
pub fn place_arrays(places: &[EventPlace]) -> [Datum; 3] {
    let ids: Vec<i64> = places.iter().map(|p| p.2).collect();
    [
        row::array(places.iter().map(|p| p.0.into()), pg_sys::INT4OID),
        row::array(places.iter().map(|p| p.1.into()), pg_sys::INT4OID),
        row::i64s(&ids),
    ]
}

/// The events on these pages, in the order that [`Needs`] requires. Reads no further page once it has `most` events.
pub fn events_on(table: &Table, pages: impl Iterator<Item = u32>, most: usize) -> Vec<Event> {
    let snapshot = Snapshot::latest();
    let mut events = Vec::new();
    for page in pages {
        if events.len() >= most {
            break;
        }
        table.page(page, &snapshot, |slot| events.push(numbers_of(slot)));
    }
    events.sort_by_key(place);
    events
}

/// The columns that decide whether an event is needed.
fn numbers_of(slot: &Slot) -> Event {
    let mut event = Event::empty();
    for col in [Col::EventId, Col::Xid, Col::TopicId, Col::Lane, Col::Series] {
        event.put(col, slot.column(col as usize));
    }
    event
}

/// The events of one lane that one subscriber needs.
struct LaneNeeds {
    subscriber: i32,
    /// None for DELAYED_LANE: no take reads it.
    window: Option<Window>,
    /// The events of its open batches.
    held: HashSet<i64>,
    /// The snapshot for once.retry, taken after the batches were read; None: the subscriber has no retries.
    retries: Option<Snapshot>,
}

/// Answers whether any subscriber needs an event.
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

    /// Whether any subscriber needs the event.
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

    pub fn is_kept(&self, event: &Event) -> Result<bool> {
        let (topic, lane, id) = place(event);
        let keys = &mut [
            ScanKey::i32(1, topic),
            ScanKey::i32(2, lane),
            ScanKey::i64(3, id),
        ];
        Ok(self
            .kept
            .find(KEPT.position, keys, &self.snapshot)?
            .is_some())
    }
}

impl LaneNeeds {
    /// Looks at the lane, its batches and once.retry in this order: see the head of mod.rs.
    fn read(subscriber: &Subscriber, lane: i32, retry: &Table) -> Result<LaneNeeds> {
        let mut window = None;
        let mut held = HashSet::new();
        if lane != DELAYED_LANE {
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

/// The events of a lane's open batches. `last` lists the lane's batches that may be open.
fn held_by_batches(subscriber: i32, last: &Part) -> Result<HashSet<i64>> {
    let mut held = HashSet::new();
    for token in last.out() {
        if let Some(batch) = Batch::find(subscriber, token)? {
            held.extend(Ledger::read(&batch)?.held);
        }
    }
    Ok(held)
}

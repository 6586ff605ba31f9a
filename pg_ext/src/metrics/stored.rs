//! What the log holds of each topic, looked at once for all of its subscribers.
//!
//! Most topics have nothing there, or little: that is read here, and a subscriber is only asked how far it has come.
//! Of a topic with more, each lane that may have something is looked at for each subscriber (backlog.rs).
//!
//! Invariant: an event that is not acked is stored, so a topic without events here has no backlog, and no lane has
//! one that is not named here.

use super::entries_for;
use crate::error::Result;
use crate::outbox::event::{Col, DELAYED, Event, Home};
use crate::outbox::window::Window;
use crate::table::{ScanKey, Snapshot, Step, Table};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Events of a topic that are read in one table.
const FEW: usize = 32;
/// Topics with events that are looked at.
const TOPICS: usize = 2_000;

/// The tables that hold any event, open.
pub type EventTables = [(&'static Home, Table)];

/// An event, as far as it says whether a lane has passed it.
pub struct Known {
    lane: i32,
    series: i32,
    xid: i64,
    id: i64,
    pub emitted_at: i64,
}

impl Known {
    fn from_event(event: &Event) -> Known {
        Known {
            lane: event.i32(Col::Lane),
            series: event.i32(Col::Series),
            xid: event.i64(Col::Xid),
            id: event.i64(Col::EventId),
            emitted_at: event.i64(Col::EmittedAt),
        }
    }

    /// A lane that is there has still to hand it out.
    pub fn is_before(&self, window: &Window) -> bool {
        !window.has_passed(self.series, self.xid, self.id)
    }
}

/// What is stored in a lane.
pub enum Content {
    /// All of it.
    Few(Vec<Known>),
    Many,
}

/// What is stored of a topic.
pub struct StoredTopic {
    /// When the oldest was emitted, as far as it was looked for: no subscriber waits for longer.
    pub oldest: i64,
    lanes: BTreeMap<i32, Content>,
}

impl StoredTopic {
    /// Lanes that cursors pass, with what is stored there.
    pub fn lanes(&self) -> impl Iterator<Item = (i32, &Content)> {
        let passed = self.lanes.iter().filter(|(lane, _)| **lane != DELAYED);
        passed.map(|(lane, content)| (*lane, content))
    }

    /// Looks at a topic in the tables that may have some of it.
    fn read(topic: i32, tables: &[&(&Home, Table)], snapshot: &Snapshot) -> Result<StoredTopic> {
        let mut all: BTreeMap<(i32, i64), Known> = BTreeMap::new();
        for (home, table) in tables {
            if !read_few(topic, home, table, snapshot, &mut all)? {
                return StoredTopic::by_lane(topic, tables, snapshot);
            }
        }
        let mut stored = StoredTopic {
            oldest: all.values().map(|e| e.emitted_at).min().unwrap_or(i64::MAX),
            lanes: BTreeMap::new(),
        };
        // By place, so that what was copied out of its segment is there once.
        for event in all.into_values() {
            let lane = stored.lanes.entry(event.lane);
            if let Content::Few(events) = lane.or_insert_with(|| Content::Few(Vec::new())) {
                events.push(event);
            }
        }
        Ok(stored)
    }

    /// Of more than is read here: the lanes that have entries, and the first event of each.
    fn by_lane(topic: i32, tables: &[&(&Home, Table)], snapshot: &Snapshot) -> Result<StoredTopic> {
        let mut stored = StoredTopic {
            oldest: i64::MAX,
            lanes: BTreeMap::new(),
        };
        for (home, table) in tables {
            for lane in table.values(home.position, &[topic], snapshot)? {
                stored.lanes.insert(lane, Content::Many);
                let keys = &mut [ScanKey::i32(1, topic), ScanKey::i32(2, lane)];
                let mut scan = table.scan(home.position, keys, snapshot)?;
                let first = match scan.step(&mut entries_for(1)) {
                    Step::Row(slot) => Event::look(slot).i64(Col::EmittedAt),
                    Step::End => continue,
                    // It may be as old as can be.
                    Step::Tired => i64::MIN,
                };
                stored.oldest = stored.oldest.min(first);
            }
        }
        Ok(stored)
    }
}

/// Reads a topic's events in a table; false: they are too many.
fn read_few(
    topic: i32,
    home: &Home,
    table: &Table,
    snapshot: &Snapshot,
    all: &mut BTreeMap<(i32, i64), Known>,
) -> Result<bool> {
    let mut scan = table.scan(home.position, &mut [ScanKey::i32(1, topic)], snapshot)?;
    let mut looks = entries_for(FEW);
    for _ in 0..=FEW {
        match scan.step(&mut looks) {
            Step::Row(slot) => {
                let event = Known::from_event(&Event::look(slot));
                all.entry((event.lane, event.id)).or_insert(event);
            }
            Step::End => return Ok(true),
            Step::Tired => return Ok(false),
        }
    }
    Ok(false)
}

/// The topics that have anything stored, by number; false: there were more than are looked at.
pub fn stored_topics(
    tables: &EventTables,
    snapshot: &Snapshot,
) -> Result<(BTreeMap<i32, StoredTopic>, bool)> {
    let mut where_it_is: BTreeMap<i32, BTreeSet<usize>> = BTreeMap::new();
    for (i, (home, table)) in tables.iter().enumerate() {
        for topic in table.values(home.position, &[], snapshot)? {
            where_it_is.entry(topic).or_default().insert(i);
        }
    }
    let complete = where_it_is.len() <= TOPICS;
    // What had to leave its segment, because somebody has not acked it, is in the last table.
    let mut where_it_is: Vec<_> = where_it_is.into_iter().collect();
    where_it_is.sort_by_key(|(_, places)| Reverse(places.last().copied()));
    let mut all = BTreeMap::new();
    for (topic, places) in where_it_is.into_iter().take(TOPICS) {
        let places: Vec<_> = places.into_iter().map(|i| &tables[i]).collect();
        all.insert(topic, StoredTopic::read(topic, &places, snapshot)?);
    }
    Ok((all, complete))
}

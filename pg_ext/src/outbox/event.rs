//! One event, and the tables of events: the segments and once.event_kept.

use super::topic::Topic;
use crate::call::shown;
use crate::error::{Error, Result};
use crate::table::{self, Name, ScanKey, Snapshot, Table};

/// A table of events and its indexes, by position and by transaction.
pub struct Home {
    pub table: Name,
    pub position: Name,
    pub xid: Name,
}

/// The segments in the order of their numbers.
pub const SEGMENTS: [Home; 4] = [
    Home {
        table: c"event_0",
        position: c"event_0_position",
        xid: c"event_0_xid",
    },
    Home {
        table: c"event_1",
        position: c"event_1_position",
        xid: c"event_1_xid",
    },
    Home {
        table: c"event_2",
        position: c"event_2_position",
        xid: c"event_2_xid",
    },
    Home {
        table: c"event_3",
        position: c"event_3_position",
        xid: c"event_3_xid",
    },
];

/// The table that names the current segment.
pub const SEGMENT: Name = c"segment";

/// The table of copied, delayed and redriven events.
pub const KEPT: Home = Home {
    table: c"event_kept",
    position: c"event_kept_position",
    xid: c"event_kept_xid",
};

/// The lane of delayed and redriven events. No take reads this lane: takes find these events through once.retry.
pub const DELAYED_LANE: i32 = -1;
/// The lanes of events without order_key: several, so that concurrent takes rarely wait for each other.
pub const UNORDERED: [i32; 8] = [0, -2, -3, -4, -5, -6, -7, -8];
/// This many consecutive event ids go to the same lane, so a small backlog is in one lane or two.
const RUN: i64 = 64;

/// The lane of an event without order_key.
pub fn unordered_lane(event_id: i64) -> i32 {
    UNORDERED[(event_id / RUN).rem_euclid(UNORDERED.len() as i64) as usize]
}

/// For an unordered lane: how many of all ids below `event_id` fall into this lane. For another lane: `event_id`.
pub fn place_in_lane(lane: i32, event_id: i64) -> i64 {
    let Some(turn) = UNORDERED.iter().position(|l| *l == lane) else {
        return event_id;
    };
    let round = RUN * UNORDERED.len() as i64;
    let here = event_id.rem_euclid(round) - turn as i64 * RUN;
    event_id.div_euclid(round) * RUN + here.clamp(0, RUN)
}

/// Whether the lane is for events without order_key. Any number of open batches may share such a lane.
pub fn is_unordered(lane: i32) -> bool {
    UNORDERED.contains(&lane)
}

/// Columns of every table of events, from 1.
#[derive(Clone, Copy)]
pub enum Col {
    EventId = 1,
    Xid,
    EmittedAt,
    TopicId,
    Lane,
    Series,
    OrderKey,
    Headers,
    Payload,
}

table::columns!(Col);

pub type Event = table::Record<Col, 9>;

/// All tables of events.
pub fn homes() -> impl Iterator<Item = &'static Home> {
    SEGMENTS.iter().chain(std::iter::once(&KEPT))
}

/// Finds an event by topic, lane and id; a delayed or redriven event is found whatever lane is given.
pub fn find(topic_id: i32, lane: i32, event_id: i64) -> Result<Option<Event>> {
    let snapshot = Snapshot::latest();
    let lanes = [lane, DELAYED_LANE];
    for home in homes() {
        let table = Table::to_read(home.table)?;
        if table.is_blank() {
            continue;
        }
        for lane in lanes {
            let keys = &mut [
                ScanKey::i32(1, topic_id),
                ScanKey::i32(2, lane),
                ScanKey::i64(3, event_id),
            ];
            if let Some(slot) = table.find(home.position, keys, &snapshot)? {
                return Ok(Some(Event::load(slot)));
            }
        }
    }
    Ok(None)
}

/// Like [`find`], for an event that a batch or a retry names: an error if the event is not stored.
pub fn needed(topic: &Topic, lane: i32, event_id: i64) -> Result<Event> {
    find(topic.id, lane, event_id)?.ok_or_else(|| {
        let topic = shown(&topic.name);
        Error::internal(format!(
            "event {event_id} of topic \"{topic}\" is not stored"
        ))
        .hint("If a restore is running, try again when it has ended. Otherwise rows were lost: insert the event into once.event_kept from a backup.")
    })
}

/// The current segment: the segment that was opened last.
pub fn current_segment(snapshot: &Snapshot) -> Result<usize> {
    let table = Table::to_read(SEGMENT)?;
    let mut scan = table.scan(c"segment_pkey", &mut [], snapshot)?;
    let mut current = (0, 0);
    while let Some(slot) = scan.advance() {
        let number = |i| {
            slot.column(i)
                .map_or(0, |d: pgrx::pg_sys::Datum| d.value() as i64)
        };
        if number(2) > current.0 {
            current = (number(2), number(1));
        }
    }
    Ok(current.1 as usize % SEGMENTS.len())
}

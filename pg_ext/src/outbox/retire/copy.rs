//! What of a segment is needed, and copying that to once.event_kept.
//!
//! Copying pays where it is the smaller part of a segment; the rest waits for its readers, and the current segment
//! grows meanwhile. Only when no segment can be emptied and most of the current one is needed by nobody, the
//! segment with the least that is needed is emptied whatever that is, so that a subscriber that lags costs about
//! the space of its own backlog and not of what others are done with.

use super::log::{self, Log};
use super::need::Needs;
use crate::clock;
use crate::error::Result;
use crate::outbox::event::{Col, Event, Home, SEGMENTS};
use crate::row;
use crate::spi::{self, Kept};
use crate::swept::Swept;
use crate::table::{Slot, Snapshot, Table};
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

/// Where so many events of a segment are needed, and most of all that are on some of its pages, the rest is not
/// counted. (What is first in an index says nothing of the rest: it is one topic's.)
const MANY: usize = 20_000;
const PAGES: u32 = 64;
/// The current segment is moved on from when its last event is that old and nobody needs any of it.
const IDLE_US: i64 = 60_000_000;

const COPY_0: &CStr = c"
    WITH copied AS (
        INSERT INTO once.event_kept
        SELECT e.* FROM once.event_0 e JOIN unnest($1, $2, $3) n (topic_id, lane, event_id)
               ON e.topic_id = n.topic_id AND e.lane = n.lane AND e.event_id = n.event_id
         ORDER BY e.topic_id, e.lane, e.event_id
            ON CONFLICT (topic_id, lane, event_id) DO NOTHING RETURNING 1)
    SELECT pg_catalog.count(*) FROM copied";

const COPY_1: &CStr = c"
    WITH copied AS (
        INSERT INTO once.event_kept
        SELECT e.* FROM once.event_1 e JOIN unnest($1, $2, $3) n (topic_id, lane, event_id)
               ON e.topic_id = n.topic_id AND e.lane = n.lane AND e.event_id = n.event_id
         ORDER BY e.topic_id, e.lane, e.event_id
            ON CONFLICT (topic_id, lane, event_id) DO NOTHING RETURNING 1)
    SELECT pg_catalog.count(*) FROM copied";

const COPY_2: &CStr = c"
    WITH copied AS (
        INSERT INTO once.event_kept
        SELECT e.* FROM once.event_2 e JOIN unnest($1, $2, $3) n (topic_id, lane, event_id)
               ON e.topic_id = n.topic_id AND e.lane = n.lane AND e.event_id = n.event_id
         ORDER BY e.topic_id, e.lane, e.event_id
            ON CONFLICT (topic_id, lane, event_id) DO NOTHING RETURNING 1)
    SELECT pg_catalog.count(*) FROM copied";

const COPY_3: &CStr = c"
    WITH copied AS (
        INSERT INTO once.event_kept
        SELECT e.* FROM once.event_3 e JOIN unnest($1, $2, $3) n (topic_id, lane, event_id)
               ON e.topic_id = n.topic_id AND e.lane = n.lane AND e.event_id = n.event_id
         ORDER BY e.topic_id, e.lane, e.event_id
            ON CONFLICT (topic_id, lane, event_id) DO NOTHING RETURNING 1)
    SELECT pg_catalog.count(*) FROM copied";

const EVENTS: &[pg_sys::Oid] = &[
    pg_sys::INT4ARRAYOID,
    pg_sys::INT4ARRAYOID,
    pg_sys::INT8ARRAYOID,
];

thread_local! {
    static FROM_0: Kept = const { Kept::new(COPY_0, EVENTS) };
    static FROM_1: Kept = const { Kept::new(COPY_1, EVENTS) };
    static FROM_2: Kept = const { Kept::new(COPY_2, EVENTS) };
    static FROM_3: Kept = const { Kept::new(COPY_3, EVENTS) };
}

/// What of a segment is needed and not copied yet.
#[derive(Default)]
struct Census {
    looked: usize,
    needed: usize,
    /// All of it was looked at.
    complete: bool,
    /// The first of what is needed: topic, lane, event.
    first: Vec<(i32, i32, i64)>,
    /// The oldest transaction that was running then.
    checked: i64,
}

impl Census {
    fn mostly_needed(&self) -> bool {
        self.needed * 2 >= self.looked
    }
}

/// For a census: so many are needed that the rest need not be counted.
fn many_needed(home: &Home) -> impl FnMut(&Census) -> Result<bool> + '_ {
    let mut known = None;
    move |census| {
        if census.needed <= MANY || !census.mostly_needed() {
            return Ok(false);
        }
        if known.is_none() {
            known = Some(is_mostly_needed(home)?);
        }
        Ok(known == Some(true))
    }
}

/// Most of what is on some pages of a segment is needed.
fn is_mostly_needed(home: &Home) -> Result<bool> {
    let table = Table::to_read(home.table)?;
    let snapshot = Snapshot::latest();
    let all = table.pages();
    let some = all.min(PAGES);
    let mut events = Vec::new();
    for i in 0..some {
        let page = u64::from(all) * u64::from(i) / u64::from(some);
        table.page(page as u32, &snapshot, |slot| events.push(numbers_of(slot)));
    }
    events.sort_by_key(|event| (event.i32(Col::TopicId), event.i32(Col::Lane)));
    let mut needs = Needs::begin()?;
    let mut needed = 0;
    for event in &events {
        let is_needed = needs.wants(event)? && !needs.is_kept(event, event.i32(Col::Lane))?;
        needed += usize::from(is_needed);
    }
    Ok(needed * 2 >= events.len())
}

/// What says who needs an event.
fn numbers_of(slot: &Slot) -> Event {
    let mut event = Event::empty();
    for col in [Col::EventId, Col::Xid, Col::TopicId, Col::Lane, Col::Series] {
        event.put(col, slot.column(col as usize));
    }
    event
}

/// Looks through a segment until that is enough; notes the first `keep` of what is needed.
fn census(
    home: &Home,
    keep: usize,
    mut is_enough: impl FnMut(&Census) -> Result<bool>,
) -> Result<Census> {
    let table = Table::to_read(home.table)?;
    let snapshot = Snapshot::latest();
    let mut census = Census {
        checked: snapshot.oldest_running(),
        ..Census::default()
    };
    let mut needs = Needs::begin()?;
    let mut scan = table.scan(home.position, &mut [], &snapshot)?;
    while let Some(slot) = scan.advance() {
        let event = Event::look(slot);
        let lane = event.i32(Col::Lane);
        census.looked += 1;
        if needs.wants(&event)? && !needs.is_kept(&event, lane)? {
            census.needed += 1;
            if census.first.len() < keep {
                let place = (event.i32(Col::TopicId), lane, event.i64(Col::EventId));
                census.first.push(place);
            }
            if is_enough(&census)? {
                return Ok(census);
            }
        }
        pg_sys::check_for_interrupts!();
    }
    census.complete = true;
    Ok(census)
}

/// Copies at most `max` events, and marks the segments of which nothing is needed then.
pub fn copy_needed(max: i64) -> Result<Swept> {
    let log = Log::read(&Snapshot::latest())?;
    let mut swept = Swept::default();
    let mut waiting: Vec<(usize, Census)> = Vec::new();
    for segment in log.closed()? {
        let left = (max - swept.done).max(0) as usize;
        let home = &SEGMENTS[segment];
        let census = census(home, left, many_needed(home))?;
        match census.needed > 0 && census.mostly_needed() {
            true => waiting.push((segment, census)),
            false => empty(segment, &census, &mut swept)?,
        }
    }
    let least = waiting.iter().min_by_key(|(_, census)| census.needed);
    if let Some((segment, census)) = least
        && swept.done < max
        && is_stuck(&log)?
    {
        empty(*segment, census, &mut swept)?;
    }
    Ok(swept)
}

/// The log cannot move on, and grows by what nobody needs.
fn is_stuck(log: &Log) -> Result<bool> {
    let full = log.is_full(log.current)? && !Log::read(&Snapshot::latest())?.will_be_empty()?;
    let home = &SEGMENTS[log.current];
    Ok(full && !census(home, 0, many_needed(home))?.mostly_needed())
}

/// Copies what was noted; where that was all, nobody needs the segment any more.
fn empty(segment: usize, census: &Census, swept: &mut Swept) -> Result<()> {
    let copied = copy(segment, &census.first)?;
    swept.done += copied as i64;
    if census.complete && copied == census.needed {
        log::mark_drained(segment, census.checked)?;
    }
    // The rest of it, or truncating it.
    swept.more = true;
    Ok(())
}

fn copy(segment: usize, events: &[(i32, i32, i64)]) -> Result<usize> {
    if events.is_empty() {
        return Ok(0);
    }
    let ids: Vec<i64> = events.iter().map(|(_, _, id)| *id).collect();
    let args = [
        row::array(events.iter().map(|e| e.0.into()), pg_sys::INT4OID),
        row::array(events.iter().map(|e| e.1.into()), pg_sys::INT4OID),
        row::i64s(&ids),
    ];
    let statement = match segment {
        0 => &FROM_0,
        1 => &FROM_1,
        2 => &FROM_2,
        _ => &FROM_3,
    };
    let rows = spi::query_latest(statement, &args.map(Some))?;
    Ok(rows.first().map_or(0, |row| number(row, 0) as usize))
}

/// Nothing has come into the segment for a while, and nobody needs any of it.
pub fn is_idle_and_needed_by_nobody(segment: usize) -> Result<bool> {
    let home = &SEGMENTS[segment];
    let table = Table::to_read(home.table)?;
    if table.is_blank() {
        return Ok(false);
    }
    let youngest = table.find_last(home.xid, &mut [], &Snapshot::latest())?;
    let last_at = youngest.map_or(i64::MIN, |slot| Event::load(slot).i64(Col::EmittedAt));
    if clock::now_us()?.saturating_sub(last_at) < IDLE_US {
        return Ok(false);
    }
    Ok(census(home, 0, |c| Ok(c.needed > 0))?.needed == 0)
}

/// Of a datum that a sweep's statement returned.
pub fn number(row: &spi::Row, column: usize) -> i64 {
    row.get(column)
        .copied()
        .flatten()
        .map_or(0, |d: Datum| d.value() as i64)
}

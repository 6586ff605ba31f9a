//! Copies the needed events of a closed segment to once.event_kept. The segment is then drained.
//!
//! A closed segment is copied if less than half of it is needed. Otherwise it stays until less of it is needed.
//!
//! A closed segment cannot become the current segment. While every segment but the current one is closed, the current
//! segment grows. When it is full and less than half of it is needed, a closed segment is copied although at least half
//! of the closed segment is needed. The closed segment with the fewest needed events is chosen. So a subscriber that
//! lags costs about the space of its own backlog.

use super::log::{self, Log};
use super::need::{self, EventPlace, Needs, place, place_arrays};
use crate::clock;
use crate::error::Result;
use crate::outbox::event::{Col, Event, Home, SEGMENTS};
use crate::spi::{self, Kept, number};
use crate::swept::Swept;
use crate::table::{self, Snapshot, Table};
use pgrx::pg_sys::{self, Datum, INT4ARRAYOID, INT4OID, INT8ARRAYOID};
use std::ffi::CStr;

/// The maximum number of pages in a sample. They are pages of the table, where the events of all topics are mixed. In
/// an index, consecutive entries could all be of one topic.
const PAGES: u64 = 64;
/// The current segment is also replaced when its first event is this old and less than half of its events are needed.
const OLD_US: i64 = 600_000_000;

// $4: the number of the segment that holds the events.
const COPY: &CStr = c"
    WITH copied AS (
        INSERT INTO once.event_kept
        SELECT e.* FROM unnest($1, $2, $3) n (topic_id, lane, event_id)
               CROSS JOIN LATERAL (
                   SELECT * FROM once.event_0 s WHERE $4 = 0
                      AND s.topic_id = n.topic_id AND s.lane = n.lane AND s.event_id = n.event_id
                    UNION ALL
                   SELECT * FROM once.event_1 s WHERE $4 = 1
                      AND s.topic_id = n.topic_id AND s.lane = n.lane AND s.event_id = n.event_id
                    UNION ALL
                   SELECT * FROM once.event_2 s WHERE $4 = 2
                      AND s.topic_id = n.topic_id AND s.lane = n.lane AND s.event_id = n.event_id
                    UNION ALL
                   SELECT * FROM once.event_3 s WHERE $4 = 3
                      AND s.topic_id = n.topic_id AND s.lane = n.lane AND s.event_id = n.event_id) e
         ORDER BY e.topic_id, e.lane, e.event_id
            ON CONFLICT (topic_id, lane, event_id) DO NOTHING RETURNING 1)
    SELECT pg_catalog.count(*) FROM copied";

static COPIED: Kept = Kept::new(COPY, &[INT4ARRAYOID, INT4ARRAYOID, INT8ARRAYOID, INT4OID]);

/// How many events of a segment are needed and not copied yet, judged by a sample of its pages.
struct Estimate {
    needed: u64,
    /// Whether at least half of the events in the sample are needed and not copied yet.
    is_most: bool,
}

fn estimate(home: &Home) -> Result<Estimate> {
    let table = Table::to_read(home.table)?;
    let all = u64::from(table.pages());
    let some = all.min(PAGES);
    let pages = (0..some).map(|i| (all * i / some) as u32);
    let events = need::events_on(&table, pages, usize::MAX);
    let mut needs = Needs::begin()?;
    let mut needed = 0;
    for event in &events {
        needed += usize::from(needs.wants(event)? && !needs.is_kept(event)?);
    }
    Ok(Estimate {
        needed: needed as u64 * all / some.max(1),
        is_most: needed > 0 && needed * 2 >= events.len(),
    })
}

/// The first `most` events of a segment that are needed and not copied yet. False: there are more.
fn find_needed(home: &Home, most: usize) -> Result<(Vec<EventPlace>, bool)> {
    let table = Table::to_read(home.table)?;
    let snapshot = Snapshot::latest();
    let mut needs = Needs::begin()?;
    let mut found = Vec::new();
    let mut scan = table.scan(home.position, &mut [], &snapshot)?;
    while let Some(slot) = scan.advance() {
        let event = Event::borrow(slot);
        if needs.wants(&event)? && !needs.is_kept(&event)? {
            if found.len() >= most {
                return Ok((found, false));
            }
            found.push(place(&event));
        }
        pg_sys::check_for_interrupts!();
    }
    Ok((found, true))
}

/// Copies at most `max` events, and marks a segment as drained once all of its needed events are copied.
pub fn copy_needed(max: i64) -> Result<Swept> {
    let log = Log::read(&Snapshot::latest())?;
    let mut swept = Swept::default();
    if log.is_opened_here {
        return Ok(swept);
    }
    let mut least: Option<(u64, usize)> = None;
    for segment in log.closed()? {
        let estimate = estimate(&SEGMENTS[segment])?;
        match estimate.is_most {
            true => least = least.into_iter().chain([(estimate.needed, segment)]).min(),
            false => empty(segment, max, &mut swept)?,
        }
    }
    if let Some((_, segment)) = least
        && is_stuck(&log)?
    {
        empty(segment, max, &mut swept)?;
    }
    Ok(swept)
}

/// Whether the current segment is full and mostly not needed, and no other segment is empty or drained.
fn is_stuck(log: &Log) -> Result<bool> {
    let full = log.is_full(log.current)? && !Log::read(&Snapshot::latest())?.will_be_empty()?;
    Ok(full && !estimate(&SEGMENTS[log.current])?.is_most)
}

/// Copies the needed events of a segment, up to `max` events per sweep, and marks the segment as drained once all are
/// copied. Does nothing while an open transaction may still add events to the segment. (Later transactions write to the
/// current segment.)
fn empty(segment: usize, max: i64, swept: &mut Swept) -> Result<()> {
    let left = (max - swept.done).max(0) as usize;
    if left == 0 || !table::has_no_writers(SEGMENTS[segment].table)? {
        return Ok(());
    }
    let (needed, is_all) = find_needed(&SEGMENTS[segment], left)?;
    swept.done += copy(segment, &needed)?;
    if is_all {
        log::mark_drained(segment)?;
    }
    // The next sweep copies the rest of the segment, or truncates it.
    swept.more = true;
    Ok(())
}

fn copy(segment: usize, events: &[EventPlace]) -> Result<i64> {
    if events.is_empty() {
        return Ok(0);
    }
    let [topics, lanes, ids] = place_arrays(events);
    let args = [topics, lanes, ids, Datum::from(segment as i32)];
    let rows = spi::query_latest(&COPIED, &args.map(Some))?;
    Ok(rows.first().map_or(0, |row| number(row, 0)))
}

pub fn is_old_and_mostly_not_needed(segment: usize) -> Result<bool> {
    let home = &SEGMENTS[segment];
    let table = Table::to_read(home.table)?;
    let snapshot = Snapshot::latest();
    let Some(oldest) = table.scan(home.xid, &mut [], &snapshot)?.into_next() else {
        return Ok(false);
    };
    let age = clock::now_us()?.saturating_sub(Event::load(oldest).i64(Col::EmittedAt));
    Ok(age >= OLD_US && !estimate(home)?.is_most)
}

//! A window is the part of a lane that is being handed out: the events that one snapshot saw and an earlier snapshot
//! did not, in the order of event ids.
//!
//! Most of these events have ids above the earlier snapshot's `high`: they are one range of the index by position. The
//! other events belong to transactions that had not ended at the earlier snapshot (`late`): each transaction is a range
//! of the index by transaction. A reader merges these ranges over all tables of events; nothing is sorted.

use super::batch::{Col as BatchCol, Part};
use super::event::{self, Col, Event, Home};
use super::seen::Seen;
use super::topic::Subscriber;
use crate::error::Result;
use crate::row;
use crate::table::{Scan, ScanKey, Snapshot, Table};

/// Before a scan returns a row, it reads all entries of the index page that are in its range. To read fewer entries,
/// a reader that continues a window scans up to three ranges: the next 32 ids, those up to the 1024th, and the rest.
const AHEAD: [i64; 2] = [1024, 32];

/// A lane of the log as one snapshot shows it.
pub struct LaneLog<'a> {
    pub topic: i32,
    pub lane: i32,
    pub tables: &'a [(&'static Home, Table)],
    pub snapshot: &'a Snapshot,
    /// The events of the present series that `snapshot` sees. All events of an older series count as seen.
    pub seen: &'a Seen,
    pub series: i32,
}

/// The window of a lane, and how far the window has been handed out.
pub struct Window {
    pub series: i32,
    from: Seen,
    to: Seen,
    late: Vec<i64>,
    /// Every event of the window up to this id has been handed out or inserted into once.retry.
    pub last_id: i64,
}

impl Window {
    /// The window of a lane. `last` is the lane's last part; None: the lane has no batch.
    pub fn behind(subscriber: &Subscriber, last: Option<&Part>) -> Result<Window> {
        last.map_or_else(|| Ok(Window::start(subscriber)), Window::after)
    }

    /// The window of a lane without a batch: it begins behind the events that were visible when its subscriber was
    /// made.
    fn start(subscriber: &Subscriber) -> Window {
        Window {
            series: subscriber.start_series,
            from: subscriber.start.clone(),
            to: subscriber.start.clone(),
            late: Vec::new(),
            last_id: 0,
        }
    }

    /// The window of a lane as this part of a batch stores it.
    fn after(batch: &Part) -> Result<Window> {
        let seen = |col| batch.raw(col).map_or(Ok(Seen::nothing()), Seen::stored);
        Ok(Window {
            series: batch.i32(BatchCol::Series),
            from: seen(BatchCol::SeenFrom)?,
            to: seen(BatchCol::SeenTo)?,
            late: batch.numbers(BatchCol::Late),
            last_id: batch.i64(BatchCol::LastId),
        })
    }

    /// Whether the subscriber has read past this event. True also for an event that was visible when the subscriber was
    /// made.
    pub fn has_passed(&self, series: i32, xid: i64, event_id: i64) -> bool {
        if series != self.series {
            return series < self.series;
        }
        self.from.sees(xid, event_id) || (event_id <= self.last_id && self.to.sees(xid, event_id))
    }

    pub fn write(&self, batch: &mut Part) {
        batch.put_i32(BatchCol::Series, self.series);
        batch.put(BatchCol::SeenFrom, Some(self.from.datum()));
        batch.put(BatchCol::SeenTo, Some(self.to.datum()));
        batch.put(BatchCol::Late, Some(row::i64s(&self.late)));
        batch.put_i64(BatchCol::LastId, self.last_id);
    }

    /// Calls `each` for the events that are not handed out yet, in order, until `each` answers false or the log ends.
    /// Returns the window where it stopped.
    pub fn walk(
        mut self,
        log: &LaneLog,
        mut each: impl FnMut(&Event) -> Result<bool>,
    ) -> Result<Window> {
        loop {
            let mut reader = self.read(log)?;
            while let Some((id, go_on)) =
                reader.next(|event| Ok((event.i64(Col::EventId), each(event)?)))?
            {
                self.last_id = id;
                if !go_on {
                    return Ok(self);
                }
            }
            match self.next(log.seen, log.series) {
                Some(next) => self = next,
                None => return Ok(self),
            }
            self.find_late(log)?;
        }
    }

    /// The next window: up to `now` in the present series, up to the end in an older series. None: there is no further
    /// window.
    fn next(&self, now: &Seen, present: i32) -> Option<Window> {
        let end_of = |series| match series == present {
            true => now.clone(),
            false => Seen::everything(),
        };
        let (series, from, to) = match self.to == end_of(self.series) {
            false => (self.series, self.to.clone(), end_of(self.series)),
            true if self.series >= present => return None,
            true => (self.series + 1, Seen::nothing(), end_of(self.series + 1)),
        };
        Some(Window {
            series,
            from,
            to,
            late: Vec::new(),
            last_id: 0,
        })
    }

    /// Fills `late` with the transactions that had not ended at `from` and have events of this lane in the window.
    fn find_late(&mut self, log: &LaneLog) -> Result<()> {
        let (first, end) = self.from.fresh();
        let mut candidates: Vec<i64> = self.from.unfinished().collect();
        candidates.extend(emitters(log.tables, first, end, log.snapshot)?);
        for xid in candidates {
            for (home, table) in log.tables {
                let stream = self.late_stream(xid, log, home, table)?;
                if stream.head.is_some() {
                    self.late.push(xid);
                    break;
                }
            }
        }
        Ok(())
    }

    /// A reader of the rest of the window, in the order of event ids.
    fn read<'s>(&self, log: &LaneLog<'s>) -> Result<Reader<'s>> {
        // No event is between equal snapshots; `from` and `to` are equal before the first batch of a lane.
        if self.from == self.to {
            return Ok(Reader { streams: vec![] });
        }
        let mut streams = Vec::with_capacity(log.tables.len() + self.late.len());
        for (home, table) in log.tables {
            streams.push(self.main_stream(log, home, table)?);
            for xid in &self.late {
                streams.push(self.late_stream(*xid, log, home, table)?);
            }
        }
        streams.retain(|s| s.head.is_some());
        Ok(Reader { streams })
    }

    fn main_stream<'s>(&self, log: &LaneLog<'s>, home: &Home, table: &Table) -> Result<Stream<'s>> {
        let (first, top) = (self.last_id.max(self.from.high), self.to.top);
        let mut ends = vec![top];
        if self.last_id > self.from.high {
            ends.extend(AHEAD.map(|ids| first.saturating_add(ids)));
            ends.retain(|end| *end <= top);
        }
        ends.push(first);
        let range = |e: &[i64]| {
            let (low, high) = (ScanKey::above(3, e[1]), ScanKey::up_to(3, e[0]));
            [
                ScanKey::i32(1, log.topic),
                ScanKey::i32(2, log.lane),
                low,
                high,
            ]
        };
        let mut rest: Vec<_> = ends.windows(2).map(range).collect();
        let mut near = rest.pop().unwrap_or_else(|| range(&[top, first]));
        let scan = table.scan(home.position, &mut near, log.snapshot)?;
        self.stream(scan, rest, self.from.next)
    }

    fn late_stream<'s>(
        &self,
        xid: i64,
        log: &LaneLog<'s>,
        home: &Home,
        table: &Table,
    ) -> Result<Stream<'s>> {
        let keys = &mut [
            ScanKey::i64(1, xid),
            ScanKey::i32(2, log.topic),
            ScanKey::i32(3, log.lane),
            ScanKey::above(4, self.last_id),
        ];
        let scan = table.scan(home.xid, keys, log.snapshot)?;
        self.stream(scan, Vec::new(), xid)
    }

    fn stream<'s>(&self, scan: Scan<'s>, rest: Ranges, least_xid: i64) -> Result<Stream<'s>> {
        let mut stream = Stream {
            scan,
            rest,
            series: self.series,
            least_xid,
            from: self.from.clone(),
            to: self.to.clone(),
            head: None,
        };
        stream.advance();
        Ok(stream)
    }
}

/// Transactions from `first` to `end` (excluded) that emitted any event. One probe for each, however many events it
/// emitted.
fn emitters(
    tables: &[(&Home, Table)],
    first: i64,
    end: i64,
    snapshot: &Snapshot,
) -> Result<Vec<i64>> {
    let mut found = Vec::new();
    for (home, table) in tables {
        let mut above = first - 1;
        while above + 1 < end
            && let Some(xid) = next_xid(table, home, above, end, snapshot)?
        {
            found.push(xid);
            above = xid;
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The first transaction with an id between `above` and `end` (both excluded) that emitted any event.
fn next_xid(
    table: &Table,
    home: &Home,
    above: i64,
    end: i64,
    snapshot: &Snapshot,
) -> Result<Option<i64>> {
    let keys = &mut [ScanKey::above(1, above), ScanKey::up_to(1, end - 1)];
    let found = table.find(home.xid, keys, snapshot)?;
    Ok(found.map(|slot| Event::load(slot).i64(Col::Xid)))
}

/// Opens the tables of events, except blank ones.
pub fn tables() -> Result<Vec<(&'static Home, Table)>> {
    let mut open = Vec::with_capacity(5);
    for home in event::homes() {
        let table = Table::to_read(home.table)?;
        if !table.is_blank() {
            open.push((home, table));
        }
    }
    Ok(open)
}

/// The conditions of further index ranges, the last range first.
type Ranges = Vec<[ScanKey; 4]>;

/// The rows of the window in an index range and in the ranges after it (`rest`).
struct Stream<'s> {
    scan: Scan<'s>,
    rest: Ranges,
    series: i32,
    least_xid: i64,
    from: Seen,
    to: Seen,
    /// The present row's event id; None: the stream is at its end.
    head: Option<i64>,
}

impl Stream<'_> {
    fn advance(&mut self) {
        self.head = None;
        while let Some(slot) = self.scan.advance() {
            let number = |col: Col| slot.column(col as usize).map_or(0, |d| d.value() as i64);
            let (id, xid) = (number(Col::EventId), number(Col::Xid));
            let fits = xid >= self.least_xid
                && number(Col::Series) as i32 == self.series
                && self.to.sees(xid, id)
                && !self.from.sees(xid, id);
            if fits {
                self.head = Some(id);
                return;
            }
        }
        if let Some(mut next) = self.rest.pop() {
            self.scan.restart(&mut next);
            self.advance();
        }
    }
}

/// Events of a window in order.
struct Reader<'s> {
    streams: Vec<Stream<'s>>,
}

impl Reader<'_> {
    /// Passes the next event to `use_it` and moves on; None at the end. The event is valid within the call.
    fn next<T>(&mut self, use_it: impl FnOnce(&Event) -> Result<T>) -> Result<Option<T>> {
        let heads = self.streams.iter().enumerate();
        let first = heads.filter_map(|(i, s)| s.head.map(|id| (id, i))).min();
        let Some((id, i)) = first else {
            return Ok(None);
        };
        let Some(slot) = self.streams[i].scan.present() else {
            return Ok(None);
        };
        let answer = use_it(&Event::borrow(slot))?;
        // A copied event is also in its segment until the segment is truncated.
        for stream in &mut self.streams {
            if stream.head == Some(id) {
                stream.advance();
            }
        }
        Ok(Some(answer))
    }
}

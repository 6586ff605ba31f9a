//! Estimates how many events of a lane have an id above a given one. Divides the index range into parts, reads the
//! first rows of each part, and assumes the same density in the rest of the part.

use crate::error::Result;
use crate::outbox::event::{self, Col, Home};
use crate::table::{ScanKey, Slot, Snapshot, Table};

/// The number of parts, and the rows that are read of each part.
const PLACES: i64 = 8;
const ROWS: usize = 16;

/// A lane in one table of events.
pub struct LaneRange<'a> {
    pub home: &'a Home,
    pub table: &'a Table,
    pub topic: i32,
    pub lane: i32,
}

impl LaneRange<'_> {
    /// Events with an id above `from`.
    pub fn estimate(&self, from: i64, snapshot: &Snapshot) -> Result<f64> {
        let keys = &mut self.keys(from, i64::MAX);
        let last = self.table.find_last(self.home.position, keys, snapshot)?;
        let Some(end) = last.map(|slot| event_id(&slot)) else {
            return Ok(0.0);
        };
        let step = (end.saturating_sub(from) / PLACES).max(1);
        let mut rows = 0.0;
        let mut place = from;
        while place < end {
            let to = match end.saturating_sub(place) < 2 * step {
                true => end,
                false => place + step,
            };
            rows += self.estimate_part(place, to, snapshot)?;
            place = to;
        }
        Ok(rows)
    }

    /// Events with an id above `from`, up to `to`. The id of the last row that is read gives the density.
    fn estimate_part(&self, from: i64, to: i64, snapshot: &Snapshot) -> Result<f64> {
        let keys = &mut self.keys(from, to);
        let mut scan = self.table.scan(self.home.position, keys, snapshot)?;
        let mut last = from;
        for read in 0..ROWS {
            match scan.advance() {
                Some(slot) => last = event_id(slot),
                None => return Ok(read as f64),
            }
        }
        let between = |a: i64, b: i64| {
            let place = |id| event::place_in_lane(self.lane, id);
            place(b).saturating_sub(place(a)).max(1) as f64
        };
        Ok((ROWS - 1) as f64 * between(from, to) / between(from, last))
    }

    /// `from < event_id <= to`.
    fn keys(&self, from: i64, to: i64) -> [ScanKey; 4] {
        [
            ScanKey::i32(1, self.topic),
            ScanKey::i32(2, self.lane),
            ScanKey::above(3, from),
            ScanKey::up_to(3, to),
        ]
    }
}

fn event_id(slot: &Slot) -> i64 {
    slot.column(Col::EventId as usize)
        .map_or(0, |d| d.value() as i64)
}

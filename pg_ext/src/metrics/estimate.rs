//! How many rows an index range holds, without reading them all: a short range is counted, of a long one some
//! places are looked at and the rest is taken to be as dense.

use crate::error::Result;
use crate::table::{Name, ScanKey, Slot, Snapshot, Table};

/// Places of a long range that are looked at, and the rows read at each.
const PLACES: i64 = 8;
const ROWS: usize = 16;

/// Rows of an index whose last column, a bigint, is what they are spread over.
pub struct Range<'a> {
    pub table: &'a Table,
    pub index: Name,
    /// The conditions of the columns before it, and `from < column <= to`.
    pub keys: &'a dyn Fn(i64, i64) -> Vec<ScanKey>,
    /// The column of the table.
    pub column: usize,
    /// The numbers' places, which the rows are spread over evenly.
    pub place: &'a dyn Fn(i64) -> i64,
}

impl Range<'_> {
    /// Rows with a number above `from`: exactly, up to `exact` of them.
    pub fn above(&self, from: i64, exact: usize, snapshot: &Snapshot) -> Result<f64> {
        let head = self.read(from, i64::MAX, exact, snapshot)?;
        if head.ended {
            return Ok(head.counted as f64);
        }
        Ok(head.counted as f64 + self.estimate(head.last, snapshot)?)
    }

    /// Rows with a number above `from`, by samples.
    pub fn estimate(&self, from: i64, snapshot: &Snapshot) -> Result<f64> {
        let keys = &mut (self.keys)(from, i64::MAX);
        let Some(last) = self.table.find_last(self.index, keys, snapshot)? else {
            return Ok(0.0);
        };
        let end = self.number(&last);
        let step = ((end - from) / PLACES).max(1);
        let mut total = 0.0;
        let mut place = from;
        while place < end {
            let to = match end - place < 2 * step {
                true => end,
                false => place + step,
            };
            let seen = self.read(place, to, ROWS, snapshot)?;
            let between = |a: i64, b: i64| ((self.place)(b) - (self.place)(a)).max(1) as f64;
            total += match seen.ended {
                true => seen.counted as f64,
                // The last of n rows ends the look: it says how far the others reach.
                false => (seen.counted - 1) as f64 * between(place, to) / between(place, seen.last),
            };
            place = to;
        }
        Ok(total)
    }

    fn read(&self, from: i64, to: i64, most: usize, snapshot: &Snapshot) -> Result<Seen> {
        let keys = &mut (self.keys)(from, to);
        let mut scan = self.table.scan(self.index, keys, snapshot)?;
        let mut seen = Seen {
            counted: 0,
            last: from,
            ended: false,
        };
        for _ in 0..most {
            let Some(slot) = scan.advance() else {
                seen.ended = true;
                break;
            };
            seen.counted += 1;
            seen.last = self.number(slot);
        }
        Ok(seen)
    }

    fn number(&self, slot: &Slot) -> i64 {
        slot.column(self.column).map_or(0, |d| d.value() as i64)
    }
}

/// What a look has read.
struct Seen {
    counted: usize,
    last: i64,
    /// There is no more.
    ended: bool,
}

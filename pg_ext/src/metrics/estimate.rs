//! How many rows an index range holds, without reading them all: a short range is counted, of a long one some
//! places are looked at and the rest is taken to be as dense.
//!
//! What bounds a look are index entries: those of rows that are over cost as much as others, and where they use a
//! look up, the number is a lower bound.

use super::entries_for;
use crate::error::Result;
use crate::table::{Edge, Name, ScanKey, Slot, Snapshot, Step, Table};
use pgrx::pg_sys::Datum;

/// Places of a long range that are looked at, and the rows read at each.
const PLACES: i64 = 8;
const ROWS: usize = 16;

/// Rows of an index whose last column, a bigint, is what they are spread over; the columns before it are int.
pub struct IndexRange<'a> {
    pub table: &'a Table,
    pub index: Name,
    /// What the columns before it are.
    pub of: &'a [i32],
    /// The column of the table.
    pub column: usize,
    /// The numbers' places, which the rows are spread over evenly.
    pub place: &'a dyn Fn(i64) -> i64,
}

/// How many rows there are.
pub struct RowCount {
    pub rows: f64,
    /// Entries of rows that are over used a look up: there may be more.
    pub tired: bool,
}

impl IndexRange<'_> {
    /// Rows with a number above `from`: exactly, up to `exact` of them.
    pub fn above(&self, from: i64, exact: usize, snapshot: &Snapshot) -> Result<RowCount> {
        let head = self.read(from, i64::MAX, exact, snapshot)?;
        let rows = head.counted as f64;
        let rest = match head.end {
            ReadEnd::Reached => RowCount::NONE,
            ReadEnd::Tired if head.counted == 0 => {
                let first = self.edge(from, Edge::First, snapshot)?;
                first.map_or(Ok(RowCount::NONE), |first| {
                    self.estimate(first - 1, snapshot)
                })?
            }
            ReadEnd::Enough | ReadEnd::Tired => self.estimate(head.last, snapshot)?,
        };
        Ok(RowCount {
            rows: rows + rest.rows,
            tired: rest.tired || head.end == ReadEnd::Tired,
        })
    }

    /// Rows with a number above `from`, by samples.
    pub fn estimate(&self, from: i64, snapshot: &Snapshot) -> Result<RowCount> {
        let Some((end, mut tired)) = self.last(from, snapshot)? else {
            return Ok(RowCount::NONE);
        };
        let step = (end.saturating_sub(from) / PLACES).max(1);
        let mut rows = 0.0;
        let mut place = from;
        while place < end {
            let to = match end.saturating_sub(place) < 2 * step {
                true => end,
                false => place + step,
            };
            let seen = self.read(place, to, ROWS, snapshot)?;
            let between = |a: i64, b: i64| {
                let places = (self.place)(b).saturating_sub((self.place)(a));
                places.max(1) as f64
            };
            rows += match seen.end {
                ReadEnd::Reached | ReadEnd::Tired => seen.counted as f64,
                // The last of n rows ends the look: it says how far the others reach.
                ReadEnd::Enough => {
                    (seen.counted - 1) as f64 * between(place, to) / between(place, seen.last)
                }
            };
            tired |= seen.end == ReadEnd::Tired;
            place = to;
        }
        Ok(RowCount { rows, tired })
    }

    /// The last number above `from`, and whether there may be later ones; None: there is none.
    fn last(&self, from: i64, snapshot: &Snapshot) -> Result<Option<(i64, bool)>> {
        let keys = &mut self.keys(from, i64::MAX);
        let mut scan = self.table.scan(self.index, keys, snapshot)?.backwards();
        let mut looks = entries_for(ROWS);
        if let Step::Row(slot) = scan.step(&mut looks) {
            return Ok(Some((self.number(slot), false)));
        }
        // Nothing but rows that are over so far; they, too, say where the range ends.
        let end = match looks {
            0 => self.edge(from, Edge::Last, snapshot)?,
            _ => None,
        };
        Ok(end.map(|end| (end, true)))
    }

    /// The first or last number above `from` that the index has an entry of, whether or not its row is there.
    fn edge(&self, from: i64, edge: Edge, snapshot: &Snapshot) -> Result<Option<i64>> {
        let keys = &mut self.keys(from, i64::MAX);
        let last_column = |entry: &[Option<Datum>]| {
            let number = entry.iter().rev().flatten().next();
            number.map(|d| d.value() as i64)
        };
        let entry = self
            .table
            .entry(self.index, keys, edge, snapshot, last_column)?;
        Ok(entry.flatten())
    }

    fn read(&self, from: i64, to: i64, most: usize, snapshot: &Snapshot) -> Result<ReadRows> {
        let keys = &mut self.keys(from, to);
        let mut scan = self.table.scan(self.index, keys, snapshot)?;
        let mut looks = entries_for(most);
        let mut seen = ReadRows {
            counted: 0,
            last: from,
            end: ReadEnd::Enough,
        };
        while seen.counted < most {
            match scan.step(&mut looks) {
                Step::Row(slot) => {
                    seen.counted += 1;
                    seen.last = self.number(slot);
                }
                Step::End => {
                    seen.end = ReadEnd::Reached;
                    break;
                }
                Step::Tired => {
                    seen.end = ReadEnd::Tired;
                    break;
                }
            }
        }
        Ok(seen)
    }

    /// `from < column <= to`.
    fn keys(&self, from: i64, to: i64) -> Vec<ScanKey> {
        let column = self.of.len() as i16 + 1;
        let of = (1..column).zip(self.of);
        of.map(|(i, value)| ScanKey::i32(i, *value))
            .chain([ScanKey::above(column, from), ScanKey::up_to(column, to)])
            .collect()
    }

    fn number(&self, slot: &Slot) -> i64 {
        slot.column(self.column).map_or(0, |d| d.value() as i64)
    }
}

impl RowCount {
    const NONE: RowCount = RowCount {
        rows: 0.0,
        tired: false,
    };
}

/// Where a look has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadEnd {
    /// There is no more.
    Reached,
    /// So many rows were asked for.
    Enough,
    /// Rows that are over have used it up.
    Tired,
}

/// What a look has read.
struct ReadRows {
    counted: usize,
    last: i64,
    end: ReadEnd,
}

//! Looks at an index whose cost is bounded by entries and not by rows.
//!
//! A row that is over keeps its index entry until vacuum takes it, and while somebody holds an old snapshot there
//! may be a million of them where one row is. Who only watches must not read them all: a scan can be told how many
//! entries it may look at ([`Scan::step`]), and what values there may be is told by the index alone, from one value
//! to the next, however many entries each has ([`Table::values`]).

use super::{Name, Scan, ScanKey, Slot, Snapshot, Table};
use crate::error::Result;
use pgrx::pg_sys::{self, Datum};

const COLUMNS: usize = pg_sys::INDEX_MAX_KEYS as usize;

/// What a bounded step has come to.
pub enum Step<'s> {
    Row(&'s Slot),
    End,
    /// No looks were left; there may be more.
    Tired,
}

impl Scan<'_> {
    /// Moves to the next row that can be seen; each entry on the way there costs one of the looks.
    pub fn step(&mut self, looks: &mut usize) -> Step<'_> {
        let Some(slot) = self.slot.as_ref() else {
            return Step::End;
        };
        while *looks > 0 {
            *looks -= 1;
            // SAFETY: the scan and the slot are alive; this is what index_getnext_slot does, entry by entry.
            let (any, seen) = unsafe {
                let any = !pg_sys::index_getnext_tid(self.scan, self.direction).is_null();
                (any, any && pg_sys::index_fetch_heap(self.scan, slot.raw))
            };
            match (any, seen) {
                (false, _) => return Step::End,
                (true, true) => return Step::Row(slot),
                (true, false) => {}
            }
        }
        Step::Tired
    }

    /// What `read` makes of the columns of the entry that the scan stands at, whether or not its row is still there;
    /// of a scan that has entries. They are valid within the call.
    fn entry<T>(&self, read: impl FnOnce(&[Option<Datum>]) -> T) -> Option<T> {
        let (mut values, mut nulls) = ([Datum::from(0); COLUMNS], [false; COLUMNS]);
        // SAFETY: where the scan was begun with xs_want_itup, a btree shows its entry beside each place, else none;
        // it is valid until the scan moves on or ends, which is after `read`.
        unsafe {
            if (*self.scan).xs_itup.is_null() {
                return None;
            }
            pg_sys::index_deform_tuple(
                (*self.scan).xs_itup,
                (*self.scan).xs_itupdesc,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
        }
        let entry: [Option<Datum>; COLUMNS] =
            std::array::from_fn(|i| (!nulls[i]).then_some(values[i]));
        Some(read(&entry))
    }
}

impl Table {
    /// There is a row in this range of an index. True also where the first `most` entries, of rows that are over
    /// and that an old snapshot keeps, say nothing.
    pub fn may_find(
        &self,
        index: Name,
        keys: &mut [ScanKey],
        snapshot: &Snapshot,
        most: usize,
    ) -> Result<bool> {
        let mut looks = most;
        let mut scan = self.scan(index, keys, snapshot)?;
        Ok(!matches!(scan.step(&mut looks), Step::End))
    }

    /// The values, in their order, that rows may have in the integer column of an index behind these, of which they
    /// have the values given. A value is there also where all of its rows are over. One probe for each.
    pub fn values(&self, index: Name, before: &[i32], snapshot: &Snapshot) -> Result<Vec<i32>> {
        let column = before.len();
        let mut values: Vec<i32> = Vec::new();
        loop {
            let mut keys: Vec<ScanKey> = (1..)
                .zip(before)
                .map(|(attribute, value)| ScanKey::i32(attribute, *value))
                .collect();
            let last = values.last().copied();
            keys.extend(last.map(|last| ScanKey::above_i32(column as i16 + 1, last)));
            let read = |entry: &[Option<Datum>]| entry[column].map(|d| d.value() as i32);
            let found = self.first_entry(index, &mut keys, snapshot, read)?;
            match found.flatten() {
                // Each is above the one before; a damaged index must not keep us here for ever.
                Some(value) if last.is_none_or(|last| value > last) => values.push(value),
                _ => return Ok(values),
            }
            pg_sys::check_for_interrupts!();
        }
    }

    /// What `read` makes of the columns of the first entry in this range of an index, whether or not its row can be
    /// seen. They are valid within the call.
    pub fn first_entry<T>(
        &self,
        index: Name,
        keys: &mut [ScanKey],
        snapshot: &Snapshot,
        read: impl FnOnce(&[Option<Datum>]) -> T,
    ) -> Result<Option<T>> {
        let scan = self.scan_of(index, keys, snapshot, Wants::Entries)?;
        // SAFETY: the scan is alive.
        let any = unsafe { !pg_sys::index_getnext_tid(scan.scan, scan.direction).is_null() };
        Ok(any.then(|| scan.entry(read)).flatten())
    }
}

/// What a scan shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    Rows,
    Entries,
}

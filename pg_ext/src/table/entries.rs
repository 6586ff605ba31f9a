//! Index scans that limit the number of entries they read, not the number of rows they find.
//!
//! A deleted row keeps its index entry until vacuum removes both. While an old snapshot is open, there may be a million
//! such entries beside one visible row. A report must not read them all. So [`Scan::step`] reads a bounded number of
//! entries, and [`Table::values`] reads the distinct values from the index alone, with one probe for each value.

use super::{Name, Scan, ScanKey, Slot, Snapshot, Table};
use crate::error::Result;
use pgrx::pg_sys::{self, Datum};

const COLUMNS: usize = pg_sys::INDEX_MAX_KEYS as usize;

/// The result of a bounded step.
pub enum ScanStep<'s> {
    Row(&'s Slot),
    End,
    /// The bound was reached; there may be more.
    LimitReached,
}

impl Scan<'_> {
    /// Moves to the next visible row. Subtracts 1 from `looks` for each entry that it reads.
    pub fn step(&mut self, looks: &mut usize) -> ScanStep<'_> {
        let Some(slot) = self.slot.as_ref() else {
            return ScanStep::End;
        };
        while *looks > 0 {
            *looks -= 1;
            // SAFETY: the scan and the slot are alive; these are the two steps of index_getnext_slot.
            let (any, seen) = unsafe {
                let any = !pg_sys::index_getnext_tid(self.scan, self.direction).is_null();
                (any, any && pg_sys::index_fetch_heap(self.scan, slot.raw))
            };
            match (any, seen) {
                (false, _) => return ScanStep::End,
                (true, true) => return ScanStep::Row(slot),
                (true, false) => {}
            }
        }
        ScanStep::LimitReached
    }

    /// Passes the columns of the present entry to `read`; its row may be gone. Only for a scan opened with
    /// [`Wants::Entries`]. The columns are valid within the call.
    fn entry<T>(&self, read: impl FnOnce(&[Option<Datum>]) -> T) -> Option<T> {
        let (mut values, mut nulls) = ([Datum::from(0); COLUMNS], [false; COLUMNS]);
        // SAFETY: only a btree scan with xs_want_itup sets xs_itup; in any other scan it is null. The entry is valid
        // until the scan moves on or ends, which is after `read`.
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
    /// Whether this range of an index has a row. If `most` entries were read and none has a visible row, the search
    /// stops, and the answer is true.
    pub fn may_find(
        &self,
        index: Name,
        keys: &mut [ScanKey],
        snapshot: &Snapshot,
        most: usize,
    ) -> Result<bool> {
        let mut looks = most;
        let mut scan = self.scan(index, keys, snapshot)?;
        Ok(!matches!(scan.step(&mut looks), ScanStep::End))
    }

    /// The distinct values of an integer column of an index, in order, where the index's earlier columns equal
    /// `before`. Includes values whose rows are all gone. Costs one probe for each value.
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
                // In a damaged index a value can be below the previous value; then the loop would not end.
                Some(value) if last.is_none_or(|last| value > last) => values.push(value),
                _ => return Ok(values),
            }
            pg_sys::check_for_interrupts!();
        }
    }

    /// Finds the first entry in this range of an index, and calls `read` with its columns. The entry's row may be gone.
    /// The columns are valid within that call.
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

/// Whether a scan shows rows or index entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    Rows,
    Entries,
}

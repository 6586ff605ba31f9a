//! A row of one of our tables, with names for its columns.

use super::{Slot, Table, WriteOutcome};
use crate::call::varlena;
use crate::error::Result;
use crate::row;
use pgrx::pg_sys::{self, Datum};
use std::marker::PhantomData;

/// A column of a table. An enum that implements this trait lists a table's columns in the order of CREATE TABLE.
pub trait ColumnNumber: Copy {
    /// The column's number; the first column has the number 1.
    fn number(self) -> usize;
}

/// Implements [`ColumnNumber`] for an enum whose first variant is 1.
macro_rules! columns {
    ($of:ty) => {
        impl $crate::table::ColumnNumber for $of {
            fn number(self) -> usize {
                self as usize
            }
        }
    };
}
pub(crate) use columns;

/// A row that is stored or will be. Values that were read from the slot are valid as long as the slot.
pub struct Record<C, const COLUMNS: usize> {
    /// Pins the page of the values.
    slot: Option<Slot>,
    tid: Option<pg_sys::ItemPointerData>,
    values: [Option<Datum>; COLUMNS],
    columns: PhantomData<C>,
}

impl<C: ColumnNumber, const COLUMNS: usize> Record<C, COLUMNS> {
    /// A row that is not stored yet.
    pub fn empty() -> Self {
        Record {
            slot: None,
            tid: None,
            values: [None; COLUMNS],
            columns: PhantomData,
        }
    }

    pub fn load(slot: Slot) -> Self {
        let mut record = Self::borrow(&slot);
        record.slot = Some(slot);
        record
    }

    /// The present row of a scan; valid until the scan's next step.
    pub fn borrow(slot: &Slot) -> Self {
        Record {
            slot: None,
            tid: Some(slot.tid()),
            values: std::array::from_fn(|i| slot.column(i + 1)),
            columns: PhantomData,
        }
    }

    /// Where the row is stored; None for a new row.
    pub fn tid(&self) -> Option<pg_sys::ItemPointerData> {
        self.tid
    }

    /// Whether the present transaction has written the version that was loaded.
    pub fn is_ours(&self) -> bool {
        self.slot.as_ref().is_some_and(Slot::is_ours)
    }

    pub fn insert(&self, table: &Table) -> Result<()> {
        table.insert(&self.values)
    }

    /// Writes this row over the row at `tid`.
    pub fn update_at(&self, table: &Table, tid: pg_sys::ItemPointerData) -> Result<WriteOutcome> {
        table.update(tid, &self.values)
    }

    pub fn raw(&self, col: C) -> Option<Datum> {
        self.values[col.number() - 1]
    }

    pub fn put(&mut self, col: C, value: Option<Datum>) {
        self.values[col.number() - 1] = value;
    }

    pub fn put_i64(&mut self, col: C, value: i64) {
        self.put(col, Some(Datum::from(value)));
    }

    pub fn put_i32(&mut self, col: C, value: i32) {
        self.put(col, Some(Datum::from(value)));
    }

    pub fn put_text(&mut self, col: C, value: Option<&[u8]>) {
        self.put(col, value.map(row::text));
    }

    pub fn i64(&self, col: C) -> i64 {
        self.raw(col).map_or(0, |d| d.value() as i64)
    }

    pub fn i32(&self, col: C) -> i32 {
        self.raw(col).map_or(0, |d| d.value() as i32)
    }

    pub fn bytes(&self, col: C) -> Option<&[u8]> {
        self.raw(col).map(varlena)
    }
}

//! Direct access to tables: open, find by index, insert, update, lock, delete. It works on the extension's own tables
//! and, in `user.rs`, on plain tables of users.
//!
//! Why not SPI: a claim is one index probe and one insert. With a saved plan for each, the executor's overhead costs
//! more than the probe and the insert (`make bench`). Direct access checks no rights on the extension's tables, so no
//! change of user is needed. It also looks up no name through search_path and resolves no operator. Rows are plain
//! arrays of datums here; `record.rs` gives their columns names.
//!
//! Locks: a table is opened for reading with AccessShareLock, for writing with RowExclusiveLock. Both are held to the
//! end of the transaction, as after any statement.

mod entries;
pub mod enums;
mod names;
mod page;
mod recall;
mod record;
mod sequence;
mod snapshot;
mod user;
mod watch;
mod whole;
mod write;
mod writer;

pub use entries::ScanStep;
pub use names::key_table_owner;
pub use recall::{KeptRow, Recalled};
pub(crate) use record::columns;
pub use record::{ColumnNumber, Record};
pub use sequence::Sequence;
pub use snapshot::{Snapshot, above_read_committed, next_xid, own_xid, own_xid_if_any};
pub use watch::{Watch, tell_all};
pub use whole::{has_no_writers, horizon, lock_against_writers, lock_exclusively};
pub use write::{Wait, WriteOutcome, ensure_writable, is_writable};
pub use writer::wait_for;

use crate::error::Result;
use entries::Wants;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;
use std::marker::PhantomData;

/// The name of a table, index or sequence of the extension.
pub type Name = &'static CStr;

/// An open table.
pub struct Table {
    rel: pg_sys::Relation,
}

impl Table {
    /// Opens a table for reading only (works on a standby).
    pub fn to_read(name: Name) -> Result<Table> {
        Table::open(name, pg_sys::AccessShareLock as i32)
    }

    /// Opens a table for writing; 25006 in a read-only transaction or on a standby.
    pub fn to_write(name: Name) -> Result<Table> {
        ensure_writable(name)?;
        Table::open(name, pg_sys::RowExclusiveLock as i32)
    }

    fn open(name: Name, lock: i32) -> Result<Table> {
        let oid = names::oid_of(name)?;
        // SAFETY: `oid_of` has looked up the oid by its name; table_open raises if the relation cannot be opened.
        let rel = unsafe { pg_sys::table_open(oid, lock) };
        Ok(Table { rel })
    }

    /// The first row that an index finds under this snapshot.
    pub fn find(
        &self,
        index: Name,
        keys: &mut [ScanKey],
        snapshot: &Snapshot,
    ) -> Result<Option<Slot>> {
        Ok(self.scan(index, keys, snapshot)?.into_next())
    }

    /// Rows in the order of an index.
    pub fn scan<'s>(
        &self,
        index: Name,
        keys: &mut [ScanKey],
        snapshot: &'s Snapshot,
    ) -> Result<Scan<'s>> {
        self.scan_of(index, keys, snapshot, Wants::Rows)
    }

    fn scan_of<'s>(
        &self,
        index: Name,
        keys: &mut [ScanKey],
        snapshot: &'s Snapshot,
        wants: Wants,
    ) -> Result<Scan<'s>> {
        Ok(self.scan_by(names::oid_of(index)?, keys, snapshot, wants))
    }

    fn scan_by<'s>(
        &self,
        index: pg_sys::Oid,
        keys: &mut [ScanKey],
        snapshot: &'s Snapshot,
        wants: Wants,
    ) -> Scan<'s> {
        let slot = self.slot();
        // SAFETY: the index belongs to this open table; ScanKey::new initialised the keys; index_rescan copies them.
        unsafe {
            let index = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
            let scan = begin_scan(self.rel, index, snapshot.raw(), keys.len() as i32);
            (*scan).xs_want_itup = wants == Wants::Entries;
            pg_sys::index_rescan(
                scan,
                keys.as_mut_ptr().cast(),
                keys.len() as i32,
                std::ptr::null_mut(),
                0,
            );
            Scan {
                index,
                scan,
                slot: Some(slot),
                direction: pg_sys::ScanDirection::ForwardScanDirection,
                snapshot: PhantomData,
            }
        }
    }

    /// The last row in the order of an index.
    pub fn find_last(
        &self,
        index: Name,
        keys: &mut [ScanKey],
        snapshot: &Snapshot,
    ) -> Result<Option<Slot>> {
        Ok(self.scan(index, keys, snapshot)?.backwards().into_next())
    }

    /// Whether the table has no page, and so no row.
    pub fn is_blank(&self) -> bool {
        self.pages() == 0
    }

    /// Bytes of the table and its out-of-line values, without indexes.
    pub fn bytes(&self) -> u64 {
        let args = [Some(Datum::from(self.oid()))];
        // SAFETY: the server's own function takes the oid of a table.
        let size = unsafe { pgrx::direct_function_call_as_datum(pg_sys::pg_table_size, &args) };
        size.map_or(0, |d| d.value() as u64)
    }

    /// Pages of 8 kB of the table itself, without indexes and out-of-line values.
    pub fn pages(&self) -> u32 {
        // SAFETY: the relation is open.
        unsafe {
            pg_sys::RelationGetNumberOfBlocksInFork(self.rel, pg_sys::ForkNumber::MAIN_FORKNUM)
        }
    }

    fn slot(&self) -> Slot {
        // SAFETY: the relation is open; the slot is freed when the Slot is dropped.
        let raw = unsafe { pg_sys::table_slot_create(self.rel, std::ptr::null_mut()) };
        Slot { raw }
    }

    pub fn oid(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { (*self.rel).rd_id }
    }

    pub fn columns(&self) -> usize {
        // SAFETY: the relation is open, so its tuple descriptor is there.
        unsafe { (*(*self.rel).rd_att).natts as usize }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: opened by us; NoLock keeps the lock to the end of the transaction.
            unsafe { pg_sys::relation_close(self.rel, pg_sys::NoLock as i32) };
        }
    }
}

#[cfg(not(feature = "pg18"))]
unsafe fn begin_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: i32,
) -> pg_sys::IndexScanDesc {
    // SAFETY: as the caller says; the server added an argument in 18.
    unsafe { pg_sys::index_beginscan(table, index, snapshot, keys, 0) }
}

#[cfg(feature = "pg18")]
unsafe fn begin_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: i32,
) -> pg_sys::IndexScanDesc {
    // SAFETY: as the caller says; no instrumentation.
    unsafe { pg_sys::index_beginscan(table, index, snapshot, std::ptr::null_mut(), keys, 0) }
}

/// An index scan in progress and the slot that holds its present row.
pub struct Scan<'s> {
    index: pg_sys::Relation,
    scan: pg_sys::IndexScanDesc,
    slot: Option<Slot>,
    direction: pg_sys::ScanDirection::Type,
    /// The scan reads the snapshot at every step.
    snapshot: PhantomData<&'s Snapshot>,
}

impl Scan<'_> {
    /// Moves to the next row; None at the end.
    pub fn advance(&mut self) -> Option<&Slot> {
        let slot = self.slot.as_ref()?;
        // SAFETY: the scan and the slot are alive until end or drop.
        let found = unsafe { pg_sys::index_getnext_slot(self.scan, self.direction, slot.raw) };
        found.then_some(slot)
    }

    /// Makes the scan go from the end of the range to its beginning. To be called before the first row is read.
    pub fn backwards(mut self) -> Self {
        self.direction = pg_sys::ScanDirection::BackwardScanDirection;
        self
    }

    /// The row that `advance` moved to.
    pub fn present(&self) -> Option<&Slot> {
        self.slot.as_ref()
    }

    /// Moves to the next row and returns it; None at the end.
    pub fn take_next(&mut self, table: &Table) -> Option<Slot> {
        self.advance()?;
        self.slot.replace(table.slot())
    }

    /// Restarts the scan with other conditions, as many as before.
    pub fn restart(&mut self, keys: &mut [ScanKey]) {
        let (count, none) = (keys.len() as i32, std::ptr::null_mut());
        // SAFETY: the scan is alive and has that many conditions (asserted here); they are copied.
        unsafe {
            assert_eq!(count, (*self.scan).numberOfKeys);
            pg_sys::index_rescan(self.scan, keys.as_mut_ptr().cast(), count, none, 0);
        }
    }

    /// Ends the scan and returns its next row.
    pub fn into_next(mut self) -> Option<Slot> {
        let found = self.advance().is_some();
        self.slot.take().filter(|_| found)
    }

    /// Restarts the scan with the same conditions, under another snapshot.
    pub fn again(self, snapshot: &Snapshot) -> Scan<'_> {
        let mut old = std::mem::ManuallyDrop::new(self);
        // SAFETY: the scan is alive, and keeps its conditions where none are given.
        unsafe {
            let (scan, none) = (old.scan, std::ptr::null_mut());
            (*scan).xs_snapshot = snapshot.raw();
            pg_sys::index_rescan(scan, none, (*scan).numberOfKeys, none, 0);
        }
        Scan {
            index: old.index,
            scan: old.scan,
            slot: old.slot.take(),
            direction: old.direction,
            snapshot: PhantomData,
        }
    }

    /// Ends the scan and returns the row that `advance` moved to.
    pub fn into_present(mut self) -> Option<Slot> {
        self.slot.take()
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: begun by us and ended once; a slot keeps its own pin on its row's page.
            unsafe {
                pg_sys::index_endscan(self.scan);
                pg_sys::relation_close(self.index, pg_sys::NoLock as i32);
            }
        }
    }
}

/// A row, pinned where it is stored. Datums read from the row are valid until the slot gets another row or is dropped.
pub struct Slot {
    raw: *mut pg_sys::TupleTableSlot,
}

impl Slot {
    /// The value of a column; None for NULL, and for a column that the table lacks.
    pub fn column(&self, attribute: usize) -> Option<Datum> {
        // SAFETY: the slot holds a row of its table; attributes count from 1, and all up to tts_nvalid are valid.
        unsafe {
            if ((*self.raw).tts_nvalid as usize) < attribute && self.read_all() < attribute {
                return None;
            }
            let i = attribute - 1;
            (!*(*self.raw).tts_isnull.add(i)).then(|| *(*self.raw).tts_values.add(i))
        }
    }

    /// Reads all columns of the row; returns their number. Kept out of `column`, so that `column` can be inlined.
    #[cold]
    fn read_all(&self) -> usize {
        // SAFETY: the slot holds a row of its table.
        unsafe {
            let columns = (*(*self.raw).tts_tupleDescriptor).natts;
            if i32::from((*self.raw).tts_nvalid) < columns {
                pg_sys::slot_getsomeattrs_int(self.raw, columns);
            }
            columns as usize
        }
    }

    /// Where the row is stored.
    pub fn tid(&self) -> pg_sys::ItemPointerData {
        // SAFETY: the slot holds a stored row.
        unsafe { (*self.raw).tts_tid }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: created by table_slot_create and dropped once.
            unsafe { pg_sys::ExecDropSingleTupleTableSlot(self.raw) };
        }
    }
}

/// One condition of an index scan.
#[repr(transparent)]
pub struct ScanKey(pg_sys::ScanKeyData);

impl ScanKey {
    fn new(attribute: i16, strategy: u32, function: u32, value: Datum) -> ScanKey {
        let mut key = pg_sys::ScanKeyData::default();
        // SAFETY: fills a ScanKeyData of ours; the function is a built-in comparison. Texts compare
        // under "C", which is the collation of every indexed text column of ours.
        unsafe {
            pg_sys::ScanKeyInit(
                &mut key,
                attribute,
                strategy as pg_sys::StrategyNumber,
                pg_sys::Oid::from(function),
                value,
            );
        }
        ScanKey(key)
    }

    /// Index column = value, by the index's own equality function.
    pub fn equal(
        attribute: i16,
        function: pg_sys::Oid,
        collation: pg_sys::Oid,
        value: Datum,
    ) -> ScanKey {
        let mut key = ScanKey::new(
            attribute,
            pg_sys::BTEqualStrategyNumber,
            u32::from(function),
            value,
        );
        key.0.sk_collation = collation;
        key
    }
}

/// Defines functions `$name(attribute, value)`, each of which makes a condition on an index column.
macro_rules! conditions {
    ($($(#[$doc:meta])* $name:ident($value:ty) = $strategy:ident $function:ident;)*) => {
        impl ScanKey {$(
            $(#[$doc])*
            pub fn $name(attribute: i16, value: $value) -> ScanKey {
                ScanKey::new(attribute, pg_sys::$strategy, pg_sys::$function, Datum::from(value))
            }
        )*}
    };
}

conditions! {
    uuid(Datum) = BTEqualStrategyNumber F_UUID_EQ;
    text(Datum) = BTEqualStrategyNumber F_TEXTEQ;
    text_above(Datum) = BTGreaterStrategyNumber F_TEXT_GT;
    char(u8) = BTEqualStrategyNumber F_CHAREQ;
    bool(bool) = BTEqualStrategyNumber F_BOOLEQ;
    i32(i32) = BTEqualStrategyNumber F_INT4EQ;
    above_i32(i32) = BTGreaterStrategyNumber F_INT4GT;
    i64(i64) = BTEqualStrategyNumber F_INT8EQ;
    above(i64) = BTGreaterStrategyNumber F_INT8GT;
    from(i64) = BTGreaterEqualStrategyNumber F_INT8GE;
    up_to(i64) = BTLessEqualStrategyNumber F_INT8LE;
    /// timestamptz
    after(i64) = BTGreaterStrategyNumber F_TIMESTAMPTZ_GT;
    /// timestamptz
    until(i64) = BTLessEqualStrategyNumber F_TIMESTAMPTZ_LE;
}

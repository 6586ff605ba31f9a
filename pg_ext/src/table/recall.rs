//! Values from tables that rarely change (options, topics, the current segment), cached per backend.
//!
//! [`Recalled::get`] sees every change that a function of the extension had committed before the call, at any isolation
//! level: a function that changes a table sends an invalidation message ([`super::tell_all`]). Other backends get it
//! before the locks of the transaction are released; this backend gets it with its next command and on rollback. Other
//! writes (by hand, an apply worker or a restore) send no message, so values are cached for at most [`LONGEST_US`].

use super::{Name, Slot, Table, Watch};
use crate::clock;
use crate::error::Result;
use pgrx::pg_sys::{self, Datum};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

const LONGEST_US: i64 = 1_000_000;
/// A cache with this many values of one table is emptied before the next value is added.
const MOST_RECALLED: usize = 1_000;

/// Values read from one table, by name; kept in a `static`.
pub struct Recalled<T> {
    table: Name,
    watch: Watch,
    /// Taken just before the oldest cached value was read: the watch's count of messages, and the time.
    since: Cell<(u64, i64)>,
    known: RefCell<Option<HashMap<Vec<u8>, Rc<T>>>>,
}

// SAFETY: a backend is one thread.
unsafe impl<T> Sync for Recalled<T> {}

impl<T> Recalled<T> {
    pub const fn new(table: Name) -> Recalled<T> {
        Recalled {
            table,
            watch: Watch::new(),
            since: Cell::new((0, 0)),
            known: RefCell::new(None),
        }
    }

    /// The value for this name, from `read` if no value is cached; `read` must see the latest committed rows.
    pub fn get(&'static self, name: &[u8], read: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        // SAFETY: both calls are allowed inside a transaction. The server itself calls CommandCounterIncrement between
        // two commands, and AcceptInvalidationMessages after it takes a table lock.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::AcceptInvalidationMessages();
        }
        let now = clock::real_us();
        let (count, at) = self.since.get();
        if count == self.watch.count()
            && (at..at.saturating_add(LONGEST_US)).contains(&now)
            && let Some(known) = self.known.borrow().as_ref().and_then(|k| k.get(name))
        {
            return Ok(Rc::clone(known));
        }
        // The count is from before the snapshot of `read`, so that a message during the read makes the value stale.
        let present = self.watch.add([Table::to_read(self.table)?.oid()]);
        let value = Rc::new(read()?);
        let mut known = self.known.borrow_mut();
        let known = known.get_or_insert_default();
        if count != present || now - at >= LONGEST_US || now < at || known.len() >= MOST_RECALLED {
            known.clear();
            self.since.set((present, now));
        }
        known.insert(name.to_vec(), Rc::clone(&value));
        Ok(value)
    }
}

/// A copy of a row, which needs no pin on the row's page.
pub struct KeptRow {
    tuple: pg_sys::HeapTuple,
    values: Vec<Option<Datum>>,
}

impl KeptRow {
    pub fn of(slot: &Slot) -> KeptRow {
        // SAFETY: the slot holds a stored row; the copy lies in memory that lives as long as the backend, and has no
        // values out of line. Both arrays have room for all columns.
        unsafe {
            let desc = (*slot.raw).tts_tupleDescriptor;
            let columns = (*desc).natts as usize;
            let mut is_copy = false;
            let row = pg_sys::ExecFetchSlotHeapTuple(slot.raw, false, &mut is_copy);
            let before = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            let tuple = pg_sys::toast_flatten_tuple(row, desc);
            pg_sys::MemoryContextSwitchTo(before);
            let (mut values, mut nulls) = (vec![Datum::from(0); columns], vec![true; columns]);
            pg_sys::heap_deform_tuple(tuple, desc, values.as_mut_ptr(), nulls.as_mut_ptr());
            let values = values.into_iter().zip(nulls);
            KeptRow {
                tuple,
                values: values.map(|(v, null)| (!null).then_some(v)).collect(),
            }
        }
    }

    /// The value of a column; None for NULL. The first column has the number 1.
    pub fn column(&self, attribute: usize) -> Option<Datum> {
        self.values.get(attribute - 1).copied().flatten()
    }
}

impl Drop for KeptRow {
    fn drop(&mut self) {
        // SAFETY: allocated in `of`; no caller uses a value after its row is dropped.
        unsafe { pg_sys::pfree(self.tuple.cast()) }
    }
}

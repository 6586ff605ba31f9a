//! The shard as this backend remembers it, until the server's message that once.shard has changed.

use super::{Shard, TABLE};
use crate::error::Result;
use crate::table::Table;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

thread_local! {
    /// The outer None: not known.
    static KNOWN: RefCell<Option<Option<Rc<Shard>>>> = const { RefCell::new(None) };
    static SHARD_TABLE: Cell<Oid> = const { Cell::new(pg_sys::InvalidOid) };
    /// Grows with each message.
    static SHARD_CHANGES: Cell<u64> = const { Cell::new(0) };
    static READ_AT: Cell<u64> = const { Cell::new(0) };
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// The shard of this database; `read` reads it where it is not known.
pub fn recalled(read: impl FnOnce() -> Result<Option<Shard>>) -> Result<Option<Rc<Shard>>> {
    if !IS_LISTENING.replace(true) {
        // SAFETY: registered once per backend; the callback lives as long as the library.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(shard_changed), Datum::from(0)) };
    }
    if READ_AT.get() == SHARD_CHANGES.get()
        && let Some(known) = KNOWN.with(|known| known.borrow().clone())
    {
        return Ok(known);
    }
    SHARD_TABLE.set(Table::to_read(TABLE)?.oid());
    READ_AT.set(SHARD_CHANGES.get());
    let shard = read()?.map(Rc::new);
    KNOWN.with(|known| *known.borrow_mut() = Some(shard.clone()));
    Ok(shard)
}

/// Tells every backend that the shard has changed.
pub fn tell_all() -> Result<()> {
    let table = Table::to_read(TABLE)?.oid();
    // SAFETY: the table is there, locked to the end of the transaction.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
    Ok(())
}

/// The server calls it for each relation that changes.
#[pgrx::pg_guard]
extern "C-unwind" fn shard_changed(_arg: Datum, relation: Oid) {
    if relation == pg_sys::InvalidOid || relation == SHARD_TABLE.get() {
        SHARD_CHANGES.set(SHARD_CHANGES.get() + 1);
    }
}

//! Counts the server's invalidation messages about machines' definitions, tables and schemas.

use super::stored::{StoredMachine, TABLE};
use crate::error::Result;
use crate::table::Table;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

thread_local! {
    /// Grows with each relcache message about a machine's table or a guarded one, and with each message about a schema.
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    /// Grows with every relcache message about once.machine.
    static DEFINITIONS: Cell<u64> = const { Cell::new(0) };
    static DEFINITIONS_TABLE: Cell<Oid> = const { Cell::new(pg_sys::InvalidOid) };
    static WATCHED: RefCell<BTreeSet<u32>> = const { RefCell::new(BTreeSet::new()) };
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

fn listen() {
    if !WATCHING.replace(true) {
        let schemas = pg_sys::SysCacheIdentifier::NAMESPACEOID as i32;
        // SAFETY: registered once per backend; the callbacks live as long as the library.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), Datum::from(0));
            pg_sys::CacheRegisterSyscacheCallback(schemas, Some(schema_changed), Datum::from(0));
        }
    }
}

/// Counts messages about once.machine from now on; returns the present count.
pub fn watch_definitions() -> Result<u64> {
    listen();
    DEFINITIONS_TABLE.set(Table::to_read(TABLE)?.oid());
    Ok(DEFINITIONS.get())
}

/// Tells every backend that a definition has changed.
pub fn definitions_changed() -> Result<()> {
    let table = Table::to_read(TABLE)?.oid();
    // SAFETY: the table is there, locked to the end of the transaction.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
    Ok(())
}

/// Counts messages about these tables from now on; returns the present count.
pub fn watch(stored: &StoredMachine) -> u64 {
    listen();
    let tables = stored.tables().into_iter().flatten().map(Oid::to_u32);
    WATCHED.with(|watched| watched.borrow_mut().extend(tables));
    CHANGES.get()
}

/// The same for a table that carries a guard, such as a partition.
pub fn watch_guarded(table: Oid) -> u64 {
    listen();
    WATCHED.with(|watched| watched.borrow_mut().insert(table.to_u32()));
    CHANGES.get()
}

/// Takes the messages of all commits so far, as the first lock of a table does. So a definition that was committed
/// before counts without a read of its row.
pub fn accept() {
    // SAFETY: may be called wherever a table could be locked.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Grows whenever a table of a known machine may have changed.
pub fn of_tables() -> u64 {
    CHANGES.get()
}

/// Grows whenever a definition may have changed.
pub fn of_definitions() -> u64 {
    DEFINITIONS.get()
}

/// The server calls it for each relation that changes.
#[pgrx::pg_guard]
extern "C-unwind" fn relation_changed(_arg: Datum, relation: Oid) {
    let ours = || WATCHED.with(|w| w.try_borrow().is_ok_and(|w| w.contains(&relation.to_u32())));
    if relation == pg_sys::InvalidOid || ours() {
        CHANGES.set(CHANGES.get() + 1);
    }
    if relation == pg_sys::InvalidOid || relation == DEFINITIONS_TABLE.get() {
        DEFINITIONS.set(DEFINITIONS.get() + 1);
    }
}

/// The server calls it for each schema that is made, renamed or dropped.
#[pgrx::pg_guard]
extern "C-unwind" fn schema_changed(_arg: Datum, _cache: i32, _hash: u32) {
    CHANGES.set(CHANGES.get() + 1);
}

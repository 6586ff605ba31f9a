//! Counts the server's invalidation messages for the definitions and tables of machines, and for schemas.

use super::stored::{StoredMachine, TABLE};
use crate::error::Result;
use crate::table::{Table, Watch};
use pgrx::pg_sys::{self, Oid};

static TABLES: Watch = Watch::new();
static DEFINITIONS: Watch = Watch::new();

/// Counts messages about once.machine from now on; returns the present count.
pub fn watch_definitions() -> Result<u64> {
    Ok(DEFINITIONS.add([Table::to_read(TABLE)?.oid()]))
}

/// Counts messages about the machine's tables from now on; returns the present count.
pub fn watch(stored: &StoredMachine) -> u64 {
    TABLES.add(stored.tables().into_iter().flatten())
}

/// Like [`watch`], for a table that carries a guard, such as a partition.
pub fn watch_guarded(table: Oid) -> u64 {
    TABLES.add([table])
}

/// Processes the invalidation messages of all commits so far, as the server does when a transaction first locks a
/// table. So the counts include each committed change of a definition, without a read of its row.
pub fn accept() {
    // SAFETY: may be called wherever a table could be locked.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Grows whenever a table of a known machine may have changed.
pub fn of_tables() -> u64 {
    TABLES.count()
}

/// Grows whenever a definition may have changed.
pub fn of_definitions() -> u64 {
    DEFINITIONS.count()
}

//! Counts the server's invalidation messages for the definitions and tables of machines, and for schemas.

use crate::table::Watch;
use pgrx::pg_sys;

/// Messages about the tables of known machines, and about other tables with a guard, such as partitions.
pub static TABLES: Watch = Watch::new();
/// Messages about once.machine.
pub static DEFINITIONS: Watch = Watch::new();

/// Processes the invalidation messages of all commits so far, as the server does when a transaction first locks a
/// table. Then the counts include each committed change. A cached machine is valid as long as neither count changes.
pub fn accept() {
    // SAFETY: may be called wherever a table could be locked.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

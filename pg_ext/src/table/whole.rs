//! Locks whole tables until the end of the transaction, for rare changes; lock_timeout bounds the wait.

use super::{Name, Table, ensure_writable, names, next_xid};
use crate::error::{Error, Kind, Result};
use crate::trylock::wait_or;
use pgrx::pg_sys;

/// Waits for the end of all other transactions that have written these tables, and blocks new writers. 55P03 if
/// lock_timeout ends the wait.
pub fn lock_against_writers(tables: &[Name]) -> Result<()> {
    for name in tables {
        ensure_writable(name)?;
        let table = names::oid_of(name)?;
        // SAFETY: the oid is a table of the extension.
        let wait = || unsafe { pg_sys::LockRelationOid(table, pg_sys::ShareLock as i32) };
        wait_or(wait, || {
            let name = name.to_string_lossy();
            Error::new(
                Kind::LockNotAvailable,
                format!("could not lock once.{name} against writers"),
            )
            .hint("An open transaction has written this table. Try again when that transaction has ended.")
        })?;
    }
    Ok(())
}

/// True if no other open transaction has written the table; false also during VACUUM. Does not wait, and keeps no lock.
pub fn has_no_writers(name: Name) -> Result<bool> {
    let (table, share) = (names::oid_of(name)?, pg_sys::ShareLock as i32);
    // SAFETY: the oid is a table of the extension; the lock is released at once.
    unsafe {
        let is_free = pg_sys::ConditionalLockRelationOid(table, share);
        if is_free {
            pg_sys::UnlockRelationOid(table, share);
        }
        Ok(is_free)
    }
}

/// Blocks all other sessions from a table.
pub fn lock_exclusively(name: Name) -> Result<()> {
    ensure_writable(name)?;
    let table = names::oid_of(name)?;
    // SAFETY: the oid is a table of the extension; raises if lock_timeout ends the wait.
    unsafe { pg_sys::LockRelationOid(table, pg_sys::AccessExclusiveLock as i32) };
    Ok(())
}

/// The oldest transaction id, with its epoch, that some snapshot of this database regards as running. A replication
/// slot or a prepared transaction can hold this id back, too.
pub fn horizon(table: &Table) -> i64 {
    let next = next_xid();
    // SAFETY: the relation is open.
    let oldest = unsafe { pg_sys::GetOldestNonRemovableTransactionId(table.rel) };
    next - i64::from((next as u32).wrapping_sub(oldest.into_inner()))
}

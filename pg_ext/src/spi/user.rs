//! Runs a few statements as another role.
//!
//! The extension's own statements run as the extension's owner. Some statements of sweeps, guards and checks run as the
//! owner of a user's table, in a security-restricted operation. That table's triggers and constraints then run with the
//! owner's rights, never with the caller's.

use super::Kept;
use crate::caller;
use crate::error::{Error, Kind, Result};
use crate::settings;
use pgrx::pg_sys::{self, OIDOID};
use std::ffi::CStr;

/// Pinned, because an operator that the caller has created must never run as another role.
const SEARCH_PATH: (&CStr, &CStr) = (c"search_path", c"pg_catalog, pg_temp");
/// With `on`, no sweep would ever reach a row that a policy hides; with `off`, the server raises an error.
const ROW_SECURITY: (&CStr, &CStr) = (c"row_security", c"off");

const TEMPORARY: &CStr = c"SELECT 1 FROM pg_catalog.pg_type t WHERE t.typnamespace = $1 LIMIT 1";

static TEMPORARY_TYPE: Kept = Kept::new(TEMPORARY, &[OIDOID]);

/// Raises 55000 if the session has temporary tables or types, unless the current user is a superuser. Looks for types,
/// because every table has a row type.
pub fn ensure_nothing_temporary() -> Result<()> {
    let (mut schema, mut toast) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    // SAFETY: reads variables of this backend.
    unsafe { pg_sys::GetTempNamespaceState(&mut schema, &mut toast) };
    if schema == pg_sys::InvalidOid
        || caller::is_superuser()
        || super::query(&TEMPORARY_TYPE, &[Some(pg_sys::Datum::from(schema))])?.is_empty()
    {
        return Ok(());
    }
    Err(Error::new(
        Kind::NotInstalled,
        "a session with temporary tables cannot act as a table's owner",
    )
    .hint("Run DISCARD TEMP, or use another session for sweeps and checks."))
}

/// The user and settings from before a switch; restored on drop, or by an abort of the (sub)transaction.
pub struct SwitchedUser {
    user: pg_sys::Oid,
    context: i32,
    settings_level: i32,
}

impl SwitchedUser {
    pub(super) fn to_owner_of_extension(owner: pg_sys::Oid) -> SwitchedUser {
        let context = pg_sys::SECURITY_LOCAL_USERID_CHANGE;
        SwitchedUser::to(owner, context, &[SEARCH_PATH])
    }

    /// Begins a security-restricted operation as the owner of a user's table. Calls [`ensure_nothing_temporary`]
    /// first: a name in a trigger of that table could mean a temporary object, whose code would run as the owner.
    pub fn to_owner_of_table(owner: pg_sys::Oid) -> Result<SwitchedUser> {
        ensure_nothing_temporary()?;
        let context = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
        Ok(SwitchedUser::to(
            owner,
            context,
            &[SEARCH_PATH, ROW_SECURITY],
        ))
    }

    /// Acts as the owner of a user's table, as the check of a foreign key does: no policy hides a row.
    pub fn to_owner_for_check(owner: pg_sys::Oid) -> SwitchedUser {
        let context = pg_sys::SECURITY_LOCAL_USERID_CHANGE
            | pg_sys::SECURITY_RESTRICTED_OPERATION
            | pg_sys::SECURITY_NOFORCE_RLS;
        SwitchedUser::to(owner, context, &[SEARCH_PATH])
    }

    /// The user stays the caller; only search_path is the extension's.
    pub fn caller_by_pinned_path() -> SwitchedUser {
        // SAFETY: reads this backend's user.
        SwitchedUser::to(unsafe { pg_sys::GetUserId() }, 0, &[SEARCH_PATH])
    }

    fn to(owner: pg_sys::Oid, flags: u32, settings: &[(&CStr, &CStr)]) -> SwitchedUser {
        let mut before = SwitchedUser {
            user: pg_sys::InvalidOid,
            context: 0,
            settings_level: 0,
        };
        // SAFETY: reads and sets this backend's user.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut before.user, &mut before.context);
            pg_sys::SetUserIdAndSecContext(owner, before.context | flags as i32);
        }
        before.settings_level = settings::begin_level(settings);
        before
    }
}

impl Drop for SwitchedUser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: the level and the values from before the switch. Settings that a trigger changed in between are
            // rolled back, too, because the trigger ran as another role.
            unsafe {
                pg_sys::AtEOXact_GUC(false, self.settings_level);
                pg_sys::SetUserIdAndSecContext(self.user, self.context);
            }
        }
    }
}

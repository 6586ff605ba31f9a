//! Who is calling: `current_user`, also after SET ROLE and inside the caller's SECURITY DEFINER functions.

use pgrx::pg_sys::{self, Datum};
use std::ffi::c_char;

/// This cluster's system identifier; stands beside everything stored that means something only here.
pub fn cluster() -> i64 {
    // SAFETY: reads the control file's copy in memory.
    unsafe { pg_sys::GetSystemIdentifier() as i64 }
}

/// The caller has the rights of a role; superusers have everybody's, a role that is gone has no members.
pub fn has_rights_of(role: Datum) -> bool {
    // SAFETY: both read the system caches.
    unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), oid(role)) }
}

/// The caller is a superuser.
pub fn is_superuser() -> bool {
    // SAFETY: reads the system caches.
    unsafe { pg_sys::superuser() }
}

/// The role of this name (a `name` datum), where there is one.
pub fn role_named(name: Datum) -> Option<Datum> {
    // SAFETY: a name ends with NUL; looks the role up without an error for a missing one.
    let role = unsafe { pg_sys::get_role_oid(name.cast_mut_ptr::<c_char>(), true) };
    (role != pg_sys::InvalidOid).then(|| Datum::from(role))
}

fn oid(role: Datum) -> pg_sys::Oid {
    pg_sys::Oid::from(role.value() as u32)
}

//! Who is calling: `current_user`, also after SET ROLE and inside the caller's SECURITY DEFINER functions;
//! and whether a scope or machine that has an owner is open to them.

use crate::call::shown;
use crate::error::{Error, Kind, Result};
use pgrx::pg_sys::{self, Datum};
use std::ffi::{CStr, CString, c_char};

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

/// The role of this name, where there is one.
pub fn role_of_name(name: &[u8]) -> Option<Datum> {
    role_named(&CString::new(name).ok()?)
}

fn role_named(name: &CStr) -> Option<Datum> {
    // SAFETY: looks the role up without an error for a missing one.
    let role = unsafe { pg_sys::get_role_oid(name.as_ptr(), true) };
    (role != pg_sys::InvalidOid).then(|| Datum::from(role))
}

/// The name of the caller's role.
pub fn name() -> Vec<u8> {
    // SAFETY: the current user exists as long as it is the current user; the name is copied.
    unsafe {
        let name = pg_sys::GetUserNameFromId(pg_sys::GetUserId(), false);
        CStr::from_ptr(name).to_bytes().to_vec()
    }
}

/// Who owns a scope or a machine.
#[derive(Clone, Copy)]
pub enum Owner {
    Role(Datum),
    /// A role that is not there (any more, or in this cluster): closed to all but superusers.
    Gone,
}

impl Owner {
    /// The owner that a row names: a role's number, its name, and the cluster where the number counts.
    /// Elsewhere, after a restore, the number may be anybody's and the name counts. None: no owner.
    pub fn stored(
        role: Option<Datum>,
        name: Option<Datum>,
        cluster_id: Option<Datum>,
    ) -> Option<Owner> {
        let role = role?;
        if cluster_id.is_some_and(|d| d.value() as i64 == cluster()) {
            return Some(Owner::Role(role));
        }
        // SAFETY: a `name` datum ends with NUL.
        let name = name.map(|n| unsafe { CStr::from_ptr(n.cast_mut_ptr::<c_char>()) });
        Some(name.and_then(role_named).map_or(Owner::Gone, Owner::Role))
    }

    /// 42501 for who has not the owner's rights.
    pub fn ensure_member(self, what: &str, thing: &[u8]) -> Result<()> {
        let member = match self {
            Owner::Role(role) => has_rights_of(role),
            Owner::Gone => is_superuser(),
        };
        member.then_some(()).ok_or_else(|| {
            Error::new(
                Kind::NotYours,
                format!("permission denied for {what} \"{}\"", shown(thing)),
            )
            .hint(format!(
                "The {what} has an owner: GRANT its role to the caller, or use another {what}."
            ))
        })
    }
}

fn oid(role: Datum) -> pg_sys::Oid {
    pg_sys::Oid::from(role.value() as u32)
}

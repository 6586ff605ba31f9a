//! The caller is `current_user`: after SET ROLE the new role, inside a user's SECURITY DEFINER function the owner of
//! that function. Scopes, machines and topics may have an owner: then only members of the owner may use them.

use crate::call::shown;
use crate::error::{Error, Kind, Result};
use crate::incarnation;
use crate::spi::{self, Kept};
use crate::table;
use pgrx::pg_sys::{self, Datum, INT8OID};
use std::ffi::{CStr, CString, c_char};

/// Whether the caller has a role's rights. True for superusers; false for all others if the role was dropped.
pub fn has_rights_of(role: Datum) -> bool {
    // SAFETY: both read the system caches.
    unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), oid(role)) }
}

pub fn is_superuser() -> bool {
    // SAFETY: reads the system caches.
    unsafe { pg_sys::superuser() }
}

/// The role of this name, if it exists.
pub fn role_of_name(name: &[u8]) -> Option<Datum> {
    role_named(&CString::new(name).ok()?)
}

fn role_named(name: &CStr) -> Option<Datum> {
    // SAFETY: looks the role up; a missing role is no error.
    let role = unsafe { pg_sys::get_role_oid(name.as_ptr(), true) };
    (role != pg_sys::InvalidOid).then(|| Datum::from(role))
}

/// The name of the caller's role.
pub fn name() -> Vec<u8> {
    // SAFETY: raises an error if the role was dropped; the name is copied.
    unsafe {
        let name = pg_sys::GetUserNameFromId(pg_sys::GetUserId(), false);
        CStr::from_ptr(name).to_bytes().to_vec()
    }
}

/// The owner of a scope, a machine or a topic.
#[derive(Clone, Copy)]
pub enum Owner {
    Role(Datum),
    /// The role does not exist in this cluster: only superusers have its rights.
    Gone,
}

impl Owner {
    /// The owner that a row stores: a role's OID, its name, and the incarnation in which the OID is valid. In another
    /// incarnation (after a restore) the role is looked up by name. None: no owner.
    pub fn stored(
        role: Option<Datum>,
        name: Option<Datum>,
        incarnation: Option<Datum>,
    ) -> Result<Option<Owner>> {
        let Some(role) = role else {
            return Ok(None);
        };
        let present = incarnation::present()?;
        if incarnation.is_some_and(|d| d.value() as i64 == present) {
            return Ok(Some(Owner::Role(role)));
        }
        // SAFETY: a `name` datum ends with NUL.
        let name = name.map(|n| unsafe { CStr::from_ptr(n.cast_mut_ptr::<c_char>()) });
        Ok(Some(
            name.and_then(role_named).map_or(Owner::Gone, Owner::Role),
        ))
    }

    /// 42501 for a caller without the owner's rights.
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
                "The {what} has an owner: GRANT the owner's role to the caller, or use another {what}. If the role is gone, once.doctor() says what to do."
            ))
        })
    }
}

// $1 the present incarnation. Updates the stored names of renamed roles, and the role OIDs that were stored before a
// restore. Skips locked rows, but waits for locked rows of once.role_grant.
const FOLLOW: &CStr = c"
    WITH scopes AS (
        UPDATE once.scope s SET owner = d.oid, owner_name = d.rolname, owner_incarnation = $1
          FROM (SELECT o.scope, COALESCE(i.oid, n.oid), COALESCE(i.rolname, n.rolname)
                  FROM once.scope o
                       LEFT JOIN pg_catalog.pg_roles i ON i.oid = o.owner AND o.owner_incarnation = $1
                       LEFT JOIN pg_catalog.pg_roles n ON n.rolname = o.owner_name AND o.owner_incarnation <> $1
                 WHERE o.owner IS NOT NULL AND (i.rolname <> o.owner_name OR n.oid IS NOT NULL)
                   FOR UPDATE OF o SKIP LOCKED) d (scope, oid, rolname)
         WHERE s.scope = d.scope RETURNING 1),
    machines AS (
        UPDATE once.machine m SET owner = d.oid, owner_name = d.rolname, owner_incarnation = $1
          FROM (SELECT o.machine, COALESCE(i.oid, n.oid), COALESCE(i.rolname, n.rolname)
                  FROM once.machine o
                       LEFT JOIN pg_catalog.pg_roles i ON i.oid = o.owner AND o.owner_incarnation = $1
                       LEFT JOIN pg_catalog.pg_roles n ON n.rolname = o.owner_name AND o.owner_incarnation <> $1
                 WHERE o.owner IS NOT NULL AND (i.rolname <> o.owner_name OR n.oid IS NOT NULL)
                   FOR UPDATE OF o SKIP LOCKED) d (machine, oid, rolname)
         WHERE m.machine = d.machine),
    topics AS (
        UPDATE once.topic t SET owner = d.oid, owner_name = d.rolname, owner_incarnation = $1
          FROM (SELECT o.topic_id, COALESCE(i.oid, n.oid), COALESCE(i.rolname, n.rolname)
                  FROM once.topic o
                       LEFT JOIN pg_catalog.pg_roles i ON i.oid = o.owner AND o.owner_incarnation = $1
                       LEFT JOIN pg_catalog.pg_roles n ON n.rolname = o.owner_name AND o.owner_incarnation <> $1
                 WHERE o.owner IS NOT NULL AND (i.rolname <> o.owner_name OR n.oid IS NOT NULL)
                   FOR UPDATE OF o SKIP LOCKED) d (topic_id, oid, rolname)
         WHERE t.topic_id = d.topic_id RETURNING 1),
    renamed AS (
        UPDATE once.role_grant g SET role_name = r.rolname FROM pg_catalog.pg_roles r
         WHERE g.incarnation = $1 AND r.oid = g.role AND g.role_name <> r.rolname),
    restored AS (
        DELETE FROM once.role_grant g USING pg_catalog.pg_roles r
         WHERE g.incarnation <> $1 AND r.rolname = g.role_name RETURNING r.oid, r.rolname, g.kind),
    granted AS (
        INSERT INTO once.role_grant (role, role_name, incarnation, kind)
        SELECT DISTINCT r.oid, r.rolname, $1, r.kind FROM restored r
        ON CONFLICT (role, incarnation, kind) DO NOTHING)
    SELECT 1 FROM scopes UNION ALL SELECT 1 FROM topics";

static FOLLOWED: Kept = Kept::new(FOLLOW, &[INT8OID]);

/// Brings the stored names of roles up to date after ALTER ROLE … RENAME, and their OIDs after a restore.
pub fn follow_renames() -> Result<()> {
    let present = Some(Datum::from(incarnation::present()?));
    match spi::query(&FOLLOWED, &[present])?.is_empty() {
        true => Ok(()),
        false => table::tell_all(&[c"scope", c"topic"]),
    }
}

fn oid(role: Datum) -> pg_sys::Oid {
    pg_sys::Oid::from(role.value() as u32)
}

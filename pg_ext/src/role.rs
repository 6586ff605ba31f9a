//! role: `grant_role`, `revoke_role` and `role_list`. `sql/role.sql` lists the routines of each kind; this file grants
//! them, and stores the kinds of each role in once.role_grant.
//!
//! A revoke removes the rights that no other granted kind gives. The revoke of a role's last kind also removes USAGE on
//! the schema. An upgrade script calls grant_role if it adds functions. pg_dump dumps the grants that the
//! script makes, as it dumps all others (see [`OfTheUser`]).

use crate::call::{Call, shown, varlena};
use crate::caller;
use crate::error::{Error, Kind, Result};
use crate::incarnation;
use crate::row::{self, Rows};
use crate::spi::{self, Kept};
use crate::table;
use pgrx::pg_sys::{self, Datum, INT8OID, OIDOID, TEXTOID};
use std::ffi::CStr;

const REMEMBER: &CStr = c"
    INSERT INTO once.role_grant (role, role_name, incarnation, kind)
    SELECT r.oid, r.rolname, $3, $2 FROM pg_catalog.pg_roles r WHERE r.oid = $1
    ON CONFLICT (role, incarnation, kind) DO UPDATE SET role_name = excluded.role_name";

// A row of another incarnation is matched by the role's name.
const FORGET: &CStr = c"
    DELETE FROM once.role_grant g USING pg_catalog.pg_roles r
     WHERE r.oid = $1 AND g.kind = $2
       AND CASE g.incarnation WHEN $3 THEN g.role = r.oid ELSE g.role_name = r.rolname END";

// Forgets roles that were dropped, before another role gets their oid.
const TIDY: &CStr = c"
    DELETE FROM once.role_grant g
     WHERE g.incarnation = $1 AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = g.role)";

// The statements that bring the role's rights in line with its remembered kinds. They grant missing routines, revoke
// each routine of the kind $3 unless a remembered kind has it too, and grant or revoke USAGE on the schema.
const STATEMENTS: &CStr = c"
    WITH kinds AS (
        SELECT g.kind FROM once.role_grant g JOIN pg_catalog.pg_roles r
               ON CASE g.incarnation WHEN $2 THEN g.role = r.oid ELSE g.role_name = r.rolname END
         WHERE r.oid = $1),
    routines AS (
        SELECT p.oid::regprocedure AS signature,
               EXISTS (SELECT FROM once.role_function rf JOIN kinds USING (kind)
                        WHERE rf.function_name = p.proname) AS wanted,
               EXISTS (SELECT FROM once.role_function rf
                        WHERE rf.kind = $3 AND rf.function_name = p.proname) AS in_question,
               EXISTS (SELECT FROM pg_catalog.aclexplode(p.proacl) a
                        WHERE a.grantee = $1 AND a.privilege_type = 'EXECUTE') AS granted
          FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'once'::regnamespace)
    SELECT pg_catalog.format(CASE WHEN f.wanted THEN 'GRANT EXECUTE ON ROUTINE %s TO %I'
                                  ELSE 'REVOKE EXECUTE ON ROUTINE %s FROM %I' END, f.signature, r.rolname)
      FROM routines f, pg_catalog.pg_roles r
     WHERE r.oid = $1 AND f.wanted <> f.granted AND (f.wanted OR f.in_question)
    UNION ALL
    SELECT pg_catalog.format(CASE WHEN EXISTS (SELECT FROM kinds)
                                  THEN 'GRANT USAGE ON SCHEMA once TO %I'
                                  ELSE 'REVOKE USAGE ON SCHEMA once FROM %I' END, r.rolname)
      FROM pg_catalog.pg_roles r WHERE r.oid = $1";

const LIST: &CStr = c"
    SELECT DISTINCT r.rolname::text COLLATE \"C\", g.kind COLLATE \"C\"
      FROM once.role_grant g JOIN pg_catalog.pg_roles r
           ON CASE g.incarnation WHEN $1 THEN g.role = r.oid ELSE g.role_name = r.rolname END
     ORDER BY 1, 2";

static REMEMBERED: Kept = Kept::new(REMEMBER, &[OIDOID, TEXTOID, INT8OID]);
static FORGOTTEN: Kept = Kept::new(FORGET, &[OIDOID, TEXTOID, INT8OID]);
static TIDIED: Kept = Kept::new(TIDY, &[INT8OID]);
static GRANTS: Kept = Kept::new(STATEMENTS, &[OIDOID, INT8OID, TEXTOID]);
static LISTED: Kept = Kept::new(LIST, &[INT8OID]);

/// `once.grant_role`.
pub fn grant_role(call: &Call) -> Result<Datum> {
    change(call, &REMEMBERED)
}

/// `once.revoke_role`.
pub fn revoke_role(call: &Call) -> Result<Datum> {
    change(call, &FORGOTTEN)
}

/// `once.role_list`.
pub fn role_list(call: &Call) -> Result<Datum> {
    let rows = Rows::begin(call);
    for grant in spi::query(&LISTED, &[Some(Datum::from(incarnation::present()?))])? {
        rows.push(&grant);
    }
    Ok(call.return_null())
}

fn change(call: &Call, memory: &'static Kept) -> Result<Datum> {
    let role = call
        .datum(0)
        .ok_or_else(|| Error::bad_argument("role", "must not be null", "Name an existing role."))?;
    let kind = call.text(1, "kind", 20)?;
    if !matches!(kind, b"use" | b"operate" | b"observe") {
        return Err(Error::bad_argument(
            "kind",
            format!("must not be \"{}\"", shown(kind)),
            "Kinds: use, operate, observe.",
        ));
    }
    table::ensure_writable(c"role_grant")?;
    let statements = {
        // Two calls at once could update the same row of pg_proc, and one of them would fail.
        spi::run(b"LOCK TABLE once.role_grant IN SHARE ROW EXCLUSIVE MODE")?;
        let incarnation = Some(Datum::from(incarnation::present()?));
        let kind = Some(row::text(kind));
        caller::follow_renames()?;
        spi::query(&TIDIED, &[incarnation])?;
        spi::query(memory, &[Some(role), kind, incarnation])?;
        spi::query(&GRANTS, &[Some(role), incarnation, kind])?
    };
    if statements.is_empty() {
        return Err(Error::new(Kind::UndefinedObject, "the role does not exist")
            .hint("Name an existing role."));
    }
    let _of_the_user = OfTheUser::begin();
    for statement in statements.iter().flatten().flatten() {
        spi::run(varlena(*statement))?;
    }
    Ok(call.return_null())
}

/// While an extension's script runs, the server records grants as part of the extension, and pg_dump omits them: a
/// restored database would lack the grants that an upgrade made. While this value lives, grants are the user's.
struct OfTheUser {
    in_script: bool,
}

impl OfTheUser {
    fn begin() -> OfTheUser {
        // SAFETY: a variable of this backend. Drop restores it; if the script fails, the server sets it to false.
        unsafe {
            let in_script = pg_sys::creating_extension;
            pg_sys::creating_extension = false;
            OfTheUser { in_script }
        }
    }
}

impl Drop for OfTheUser {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { pg_sys::creating_extension = self.in_script };
    }
}

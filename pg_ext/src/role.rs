//! role: `grant_role` and `revoke_role`. Which functions a kind opens stands in `sql/role.sql`; this file
//! turns those rows into grants and remembers them.

use crate::call::Call;
use crate::call::{shown, varlena};
use crate::error::{Error, Kind, Result};
use crate::row;
use crate::spi::{self, Kept};
use crate::table;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

const REMEMBER: &CStr = c"
    INSERT INTO once.role_grant (role, kind) VALUES ($1, $2) ON CONFLICT DO NOTHING";

const FORGET: &CStr = c"DELETE FROM once.role_grant WHERE role = $1 AND kind = $2";

// The statements that make the role's rights what its remembered kinds say.
const STATEMENTS: &CStr = c"
    SELECT pg_catalog.format('%s EXECUTE ON FUNCTION %s %s %s',
               CASE WHEN wanted THEN 'GRANT' ELSE 'REVOKE' END, f.signature,
               CASE WHEN wanted THEN 'TO' ELSE 'FROM' END, f.role)
      FROM (SELECT p.oid::regprocedure AS signature, pg_catalog.quote_ident(r.rolname) AS role,
                   EXISTS (SELECT FROM once.role_function rf JOIN once.role_grant g USING (kind)
                            WHERE g.role = $1 AND rf.function_name = p.proname) AS wanted
              FROM pg_catalog.pg_proc p, pg_catalog.pg_roles r
             WHERE r.oid = $1 AND p.pronamespace = 'once'::regnamespace
               AND p.proname IN (SELECT function_name FROM once.role_function)) f
    UNION ALL
    SELECT pg_catalog.format(CASE WHEN EXISTS (SELECT FROM once.role_grant g WHERE g.role = $1)
                                  THEN 'GRANT USAGE ON SCHEMA once TO %I'
                                  ELSE 'REVOKE USAGE ON SCHEMA once FROM %I' END, r.rolname)
      FROM pg_catalog.pg_roles r WHERE r.oid = $1";

thread_local! {
    static REMEMBERED: Kept = const { Kept::new(REMEMBER, &[pg_sys::REGROLEOID, pg_sys::TEXTOID]) };
    static FORGOTTEN: Kept = const { Kept::new(FORGET, &[pg_sys::REGROLEOID, pg_sys::TEXTOID]) };
    static GRANTS: Kept = const { Kept::new(STATEMENTS, &[pg_sys::REGROLEOID]) };
}

/// `once.grant_role`.
pub fn grant_role(call: &Call) -> Result<Datum> {
    change(call, &REMEMBERED)
}

/// `once.revoke_role`.
pub fn revoke_role(call: &Call) -> Result<Datum> {
    change(call, &FORGOTTEN)
}

fn change(call: &Call, memory: &'static std::thread::LocalKey<Kept>) -> Result<Datum> {
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
        spi::query(memory, &[Some(role), Some(row::text(kind))])?;
        spi::query(&GRANTS, &[Some(role)])?
    };
    if statements.is_empty() {
        return Err(Error::new(Kind::UndefinedObject, "the role does not exist")
            .hint("Name an existing role."));
    }
    for statement in statements.iter().flatten().flatten() {
        spi::run(varlena(*statement))?;
    }
    Ok(call.return_null())
}

//! role: `grant_role` and `revoke_role`. Which functions a kind opens stands in `sql/role.sql`; this file
//! turns those rows into grants and remembers them.

use crate::call::Call;
use crate::call::{shown, varlena};
use crate::caller;
use crate::error::{Error, Kind, Result};
use crate::row;
use crate::spi::{self, Kept};
use crate::table;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

const REMEMBER: &CStr = c"
    INSERT INTO once.role_grant (role, role_name, cluster, kind)
    SELECT r.oid, r.rolname, $3, $2 FROM pg_catalog.pg_roles r WHERE r.oid = $1
    ON CONFLICT (role, cluster, kind) DO UPDATE SET role_name = excluded.role_name";

// A row of another cluster means the role of that name.
const FORGET: &CStr = c"
    DELETE FROM once.role_grant g USING pg_catalog.pg_roles r
     WHERE r.oid = $1 AND g.kind = $2
       AND CASE g.cluster WHEN $3 THEN g.role = r.oid ELSE g.role_name = r.rolname END";

// The statements that make the role's rights what its remembered kinds say.
const STATEMENTS: &CStr = c"
    WITH kinds AS (
        SELECT g.kind FROM once.role_grant g JOIN pg_catalog.pg_roles r
               ON CASE g.cluster WHEN $2 THEN g.role = r.oid ELSE g.role_name = r.rolname END
         WHERE r.oid = $1)
    SELECT pg_catalog.format('%s EXECUTE ON ROUTINE %s %s %s',
               CASE WHEN wanted THEN 'GRANT' ELSE 'REVOKE' END, f.signature,
               CASE WHEN wanted THEN 'TO' ELSE 'FROM' END, f.role)
      FROM (SELECT p.oid::regprocedure AS signature, pg_catalog.quote_ident(r.rolname) AS role,
                   EXISTS (SELECT FROM once.role_function rf JOIN kinds USING (kind)
                            WHERE rf.function_name = p.proname) AS wanted
              FROM pg_catalog.pg_proc p, pg_catalog.pg_roles r
             WHERE r.oid = $1 AND p.pronamespace = 'once'::regnamespace
               AND p.proname IN (SELECT function_name FROM once.role_function)) f
    UNION ALL
    SELECT pg_catalog.format(CASE WHEN EXISTS (SELECT FROM kinds)
                                  THEN 'GRANT USAGE ON SCHEMA once TO %I'
                                  ELSE 'REVOKE USAGE ON SCHEMA once FROM %I' END, r.rolname)
      FROM pg_catalog.pg_roles r WHERE r.oid = $1";

thread_local! {
    static REMEMBERED: Kept =
        const { Kept::new(REMEMBER, &[pg_sys::OIDOID, pg_sys::TEXTOID, pg_sys::INT8OID]) };
    static FORGOTTEN: Kept =
        const { Kept::new(FORGET, &[pg_sys::OIDOID, pg_sys::TEXTOID, pg_sys::INT8OID]) };
    static GRANTS: Kept = const { Kept::new(STATEMENTS, &[pg_sys::OIDOID, pg_sys::INT8OID]) };
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
        // Two at once would change the same functions' rights.
        spi::run(b"LOCK TABLE once.role_grant IN SHARE ROW EXCLUSIVE MODE")?;
        let cluster = Some(Datum::from(caller::cluster()));
        spi::query(memory, &[Some(role), Some(row::text(kind)), cluster])?;
        spi::query(&GRANTS, &[Some(role), cluster])?
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

//! Owners that are gone. Only superusers may use their scopes, machines and topics.

use super::Report;
use crate::error::Result;
use crate::incarnation;
use crate::spi::Kept;
use pgrx::pg_sys::{Datum, INT8OID};
use std::ffi::CStr;

// $1 the present incarnation. An owner that was stored in another incarnation is found by its name, not by its oid.
const GONE: &CStr = c"
    SELECT 'warning',
           pg_catalog.format('the owner of %s \"%s\" is gone', o.what, o.name),
           pg_catalog.format('role \"%s\" (%s) does not exist; only superusers may use it', o.owner_name, o.owner),
           pg_catalog.format('As a superuser: set another owner with %s. After a restore, CREATE ROLE %I is enough.', o.how, o.owner_name)
      FROM (SELECT 'scope', s.scope, s.owner, s.owner_name, s.owner_incarnation, 'once.scope_set' FROM once.scope s
             WHERE s.owner IS NOT NULL
            UNION ALL
            SELECT 'machine', m.machine, m.owner, m.owner_name, m.owner_incarnation, 'once.machine_define'
              FROM once.machine m WHERE m.owner IS NOT NULL
            UNION ALL
            SELECT 'topic', t.topic, t.owner, t.owner_name, t.owner_incarnation, 'once.topic_set' FROM once.topic t
             WHERE t.owner IS NOT NULL) o (what, name, owner, owner_name, owner_incarnation, how)
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r
                        WHERE CASE WHEN o.owner_incarnation = $1 THEN r.oid = o.owner
                                   ELSE r.rolname = o.owner_name END)
     ORDER BY o.what, o.name LIMIT 100";

static ARE_GONE: Kept = Kept::new(GONE, &[INT8OID]);

pub fn ask(report: &Report) -> Result<()> {
    report.ask(&ARE_GONE, &[Some(Datum::from(incarnation::present()?))])
}

//! Refuses a task whose tables have an enabled rule or BEFORE ROW trigger of a user. Such a rule or trigger could
//! silently suppress a sweep's writes, and each sweep would find the same rows again. Other triggers and foreign keys
//! cannot suppress a write without an error.

use crate::call::{shown, varlena};
use crate::error::{Error, Kind, Result};
use crate::spi::{self, Kept, column};
use crate::table::{Name, Table};
use pgrx::pg_sys::{Datum, OIDOID};
use std::ffi::CStr;

const FOREIGN: &CStr = c"
    SELECT pg_catalog.format('TRIGGER %I ON %s', t.tgname, t.tgrelid::pg_catalog.regclass)
      FROM pg_catalog.pg_trigger t
     WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND t.tgtype & 3 = 3 AND t.tgenabled IN ('O', 'A')
    UNION ALL
    SELECT pg_catalog.format('RULE %I ON %s', r.rulename, r.ev_class::pg_catalog.regclass)
      FROM pg_catalog.pg_rewrite r WHERE r.ev_class = $1 AND r.ev_enabled IN ('O', 'A')
     LIMIT 1";

static NAMED: Kept = Kept::new(FOREIGN, &[OIDOID]);

/// Raises 55006 if one of these tables has an enabled rule or BEFORE ROW trigger.
pub fn ensure_none(tables: &[Name]) -> Result<()> {
    for name in tables {
        let table = Table::to_read(name)?;
        if !table.may_keep_rows_back() {
            continue;
        }
        let rows = spi::query(&NAMED, &[Some(Datum::from(table.oid()))])?;
        if let Some(found) = rows.first().and_then(|row| column(row, 0)) {
            let object = shown(varlena(found));
            return Err(Error::new(
                Kind::InUse,
                format!(
                    "{object} does not belong to pg_once and could suppress writes of a sweep (DROP {object})"
                ),
            ));
        }
    }
    Ok(())
}

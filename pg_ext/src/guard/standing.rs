//! Finds the guard of a machine on a table, its partitions and the tables that inherit from it. machine_check reports
//! the result, and machine_guard uses it to see whether the guard is intact.

use super::install::{GuardTime, trigger_argument};
use crate::call::from_utf8;
use crate::error::Result;
use crate::machine::relation::Relation;
use crate::row;
use crate::spi::{self, Kept, column, text, text_of, yes};
use pgrx::pg_sys::{BYTEAOID, Datum, OIDOID, TEXTOID};
use std::ffi::CStr;

// The guarded table and all tables below it. A partition has its parent's triggers, but each of them may be disabled on
// the partition; a table that inherits has none of them. Column 3 is the first BEFORE ROW trigger that fires
// after a BEFORE ROW guard.
const BELOW: &CStr = c"
    WITH RECURSIVE below AS (
        SELECT $1 AS relation
        UNION SELECT i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.relation)
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname),
           g.tgenabled IN ('O', 'A'),
           (SELECT pg_catalog.min(l.tgname::text) FROM pg_catalog.pg_trigger l
             WHERE l.tgrelid = c.oid AND NOT l.tgisinternal AND l.tgname > g.tgname
               AND l.tgenabled <> 'D' AND l.tgtype & 3 = 3 AND l.tgtype & 20 <> 0 AND g.tgtype & 2 <> 0),
           c.relispartition AND g.tgtype & 2 = 0
      FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.relation
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_catalog.pg_trigger g
        ON g.tgrelid = c.oid AND g.tgname IN ($2::pg_catalog.name, $3::pg_catalog.name) AND g.tgargs = $4
     ORDER BY 1";

static ALL_BELOW: Kept = Kept::new(BELOW, &[OIDOID, TEXTOID, TEXTOID, BYTEAOID]);

/// The state of a guard on a table, or on a table below it.
pub struct GuardStanding {
    pub table: String,
    /// None: the guard is missing.
    pub fires: Option<bool>,
    /// A trigger that fires after the guard and before the row is written.
    pub later: Option<String>,
    /// An AFTER ROW guard on a partition. It refuses to move a row to another partition.
    pub refuses_moves: bool,
}

/// The state of the guard on a table and on each table below it.
pub fn guard_standing(machine: &str, table: &Relation) -> Result<Vec<GuardStanding>> {
    let name = |time: GuardTime| row::text(&from_utf8(&time.trigger_name(machine)));
    let args = [
        Datum::from(table.oid),
        name(GuardTime::Before),
        name(GuardTime::After),
        trigger_argument(machine),
    ];
    let rows = spi::query_latest(&ALL_BELOW, &args.map(Some))?;
    Ok(rows
        .iter()
        .map(|row| GuardStanding {
            table: text(row, 0),
            fires: column(row, 1).map(|d| d.value() != 0),
            later: text_of(row, 2),
            refuses_moves: yes(row, 3),
        })
        .collect())
}

//! `machine_guard`: the triggers on a machine's tables, put on and taken off.
//!
//! They are made as the extension's owner, because a trigger's maker needs the right to call its function,
//! which nobody else has; who asks must own the tables.

use crate::call::{Call, from_utf8, shown, varlena};
use crate::digest::{first_16, hex};
use crate::error::{Error, Kind, Result};
use crate::machine::columns::owned_by_caller;
use crate::machine::model::Machine;
use crate::machine::relation::Relation;
use crate::machine::sql::{ident, literal};
use crate::row;
use crate::spi::column;
use crate::spi::{self, Kept};
use crate::table;
use crate::trylock::wait_exclusive;
use pgrx::pg_sys::{self, Datum};
use sha2::{Digest, Sha256};
use std::ffi::CStr;

// The guards of a machine, not those that partitions have from their parents.
const PRESENT: &CStr = c"
    SELECT t.tgrelid FROM pg_catalog.pg_trigger t
     WHERE t.tgname = $1::pg_catalog.name AND t.tgargs = $2 AND t.tgparentid = 0
       AND t.tgfoid IN ('once.machine_guard_row'::pg_catalog.regproc,
                        'once.machine_guard_item'::pg_catalog.regproc)";

// What is below a guarded table: partitions have their parents' triggers, each of which may be disabled for
// itself; children that inherit have none. And BEFORE row triggers that fire after ours, on any of them.
const BELOW: &CStr = c"
    WITH below AS (
        SELECT $1 AS relation
        UNION SELECT t.relid::oid FROM pg_catalog.pg_partition_tree($1) t
        UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = $1)
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname),
           (SELECT g.tgenabled IN ('O', 'A') FROM pg_catalog.pg_trigger g
             WHERE g.tgrelid = c.oid AND g.tgname = $2::pg_catalog.name AND g.tgargs = $3),
           (SELECT pg_catalog.min(l.tgname::text) FROM pg_catalog.pg_trigger l
             WHERE l.tgrelid = c.oid AND NOT l.tgisinternal AND l.tgname > $2::pg_catalog.name
               AND l.tgenabled <> 'D' AND l.tgtype & 3 = 3 AND l.tgtype & 20 <> 0)
      FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.relation
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     ORDER BY 1";

const MARK: &CStr = c"UPDATE once.machine SET guarded = $2 WHERE machine = $1";

thread_local! {
    static PRESENT_GUARDS: Kept = const { Kept::new(PRESENT, &[pg_sys::TEXTOID, pg_sys::BYTEAOID]) };
    static ALL_BELOW: Kept = const { Kept::new(
        BELOW,
        &[pg_sys::OIDOID, pg_sys::TEXTOID, pg_sys::BYTEAOID],
    ) };
    static MARKED: Kept = const { Kept::new(MARK, &[pg_sys::TEXTOID, pg_sys::BOOLOID]) };
}

/// `once.machine_guard`.
pub fn machine_guard(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let enabled = call
        .datum(1)
        .ok_or_else(|| Error::bad_argument("enabled", "must not be null", "Give true or false."))?;
    table::ensure_writable(c"machine")?;
    ensure_owned(&machine)?;
    wait_exclusive(machine.lock);
    let machine = Machine::of(call)?;
    ensure_owned(&machine)?;
    remove(machine.name())?;
    if enabled.value() != 0 {
        install(&machine)?;
    }
    let name = row::text(&from_utf8(machine.name()));
    spi::query(&MARKED, &[Some(name), Some(enabled)])?;
    Ok(call.return_null())
}

/// The guards go where a changed definition says; where they are on the right tables they stay.
pub fn move_to(machine: &[u8]) -> Result<()> {
    let machine = Machine::for_tables(machine)?;
    let mut wanted: Vec<_> = tables(&machine).iter().map(|t| t.oid.to_u32()).collect();
    let mut here: Vec<_> = present(machine.name())?
        .iter()
        .map(|p| p.table.to_u32())
        .collect();
    wanted.sort_unstable();
    here.sort_unstable();
    if wanted == here {
        return Ok(());
    }
    ensure_owned(&machine)?;
    remove(machine.name())?;
    install(&machine)
}

fn ensure_owned(machine: &Machine) -> Result<()> {
    match tables(machine).iter().find(|t| !owned_by_caller(t.oid)) {
        None => Ok(()),
        Some(table) => Err(Error::new(
            Kind::NotYours,
            format!("must be owner of table {}", table.name),
        )
        .hint("The owner of the table puts guards on it and takes them off.")),
    }
}

/// The tables that carry guards.
pub fn tables(machine: &Machine) -> Vec<&Relation> {
    let items = machine.shape.refund.as_ref().map(|r| &r.items);
    std::iter::once(&machine.shape.table).chain(items).collect()
}

/// Puts the guards of a machine on its tables. The caller has made sure that they may.
pub fn install(machine: &Machine) -> Result<()> {
    let name = ident(&trigger_name(machine.name()));
    let argument = literal(machine.name());
    let on = |table: &Relation, function: &str| {
        let sql = format!(
            "CREATE OR REPLACE TRIGGER {name} BEFORE INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW \
             EXECUTE FUNCTION once.{function}({argument})",
            table.name
        );
        spi::run(&from_utf8(&sql))
    };
    on(&machine.shape.table, "machine_guard_row")?;
    match &machine.shape.refund {
        Some(refund) => on(&refund.items, "machine_guard_item"),
        None => Ok(()),
    }
}

/// Takes the guards of a machine off whatever tables carry them.
pub fn remove(machine: &str) -> Result<()> {
    for guard in present(machine)? {
        if let Some(table) = Relation::of(guard.table) {
            let name = ident(&trigger_name(machine));
            let sql = format!("DROP TRIGGER IF EXISTS {name} ON {}", table.name);
            spi::run(&from_utf8(&sql))?;
        }
    }
    Ok(())
}

/// The trigger is the guard of this machine's own table; the name in the database's encoding.
pub fn is_guard(trigger: &pg_sys::Trigger, machine: &[u8]) -> bool {
    const ROW_BEFORE: i16 = (pg_sys::TRIGGER_TYPE_ROW | pg_sys::TRIGGER_TYPE_BEFORE) as i16;
    // SAFETY: looks into the system caches, which give null or a string; a trigger has tgnargs arguments.
    unsafe {
        let function = pg_sys::get_func_name(trigger.tgfoid);
        let schema = pg_sys::get_namespace_oid(c"once".as_ptr(), true);
        !function.is_null()
            && CStr::from_ptr(function) == c"machine_guard_row"
            && pg_sys::get_func_namespace(trigger.tgfoid) == schema
            && trigger.tgtype & ROW_BEFORE == ROW_BEFORE
            && trigger.tgnargs == 1
            && CStr::from_ptr(*trigger.tgargs).to_bytes() == machine
    }
}

/// A guard that is there.
struct Present {
    table: pg_sys::Oid,
}

/// The guards of a machine that are there.
fn present(machine: &str) -> Result<Vec<Present>> {
    let [name, argument] = identity(machine);
    let rows = spi::query(&PRESENT_GUARDS, &[name, argument])?;
    let table = |row: &spi::Row| Some(pg_sys::Oid::from(column(row, 0)?.value() as u32));
    Ok(rows
        .iter()
        .filter_map(|row| Some(Present { table: table(row)? }))
        .collect())
}

/// How a guard stands on a table, or on one below it.
pub struct Standing {
    pub table: String,
    /// None: it is not there.
    pub fires: Option<bool>,
    /// A trigger that fires after it.
    pub later: Option<String>,
}

/// How the guard stands on a table and on everything below it.
pub fn standing(machine: &str, table: &Relation) -> Result<Vec<Standing>> {
    let [name, argument] = identity(machine);
    let rows = spi::query(&ALL_BELOW, &[Some(Datum::from(table.oid)), name, argument])?;
    let text = |row: &spi::Row, i| column(row, i).map(|d| shown(varlena(d)));
    Ok(rows
        .iter()
        .map(|row| Standing {
            table: text(row, 0).unwrap_or_default(),
            fires: column(row, 1).map(|d| d.value() != 0),
            later: text(row, 2),
        })
        .collect())
}

/// Name and argument of a machine's triggers. A trigger's arguments are stored with a NUL byte behind each;
/// a bytea is laid out as a text is.
fn identity(machine: &str) -> [Option<Datum>; 2] {
    let name = row::text(&from_utf8(&trigger_name(machine)));
    let argument = row::text(&[&from_utf8(machine), b"\0".as_slice()].concat());
    [Some(name), Some(argument)]
}

/// Triggers of one kind fire in the order of their names: "~" comes after all of ASCII. A name that is too
/// long for an identifier is a hash.
pub fn trigger_name(machine: &str) -> String {
    let plain = format!("~pg_once_{machine}");
    if from_utf8(&plain).len() < pg_sys::NAMEDATALEN as usize {
        return plain;
    }
    format!("~pg_once#{}", hex(&first_16(&Sha256::digest(machine))))
}

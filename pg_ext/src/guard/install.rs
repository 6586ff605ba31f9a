//! `machine_guard`: puts the triggers on a machine's tables and takes them off.
//!
//! Only the extension's owner may execute the trigger functions, so that role creates the triggers. The caller must own
//! the tables.
//!
//! A machine's row is judged after it was written, because a BEFORE UPDATE trigger makes the server lock each row and
//! log the lock. A row that may move to another partition is judged before it is written, because an AFTER trigger sees
//! the move as a DELETE and an INSERT. An item is judged before it is written, because the machine's row must be locked
//! first. The guard's name begins with "~" or "!", so it is usually the last BEFORE ROW or the first AFTER ROW trigger.
//!
//! Before the DDL runs, the tables are locked in the order of their oids, each with its partitions. Each wait is
//! bounded ([`wait_bounded`]); a deadlock raises the server's 40P01.

use super::standing::guard_standing;
use crate::call::{Call, from_utf8, shown, varlena};
use crate::digest::{first_16, hex};
use crate::error::{Error, Kind, Result};
use crate::machine::model::Machine;
use crate::machine::relation::Relation;
use crate::machine::sql::{ident, literal};
use crate::machine::stored::StoredMachine;
use crate::machine::{validate, wait_bounded, wait_for_claims};
use crate::row;
use crate::spi::{self, Kept, column};
use crate::table;
use pgrx::pg_sys::{self, BOOLOID, BYTEAOID, Datum, TEXTOID};
use sha2::{Digest, Sha256};
use std::ffi::CStr;

// The guards of a machine, without the guards that partitions inherit.
const PRESENT: &CStr = c"
    SELECT t.tgrelid, t.tgname::text, p.proname::text, t.tgtype & 2 <> 0,
           t.tgenabled IN ('O', 'A') AND t.tgtype & 29 = 29 AND t.tgconstraint = 0 AND t.tgqual IS NULL
           AND t.tgattr = ''::pg_catalog.int2vector
      FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
     WHERE t.tgargs = $1 AND t.tgparentid = 0
       AND t.tgfoid IN ('once.machine_guard_row'::pg_catalog.regproc,
                        'once.machine_guard_item'::pg_catalog.regproc)";

const MARK: &CStr = c"UPDATE once.machine SET guarded = $2 WHERE machine = $1";

static PRESENT_GUARDS: Kept = Kept::new(PRESENT, &[BYTEAOID]);
static MARKED: Kept = Kept::new(MARK, &[TEXTOID, BOOLOID]);

/// `once.machine_guard`.
pub fn machine_guard(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let enabled = call
        .datum(1)
        .ok_or_else(|| Error::bad_argument("enabled", "must not be null", "Give true or false."))?;
    let is_on = enabled.value() != 0;
    table::ensure_writable(c"machine")?;
    ensure_owned(&machine)?;
    // A service may call machine_guard at each start, so an intact guard is not replaced.
    if is_on && is_whole(&machine)? {
        return Ok(call.return_null());
    }
    wait_for_claims(machine.name())?;
    let machine = Machine::of(call)?;
    let wanted = if is_on {
        wanted_guards(&machine)
    } else {
        Vec::new()
    };
    replace_guards(machine.name(), &wanted)?;
    // The tables' owner may have changed during the wait.
    ensure_owned(&machine)?;
    let name = row::text(&from_utf8(machine.name()));
    spi::query(&MARKED, &[Some(name), Some(enabled)])?;
    Ok(call.return_null())
}

/// Replaces the guards after a new definition, if it needs them on other tables or at another time (BEFORE or AFTER).
pub fn move_guards(machine: &[u8]) -> Result<()> {
    let machine = Machine::for_tables(machine)?;
    let (wanted, present) = (wanted_guards(&machine), present_guards(machine.name())?);
    if are_those_wanted(machine.name(), &present, &wanted) {
        return Ok(());
    }
    ensure_owned(&machine)?;
    replace_guards(machine.name(), &wanted)?;
    ensure_owned(&machine)
}

fn are_those_wanted(machine: &str, present: &[PresentGuard], wanted: &[WantedGuard]) -> bool {
    let serves = |p: &PresentGuard, w: &WantedGuard| {
        p.table == w.table.oid
            && p.function == w.function
            && p.time == w.time
            && p.name == w.time.trigger_name(machine)
    };
    wanted.len() == present.len() && wanted.iter().all(|w| present.iter().any(|p| serves(p, w)))
}

/// Whether the machine's guard is intact. A table that only inherits from a guarded table gets no guard and is ignored.
fn is_whole(machine: &Machine) -> Result<bool> {
    let name = machine.name();
    let is_marked = StoredMachine::find(&from_utf8(name))?.is_some_and(|s| s.guarded());
    let present = present_guards(name)?;
    let mut is_whole = is_marked
        && are_those_wanted(name, &present, &wanted_guards(machine))
        && present.iter().all(|p| p.is_whole);
    for table in guarded_tables(machine) {
        is_whole &= guard_standing(name, table)?
            .iter()
            .all(|s| s.fires != Some(false) && !s.refuses_moves);
    }
    Ok(is_whole)
}

/// Drops all guards of the machine and creates the wanted guards. Locks each table in the mode that the DDL needs.
pub fn replace_guards(machine: &str, wanted: &[WantedGuard]) -> Result<()> {
    let present = lock_guarded(machine, wanted)?;
    present.iter().try_for_each(PresentGuard::remove)?;
    wanted.iter().try_for_each(|w| w.install(machine))
}

fn lock_guarded(machine: &str, wanted: &[WantedGuard]) -> Result<Vec<PresentGuard>> {
    let present = present_guards(machine)?;
    let guarded = present.iter().filter_map(|p| Relation::of(p.table));
    let mut tables: Vec<_> = guarded
        .map(|table| (table, pg_sys::AccessExclusiveLock))
        .collect();
    for WantedGuard { table, .. } in wanted {
        if tables.iter().all(|(guarded, _)| guarded != *table) {
            tables.push(((*table).clone(), pg_sys::ShareRowExclusiveLock));
        }
    }
    tables.sort_by_key(|(table, _)| table.oid.to_u32());
    for (table, mode) in &tables {
        lock_for_ddl(machine, table, *mode)?;
        for partition in table.partitions().into_iter().filter_map(Relation::of) {
            lock_for_ddl(machine, &partition, *mode)?;
        }
    }
    // The DDL uses the tables' names, and another table may have one of these names by now.
    match tables.iter().all(|(table, _)| table.is_still_named()) {
        true => Ok(present),
        false => Err(Error::new(
            Kind::RetryTransaction,
            format!("a table of machine \"{machine}\" was renamed or dropped while this call waited for its lock"),
        )
        .hint("Roll back and run the whole transaction again.")),
    }
}

fn lock_for_ddl(machine: &str, table: &Relation, mode: u32) -> Result<()> {
    wait_bounded(
        || table.lock(mode),
        || {
            let name = &table.name;
            format!("could not lock table {name} of machine \"{machine}\" within the lock_timeout")
        },
    )
}

fn ensure_owned(machine: &Machine) -> Result<()> {
    let mut tables = guarded_tables(machine).into_iter();
    tables.try_for_each(|table| validate::ensure_owned(table.oid, &table.name))
}

/// The tables that get a guard: the machine's table, and the items table of a refund.
pub fn guarded_tables(machine: &Machine) -> Vec<&Relation> {
    let items = machine.shape.refund.as_ref().map(|r| &r.items);
    std::iter::once(&machine.shape.table).chain(items).collect()
}

pub struct WantedGuard<'a> {
    table: &'a Relation,
    time: GuardTime,
    function: &'static str,
}

impl WantedGuard<'_> {
    fn install(&self, machine: &str) -> Result<()> {
        let sql = format!(
            "CREATE OR REPLACE TRIGGER {} {} INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW \
             EXECUTE FUNCTION once.{}({})",
            ident(&self.time.trigger_name(machine)),
            self.time.word(),
            self.table.name,
            self.function,
            literal(machine),
        );
        spi::run(&from_utf8(&sql))
    }
}

fn wanted_guards(machine: &Machine) -> Vec<WantedGuard<'_>> {
    let mut guards = vec![WantedGuard {
        table: &machine.shape.table,
        time: GuardTime::of(machine),
        function: "machine_guard_row",
    }];
    guards.extend(machine.shape.refund.as_ref().map(|refund| WantedGuard {
        table: &refund.items,
        time: GuardTime::Before,
        function: "machine_guard_item",
    }));
    guards
}

/// Whether an UPDATE may move a row to another partition.
fn may_move_rows(table: pg_sys::Oid) -> bool {
    // SAFETY: looks into the system cache.
    unsafe {
        pg_sys::get_rel_relkind(table) as u8 == pg_sys::RELKIND_PARTITIONED_TABLE
            || pg_sys::get_rel_relispartition(table)
    }
}

/// A guard found in pg_trigger.
struct PresentGuard {
    table: pg_sys::Oid,
    name: String,
    function: String,
    time: GuardTime,
    /// Whether the trigger is enabled, and fires for INSERT, UPDATE and DELETE of any row: no WHEN, no column list.
    is_whole: bool,
}

impl PresentGuard {
    fn remove(&self) -> Result<()> {
        let Some(table) = Relation::of(self.table) else {
            return Ok(());
        };
        let name = ident(&self.name);
        let sql = format!("DROP TRIGGER IF EXISTS {name} ON {}", table.name);
        spi::run(&from_utf8(&sql))
    }
}

fn present_guards(machine: &str) -> Result<Vec<PresentGuard>> {
    let rows = spi::query_latest(&PRESENT_GUARDS, &[Some(trigger_argument(machine))])?;
    let guard = |row: &spi::Row| {
        Some(PresentGuard {
            table: pg_sys::Oid::from(column(row, 0)?.value() as u32),
            name: shown(varlena(column(row, 1)?)),
            function: shown(varlena(column(row, 2)?)),
            time: match column(row, 3)?.value() != 0 {
                true => GuardTime::Before,
                false => GuardTime::After,
            },
            is_whole: column(row, 4)?.value() != 0,
        })
    };
    Ok(rows.iter().filter_map(guard).collect())
}

/// The argument of a machine's triggers, as the bytea that pg_trigger.tgargs stores: a NUL byte ends each argument.
pub(super) fn trigger_argument(machine: &str) -> Datum {
    // bytea has the same layout as text.
    row::text(&[&from_utf8(machine), b"\0".as_slice()].concat())
}

/// When a guard judges a row: before it is written, or after.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GuardTime {
    Before,
    After,
}

impl GuardTime {
    /// When the guard judges the rows of the machine's own table.
    fn of(machine: &Machine) -> GuardTime {
        let table = &machine.shape.table;
        // The call of `owner` locks the table, so the table cannot become a partition before the transaction ends.
        match table.owner().is_none() || may_move_rows(table.oid) {
            true => GuardTime::Before,
            false => GuardTime::After,
        }
    }

    fn word(self) -> &'static str {
        match self {
            GuardTime::Before => "BEFORE",
            GuardTime::After => "AFTER",
        }
    }

    /// The first character of the guard's name. Triggers of one event fire in the order of their names. "~" is the last
    /// printable character of ASCII, "!" the first after the blank.
    fn place(self) -> char {
        match self {
            GuardTime::Before => '~',
            GuardTime::After => '!',
        }
    }

    /// If the name is too long for an identifier, a hash replaces the machine's name in it.
    pub(super) fn trigger_name(self, machine: &str) -> String {
        let place = self.place();
        let plain = format!("{place}pg_once_{machine}");
        if from_utf8(&plain).len() < pg_sys::NAMEDATALEN as usize {
            return plain;
        }
        format!(
            "{place}pg_once#{}",
            hex(&first_16(&Sha256::digest(machine)))
        )
    }
}

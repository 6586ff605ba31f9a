//! `machine_guard`: the triggers on a machine's tables, put on and taken off.
//!
//! They are made as the extension's owner, because a trigger's maker needs the right to call its function,
//! which nobody else has; who asks must own the tables.
//!
//! A machine's row is judged after it was written: the server locks each row for a trigger before it, and writes that to
//! the log, also for an UPDATE that is none of the guard's. Where a row may move to another partition it is judged before,
//! because afterwards that is a row deleted and another one inserted. An item is judged before: its job's row is to be
//! locked by then. Before the row the guard is the last of the table's triggers, after it the first: a row that is refused
//! has met none of them, and no foreign key.
//!
//! No trigger has a WHEN clause: the server reads and plans the clause again in each statement. That adds a fifth to the CPU
//! time of the UPDATE of one row; an UPDATE of many rows would take a tenth less.

use super::lock::lock_all;
use super::standing::standing;
use crate::call::{Call, from_utf8, shown, varlena};
use crate::digest::{first_16, hex};
use crate::error::{Error, Kind, Result};
use crate::machine::columns::owned_by_caller;
use crate::machine::model::Machine;
use crate::machine::relation::Relation;
use crate::machine::sql::{ident, literal};
use crate::machine::stored::StoredMachine;
use crate::machine::wait_for_claims;
use crate::row;
use crate::spi::column;
use crate::spi::{self, Kept};
use crate::table;
use pgrx::pg_sys::{self, Datum};
use sha2::{Digest, Sha256};
use std::ffi::CStr;

// The guards of a machine, not those that partitions have from their parents.
const PRESENT: &CStr = c"
    SELECT t.tgrelid, t.tgname::text, p.proname::text, t.tgtype & 2 <> 0,
           t.tgenabled IN ('O', 'A') AND t.tgtype & 29 = 29 AND t.tgconstraint = 0 AND t.tgqual IS NULL
           AND t.tgattr = ''::pg_catalog.int2vector
      FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
     WHERE t.tgargs = $1 AND t.tgparentid = 0
       AND t.tgfoid IN ('once.machine_guard_row'::pg_catalog.regproc,
                        'once.machine_guard_item'::pg_catalog.regproc)";

const MARK: &CStr = c"UPDATE once.machine SET guarded = $2 WHERE machine = $1";

thread_local! {
    static PRESENT_GUARDS: Kept = const { Kept::new(PRESENT, &[pg_sys::BYTEAOID]) };
    static MARKED: Kept = const { Kept::new(MARK, &[pg_sys::TEXTOID, pg_sys::BOOLOID]) };
}

/// `once.machine_guard`.
pub fn machine_guard(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let enabled = call
        .datum(1)
        .ok_or_else(|| Error::bad_argument("enabled", "must not be null", "Give true or false."))?;
    table::ensure_writable(c"machine")?;
    ensure_all_owned(&machine)?;
    // Claims need not wait for us where there is nothing to do.
    if enabled.value() != 0 && stands(&machine)? {
        return Ok(call.return_null());
    }
    wait_for_claims(machine.name())?;
    let machine = Machine::of(call)?;
    ensure_all_owned(&machine)?;
    let is_done = match enabled.value() != 0 {
        true => stands(&machine)?,
        false => present(machine.name())?.is_empty(),
    };
    if !is_done {
        let here = present(machine.name())?;
        lock_for(machine.name(), here.iter(), tables(&machine).into_iter())?;
        remove(machine.name())?;
        if enabled.value() != 0 {
            install(&machine)?;
        }
        // Whoever owns them after the wait.
        ensure_all_owned(&machine)?;
    }
    let name = row::text(&from_utf8(machine.name()));
    spi::query(&MARKED, &[Some(name), Some(enabled)])?;
    Ok(call.return_null())
}

/// The guards go where a changed definition says; those that serve stay.
pub fn move_to(machine: &[u8]) -> Result<()> {
    let machine = Machine::for_tables(machine)?;
    let (wanted, here) = (wanted(&machine)?, present(machine.name())?);
    let serves = |h: &Present, w: &Wanted| h.serves(machine.name(), w);
    let missing = || wanted.iter().filter(|w| !here.iter().any(|h| serves(h, w)));
    for guard in missing() {
        ensure_owned(guard.table)?;
    }
    let unwanted = || here.iter().filter(|h| !wanted.iter().any(|w| serves(h, w)));
    lock_for(
        machine.name(),
        unwanted(),
        missing().map(|guard| guard.table),
    )?;
    unwanted().try_for_each(Present::remove)?;
    missing().try_for_each(|guard| guard.install(machine.name()))?;
    verify(machine.name(), &wanted)?;
    missing().try_for_each(|guard| ensure_owned(guard.table))
}

/// The guards are on and as they are to be, also once the tables are locked: a transaction that takes a guard off or
/// disables it has ended by then. Where they are not, no table stays locked.
fn stands(machine: &Machine) -> Result<bool> {
    let is_marked = StoredMachine::find(&from_utf8(machine.name()))?.is_some_and(|s| s.guarded());
    if !is_marked || !is_whole(machine)? {
        return Ok(false);
    }
    let tables = tables(machine).into_iter().cloned();
    let tables = tables.map(|table| (table, pg_sys::RowExclusiveLock));
    lock_all(machine.name(), tables.collect())?;
    is_whole(machine)
}

/// The guards are on the tables as they are to be, and fire there and below. A table that inherits from one of them has
/// no guard, whatever is done about it.
fn is_whole(machine: &Machine) -> Result<bool> {
    let (wanted, here) = (wanted(machine)?, present(machine.name())?);
    let name = machine.name();
    let serves = |h: &Present, w: &Wanted| h.is_whole && h.time == w.time && h.serves(name, w);
    let mut is_whole =
        wanted.len() == here.len() && wanted.iter().all(|w| here.iter().any(|h| serves(h, w)));
    for table in tables(machine) {
        let below = standing(name, table)?;
        is_whole &= below
            .iter()
            .all(|s| s.fires != Some(false) && !s.refuses_moves);
    }
    Ok(is_whole)
}

/// Locks the tables whose guards are to go, as DROP TRIGGER does, and those that are to get some, as CREATE TRIGGER does.
fn lock_for<'a>(
    machine: &str,
    guards: impl Iterator<Item = &'a Present>,
    unguarded: impl Iterator<Item = &'a Relation>,
) -> Result<()> {
    let guarded: Vec<_> = guards.filter_map(|g| Relation::of(g.table)).collect();
    let unguarded: Vec<_> = unguarded.filter(|t| !guarded.contains(t)).collect();
    let guarded = guarded
        .iter()
        .map(|t| (t.clone(), pg_sys::AccessExclusiveLock));
    let unguarded = unguarded
        .iter()
        .map(|t| ((*t).clone(), pg_sys::ShareRowExclusiveLock));
    lock_all(machine, guarded.chain(unguarded).collect())
}

/// Locks the tables that carry guards of a machine, to take them off.
pub fn lock_guarded(machine: &str) -> Result<()> {
    lock_for(machine, present(machine)?.iter(), std::iter::empty())
}

fn ensure_all_owned(machine: &Machine) -> Result<()> {
    tables(machine).into_iter().try_for_each(ensure_owned)
}

fn ensure_owned(table: &Relation) -> Result<()> {
    match owned_by_caller(table.oid) {
        true => Ok(()),
        false => Err(Error::new(
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
    let wanted = wanted(machine)?;
    (wanted.iter()).try_for_each(|guard| guard.install(machine.name()))?;
    verify(machine.name(), &wanted)
}

/// The guards are on the tables that they are to be on. A statement that waits for a table's lock looks its name up
/// again: by then it may be another table's, whose owner has not asked for anything.
fn verify(machine: &str, wanted: &[Wanted]) -> Result<()> {
    let here = present(machine)?;
    let serves = |h: &Present, w: &Wanted| h.serves(machine, w);
    if wanted.iter().all(|w| here.iter().any(|h| serves(h, w)))
        && here.iter().all(|h| wanted.iter().any(|w| serves(h, w)))
    {
        return Ok(());
    }
    Err(got_another_name(machine))
}

pub fn got_another_name(machine: &str) -> Error {
    Error::new(
        Kind::RetryTransaction,
        format!("a table of machine \"{machine}\" got another name, or was dropped, while its guard waited for it"),
    )
    .hint("Roll back and run the whole transaction again.")
}

/// A guard that a machine's table is to have.
struct Wanted<'a> {
    table: &'a Relation,
    time: Time,
    function: &'static str,
}

impl Wanted<'_> {
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

fn wanted(machine: &Machine) -> Result<Vec<Wanted<'_>>> {
    let mut guards = vec![Wanted {
        table: &machine.shape.table,
        time: Time::of(machine)?,
        function: "machine_guard_row",
    }];
    guards.extend(machine.shape.refund.as_ref().map(|refund| Wanted {
        table: &refund.items,
        time: Time::Before,
        function: "machine_guard_item",
    }));
    Ok(guards)
}

/// An UPDATE may take a row to another partition.
fn may_move_rows(table: pg_sys::Oid) -> bool {
    // SAFETY: looks into the system cache.
    unsafe {
        pg_sys::get_rel_relkind(table) as u8 == pg_sys::RELKIND_PARTITIONED_TABLE
            || pg_sys::get_rel_relispartition(table)
    }
}

/// Takes the guards of a machine off whatever tables carry them.
pub fn remove(machine: &str) -> Result<()> {
    present(machine)?.iter().try_for_each(Present::remove)?;
    verify(machine, &[])
}

/// A guard that is there.
struct Present {
    table: pg_sys::Oid,
    name: String,
    function: String,
    time: Time,
    /// It fires for every write, as it was made.
    is_whole: bool,
}

impl Present {
    fn remove(&self) -> Result<()> {
        let Some(table) = Relation::of(self.table) else {
            return Ok(());
        };
        let name = ident(&self.name);
        let sql = format!("DROP TRIGGER IF EXISTS {name} ON {}", table.name);
        spi::run(&from_utf8(&sql))
    }

    /// It does what is wanted: before the row every guard can judge.
    fn serves(&self, machine: &str, wanted: &Wanted) -> bool {
        self.table == wanted.table.oid
            && self.function == wanted.function
            && self.name == self.time.trigger_name(machine)
            && (self.time == wanted.time || self.time == Time::Before)
    }
}

/// The guards of a machine that are there.
fn present(machine: &str) -> Result<Vec<Present>> {
    let rows = spi::query_latest(&PRESENT_GUARDS, &[Some(argument(machine))])?;
    let guard = |row: &spi::Row| {
        Some(Present {
            table: pg_sys::Oid::from(column(row, 0)?.value() as u32),
            name: shown(varlena(column(row, 1)?)),
            function: shown(varlena(column(row, 2)?)),
            time: match column(row, 3)?.value() != 0 {
                true => Time::Before,
                false => Time::After,
            },
            is_whole: column(row, 4)?.value() != 0,
        })
    };
    Ok(rows.iter().filter_map(guard).collect())
}

/// The argument of a machine's triggers, as bytea: a trigger's arguments are stored with a NUL byte behind each.
pub(super) fn argument(machine: &str) -> Datum {
    // A bytea is laid out as a text is.
    row::text(&[&from_utf8(machine), b"\0".as_slice()].concat())
}

/// When a guard judges a row: before it is written, or after.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Time {
    Before,
    After,
}

impl Time {
    /// When a machine's own rows are judged.
    fn of(machine: &Machine) -> Result<Time> {
        let table = &machine.shape.table;
        // Its lock: while it is attached as a partition it is none yet.
        let before = table.owner().is_none() || may_move_rows(table.oid);
        Ok(if before { Time::Before } else { Time::After })
    }

    fn word(self) -> &'static str {
        match self {
            Time::Before => "BEFORE",
            Time::After => "AFTER",
        }
    }

    /// Triggers of one kind fire in the order of their names: "~" comes after all of ASCII, "!" before all that is
    /// printed but the blank.
    fn place(self) -> char {
        match self {
            Time::Before => '~',
            Time::After => '!',
        }
    }

    /// A name that is too long for an identifier is a hash.
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

//! Moves one row of a plain table without the cost of the executor: finds the row by the index of its id, and updates
//! status, version and the patch's columns.
//!
//! Invariant: a direct move does exactly what the statement of `transition` would do. It is made only where no rule, no
//! policy and no trigger but the machine's guard could take part (see [`PlainTable::of_machine`]). The guard is not
//! called, because it would let each such move pass. If a direct move does not succeed (no such row, another status, a
//! lost race), it has written nothing, and `transition` runs its statement.

use super::changes;
use super::definition::Definition;
use super::id::RowId;
use super::model::Machine;
use super::moves::Move;
use super::patch::Patch;
use super::relation::UserColumn;
use super::scalar::ScalarInput;
use crate::call::{from_utf8, shown, varlena};
use crate::error::Result;
use crate::row;
use crate::spi;
use crate::table::{
    ScanKey, Slot, Snapshot, Table, Wait, WriteOutcome, above_read_committed, enums,
};
use pgrx::pg_sys::{self, Datum, Oid};
use std::borrow::Cow;
use std::ffi::CStr;

/// The direct moves from some statuses to one status.
pub struct Direct {
    ground: PlainTable,
    /// In the database's encoding.
    from: Vec<Vec<u8>>,
}

/// A plain table: how its rows are found, and which columns are written.
struct PlainTable {
    table: Oid,
    index: Oid,
    equal: Oid,
    collation: Oid,
    status: usize,
    labels: StatusLabels,
    version: Option<usize>,
    flag: Option<usize>,
    dropped: Vec<usize>,
    /// Whether the table has the machine's guard.
    guarded: bool,
    /// Whether the table has foreign keys of its own.
    references: bool,
    patched: Vec<Patched>,
}

/// A column that a patch sets.
struct Patched {
    number: usize,
    /// The patch member's name, in the database's encoding.
    name: Vec<u8>,
    input: ScalarInput,
}

/// The row that one call moves, and its new status.
pub struct DirectMove<'a> {
    pub machine: &'a Machine,
    pub id: &'a RowId,
    pub to: &'a [u8],
    pub at_version: Option<Datum>,
    /// Sets the columns for which the [`Direct`] was made.
    pub patch: &'a Patch<'a>,
}

pub struct DirectlyMoved {
    /// The old status; empty if the machine's moves are not recorded and emit no events.
    pub from: String,
    pub version: Option<Datum>,
}

impl Direct {
    /// None: a move has a `when`, the guard might refuse a move, `to` is too long, or the table is not plain.
    pub fn for_moves(
        machine: &Machine,
        to: &str,
        moves: &[Move],
        patch: &Patch,
    ) -> Result<Option<Direct>> {
        let definition = &machine.definition;
        let from: Vec<&str> = moves.iter().flat_map(|m| m.from.iter().copied()).collect();
        let conditional = moves.iter().any(|m| m.when.is_some());
        if conditional
            || !from.iter().all(|from| is_ordinary(definition, from, to))
            || !machine.shape.status.has_room_for(to)
        {
            return Ok(None);
        }
        let from = from.iter().map(|f| from_utf8(f).into_owned()).collect();
        Ok(PlainTable::of_machine(machine, patch).map(|ground| Direct { from, ground }))
    }

    /// Makes the move; returns the old status and the new version. None: nothing was written.
    pub fn make(&self, row: &DirectMove) -> Result<Option<DirectlyMoved>> {
        match above_read_committed() {
            // A lost race raises the same error (40001) and hint as in the statement of `transition`.
            true => spi::catch_races(&row.machine.any_row(), || self.attempt(row)),
            false => self.attempt(row),
        }
    }

    fn attempt(&self, row: &DirectMove) -> Result<Option<DirectlyMoved>> {
        let ground = &self.ground;
        let Some(table) = Table::of_user(ground.table) else {
            return Ok(None);
        };
        let snapshot = Snapshot::now();
        // Called after the snapshot, so that `is_current` notices every change of the machine made before the snapshot.
        changes::accept();
        if !row.machine.is_current() || !table.is_open_to_caller() {
            return Ok(None);
        }
        table.ensure_replicated();
        let keys = &mut [ScanKey::equal(
            1,
            ground.equal,
            ground.collation,
            row.id.value,
        )];
        let Some(slot) = table.find_by(ground.index, keys, &snapshot) else {
            return Ok(None);
        };
        if !self.may_move(&slot, row.at_version) || (ground.references && slot.is_ours()) {
            return Ok(None);
        }
        let Some((values, version)) = ground.written(&table, &slot, row) else {
            return Ok(None);
        };
        // If another session has locked a guarded row, the statement of `transition` waits for the row. The machine may
        // be redefined during this wait. The statement fires the guard, which checks the move by the new definition.
        if ground.guarded && table.lock(slot.tid(), &snapshot, Wait::No)? != WriteOutcome::Done {
            return Ok(None);
        }
        let active = snapshot.activate();
        let outcome = table.update_checked(slot.tid(), &values)?;
        drop(active);
        if outcome != WriteOutcome::Done {
            return Ok(None);
        }
        let status = slot
            .column(ground.status)
            .filter(|_| row.machine.is_followed);
        Ok(Some(DirectlyMoved {
            from: status.map_or(String::new(), |s| shown(&ground.labels.read(s))),
            version,
        }))
    }

    fn may_move(&self, slot: &Slot, at_version: Option<Datum>) -> bool {
        let ground = &self.ground;
        let flagged = |column| slot.column(column).is_none_or(|flag| flag.value() != 0);
        let version = |column| slot.column(column).map(|v| v.value() as i64);
        let Some(status) = slot.column(ground.status) else {
            return false;
        };
        let status = ground.labels.read(status);
        self.from.iter().any(|from| status == from.as_slice())
            && !ground.flag.is_some_and(flagged)
            && at_version
                .is_none_or(|at| ground.version.and_then(version) == Some(at.value() as i64))
    }
}

/// Whether the guard lets the move pass: no claim state takes part, `from` is not terminal, and `to` is not cancel.to.
fn is_ordinary(definition: &Definition, from: &str, to: &str) -> bool {
    !definition.is_claim_state(from)
        && !definition.is_claim_state(to)
        && !definition.is_terminal(from)
        && definition.cancel.as_ref().is_none_or(|c| c.to != to)
}

impl PlainTable {
    /// None: no direct move is possible. [`Table::plain`] must accept the table. It accepts two kinds of triggers on
    /// UPDATE, this machine's guard and the server's own triggers for foreign keys. The id must have a unique btree of
    /// its own, and must not be a domain. The status must be a text, varchar or enum. The version must be a bigint, the
    /// flag a boolean, and each column of the patch a scalar.
    fn of_machine(machine: &Machine, patch: &Patch) -> Option<PlainTable> {
        let shape = &machine.shape;
        let (status, version) = (&shape.status, &shape.version);
        let labels = StatusLabels::of_type(status.type_oid)?;
        let of_type = |column: &Option<UserColumn>, type_oid| {
            column.as_ref().is_none_or(|c| c.type_oid == type_oid)
        };
        let usual = of_type(version, pg_sys::INT8OID)
            && of_type(&shape.flag, pg_sys::BOOLOID)
            && !shape.id.is_domain();
        if !usual {
            return None;
        }
        let table = Table::of_user(shape.table.oid)?;
        let written: Vec<i16> = [Some(status.number), version.as_ref().map(|v| v.number)]
            .into_iter()
            .flatten()
            .chain(patch.columns.iter().map(|c| c.number))
            .collect();
        let patched = |column: &UserColumn| {
            Some(Patched {
                number: column.number as usize,
                name: from_utf8(&column.plain).into_owned(),
                input: ScalarInput::of_column(&table, column.number, column.type_oid)?,
            })
        };
        let name = from_utf8(machine.name());
        let guarded = table.plain(&written, |trigger| is_guard(trigger, &name))?;
        let (index, equal, collation) = table.unique_index_on(shape.id.number)?;
        let number = |c: &Option<UserColumn>| c.as_ref().map(|c| c.number as usize);
        Some(PlainTable {
            table: shape.table.oid,
            index,
            equal,
            collation,
            status: status.number as usize,
            labels,
            version: number(version),
            flag: number(&shape.flag),
            dropped: table.dropped_columns(),
            guarded,
            references: table.has_references(),
            patched: patch.columns.iter().map(patched).collect::<Option<_>>()?,
        })
    }

    /// All columns of the new row, and its version. None: the version is NULL or the largest bigint, the enum has lost
    /// the label, or the patch has a NULL for a column that is NOT NULL.
    fn written(
        &self,
        table: &Table,
        slot: &Slot,
        row: &DirectMove,
    ) -> Option<(Vec<Option<Datum>>, Option<Datum>)> {
        let mut values: Vec<_> = (1..=table.columns()).map(|i| slot.column(i)).collect();
        for dropped in &self.dropped {
            values[dropped - 1] = None;
        }
        values[self.status - 1] = Some(self.labels.write(row.to)?);
        for column in &self.patched {
            let member = row.patch.member(&column.name)?;
            values[column.number - 1] = column.input.read(member.as_deref())?;
        }
        let Some(column) = self.version else {
            return Some((values, None));
        };
        let present = values[column - 1]?.value() as i64;
        let next = Some(Datum::from(present.checked_add(1)?));
        values[column - 1] = next;
        Some((values, next))
    }
}

/// Whether the trigger is the guard of this machine's table. `machine` is the name in the database's encoding.
fn is_guard(trigger: &pg_sys::Trigger, machine: &[u8]) -> bool {
    // SAFETY: looks into the system caches, which give null or a string; a trigger has tgnargs arguments.
    unsafe {
        let function = pg_sys::get_func_name(trigger.tgfoid);
        let schema = pg_sys::get_namespace_oid(c"once".as_ptr(), true);
        !function.is_null()
            && CStr::from_ptr(function) == c"machine_guard_row"
            && pg_sys::get_func_namespace(trigger.tgfoid) == schema
            && trigger.tgtype & pg_sys::TRIGGER_TYPE_ROW as i16 != 0
            // A constraint trigger may be deferred.
            && trigger.tgconstraint == pg_sys::InvalidOid
            && trigger.tgnargs == 1
            && CStr::from_ptr(*trigger.tgargs).to_bytes() == machine
    }
}

/// How a status is stored.
#[derive(Clone, Copy)]
enum StatusLabels {
    Text,
    /// A label of this enum. A label may be renamed without a relcache message, so each call looks it up.
    Enum(Oid),
}

impl StatusLabels {
    /// None: the type is not text, varchar or an enum.
    fn of_type(type_oid: Oid) -> Option<StatusLabels> {
        match type_oid {
            pg_sys::TEXTOID | pg_sys::VARCHAROID => Some(StatusLabels::Text),
            other if enums::is_enum(other) => Some(StatusLabels::Enum(other)),
            _ => None,
        }
    }

    /// In the database's encoding.
    fn read(self, status: Datum) -> Cow<'static, [u8]> {
        match self {
            StatusLabels::Text => Cow::Borrowed(varlena(status)),
            StatusLabels::Enum(_) => Cow::Owned(enums::label(status)),
        }
    }

    /// None: the enum has no such label (any more).
    fn write(self, status: &[u8]) -> Option<Datum> {
        match self {
            StatusLabels::Text => Some(row::text(status)),
            StatusLabels::Enum(of) => enums::value(of, status),
        }
    }
}

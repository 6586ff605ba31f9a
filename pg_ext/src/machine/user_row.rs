//! Reads and moves one row of the machine's table with the current user's rights.

use super::id::RowId;
use super::model::Machine;
use super::patch::Patch;
use super::permit::{self, Doing};
use super::sql::{is_any, literal};
use super::statement::{NO, READ, ROW_SHARE, Statement, WRITE};
use crate::call::{utf8, varlena};
use crate::error::Result;
use crate::spi::{Row, column, yes};
use crate::subxact;
use pgrx::pg_sys::{self, Datum};
use std::rc::Rc;

const READ_ROW: &str = "
    SELECT {status}::pg_catalog.text, {version}, {flag} FROM {table} AS t
     WHERE {id} OPERATOR(pg_catalog.=) $1 {lock}";

/// $1 id, $2 patch.
const MOVE: &str = "
    UPDATE {table} AS t SET {status_column} = {to}{next_version}{patch}
     WHERE {id} OPERATOR(pg_catalog.=) $1 AND {from} AND {condition}
    RETURNING {status}::pg_catalog.text, {version}";

pub struct RowSeen {
    pub status: Option<Datum>,
    pub version: Option<Datum>,
    pub flagged: bool,
}

impl RowSeen {
    /// The row as a statement sees it. None: it is not there, the current user may not see it, or `lock` skips it.
    pub fn find(machine: &Machine, id: &RowId, lock: RowLock) -> Result<Option<RowSeen>> {
        let rows = read_plan(machine, lock)?.query(&[Some(id.value)])?;
        Ok(rows.first().map(seen))
    }

    /// The row as committed now, or as this transaction wrote it, at every isolation level, without a row lock.
    pub fn latest(machine: &Machine, id: &RowId) -> Result<Option<RowSeen>> {
        let rows = read_plan(machine, RowLock::No)?.query_latest(&[Some(id.value)])?;
        Ok(rows.first().map(seen))
    }

    pub fn status(&self) -> &[u8] {
        self.status.map(varlena).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLock {
    No,
    /// FOR NO KEY UPDATE; waits.
    Update,
    /// FOR NO KEY UPDATE; skips a locked row.
    UpdateIfFree,
    /// FOR NO KEY UPDATE; 55P03 for a locked row.
    UpdateNow,
    /// FOR UPDATE, which conflicts with the FOR KEY SHARE of item writers; waits.
    Whole,
}

/// For a row that a locking SELECT did not find: ON002 if the caller may see the row, but a policy forbids any update.
/// Does not wait; raises no error for a row that another session has locked.
pub fn ensure_updatable(machine: &Machine, id: &RowId) -> Result<()> {
    if !machine.shape.table.has_policies() || RowSeen::find(machine, id, RowLock::No)?.is_none() {
        return Ok(());
    }
    let locked = subxact::attempt(|| RowSeen::find(machine, id, RowLock::UpdateNow))?;
    let is_hidden =
        matches!(locked, Ok(None)) && RowSeen::find(machine, id, RowLock::No)?.is_some();
    match is_hidden {
        true => Err(machine.kept_back(id)),
        false => Ok(()),
    }
}

fn read_plan(machine: &Machine, lock: RowLock) -> Result<Rc<Statement>> {
    let mode = match lock {
        RowLock::No => READ,
        _ => ROW_SHARE,
    };
    let (key, clause) = match lock {
        RowLock::No => ("row", ""),
        RowLock::Update => ("row update", "FOR NO KEY UPDATE OF t"),
        RowLock::UpdateIfFree => ("row free", "FOR NO KEY UPDATE OF t SKIP LOCKED"),
        RowLock::UpdateNow => ("row now", "FOR NO KEY UPDATE OF t NOWAIT"),
        RowLock::Whole => ("row whole", "FOR UPDATE OF t"),
    };
    machine.plan(key, &[machine.id_type()], [mode, NO, NO], || {
        machine.parts().fill(READ_ROW, &[("lock", clause)])
    })
}

fn seen(row: &Row) -> RowSeen {
    RowSeen {
        status: column(row, 0),
        version: column(row, 1),
        flagged: yes(row, 2),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MoveIf {
    Always,
    Unflagged,
}

/// Moves the row from one status to another. None: the UPDATE found no row in status `from` that meets `condition`.
/// Waits for a locked row. The statuses come from the definition, the lease or the row, never from an argument.
pub fn move_row(
    machine: &Machine,
    id: &RowId,
    from: &str,
    to: &str,
    condition: MoveIf,
    patch: &Patch,
) -> Result<Option<RowSeen>> {
    let (name, sql) = match condition {
        MoveIf::Always => ("", "true"),
        MoveIf::Unflagged => ("unflagged", "NOT {flag}"),
    };
    let key = format!("go\0{from}\0{to}\0{name}\0{}", patch.key());
    let types = [machine.id_type(), pg_sys::JSONBOID];
    let plan = machine.plan(&key, &types, [WRITE, NO, NO], || {
        let parts = machine.parts();
        let condition = parts.fill(sql, &[]);
        parts.fill(
            MOVE,
            &[
                ("status_column", &machine.shape.status.name),
                ("to", &literal(to)),
                ("next_version", &machine.next_version()),
                ("patch", &patch.assignments(2)),
                ("from", &is_any(&parts.status, [from])),
                ("condition", &condition),
            ],
        )
    })?;
    let doing = Doing::Move(from.to_owned(), to.to_owned());
    let permit = permit::grant(machine.name(), [id.text.as_slice()], doing);
    let rows = plan.query(&[Some(id.value), patch.value()?])?;
    drop(permit);
    let Some(row) = machine.one(&rows)? else {
        return Ok(None);
    };
    let moved = RowSeen {
        status: column(row, 0),
        version: column(row, 1),
        flagged: false,
    };
    if utf8(moved.status()) != to.as_bytes() {
        return Err(machine.kept_back(id));
    }
    Ok(Some(moved))
}

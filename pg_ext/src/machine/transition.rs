//! `transition` and `transition_many`: one conditional UPDATE, and where it moved nothing a look that says
//! why. The look may see a row that has become movable meanwhile; then it is locked and the UPDATE is tried
//! once more.

use super::id::RowId;
use super::model::{Machine, column};
use super::moves::{Move, Wanted, condition};
use super::patch::Patch;
use crate::action::row::{Lock, look};
use crate::call::{Call, SCOPE_MAX, from_utf8, shown, texts_or_null, varlena};
use crate::error::{Error, Result};
use crate::row::{self, Rows, Shape};
use crate::spi::{Plan, Row};
use crate::table;
use pgrx::pg_sys::{self, Datum};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// $1 id, $2 version (NULL: any), $3 patch.
const MOVE: &str = "
    UPDATE {table} AS t SET {status_column} = {to}{next_version}{patch}
     WHERE {id} OPERATOR(pg_catalog.=) $1 AND {moves} AND NOT {flag}
       AND ($2::pg_catalog.int8 IS NULL OR {version} OPERATOR(pg_catalog.=) $2)
    RETURNING {status}::pg_catalog.text, {version}";

/// $1 id, $2 version. May it move, its status, version and flag, is the status one to move from?
const LOOK: &str = "
    SELECT {moves} IS TRUE AND NOT {flag}
           AND ($2::pg_catalog.int8 IS NULL OR {version} OPERATOR(pg_catalog.=) $2),
           {status}::pg_catalog.text, {version}, {flag}, {from},
           ($2::pg_catalog.int8 IS NULL OR {version} OPERATOR(pg_catalog.=) $2), {id}::pg_catalog.text
      FROM {table} AS t WHERE {id} OPERATOR(pg_catalog.=) $1";

/// $1 ids. Locked in the order of their ids.
const LOCK_MANY: &str = "
    SELECT {id}::pg_catalog.text FROM {table} AS t WHERE {id} OPERATOR(pg_catalog.=) ANY ($1)
     ORDER BY {id} FOR NO KEY UPDATE OF t";

/// $1 ids, of rows that are locked.
const MOVE_MANY: &str = "
    UPDATE {table} AS t SET {status_column} = {to}{next_version}
     WHERE {id} OPERATOR(pg_catalog.=) ANY ($1) AND {moves} AND NOT {flag}
    RETURNING {id}::pg_catalog.text, {status}::pg_catalog.text, {version}";

/// Rows of one transition_many.
const MOST_IDS: usize = 10_000;

thread_local! {
    static SHAPE: Shape = const { Shape::new(&[
        (c"moved", pg_sys::BOOLOID),
        (c"status", pg_sys::TEXTOID),
        (c"version", pg_sys::INT8OID),
        (c"reason", pg_sys::TEXTOID),
    ]) };
}

type Answer = [Option<Datum>; 4];

/// `once.transition`.
pub fn transition(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let id = machine.id(call, 1)?;
    let wanted = Wanted::read(
        call.text(2, "to_status", SCOPE_MAX)?,
        call.datum(3),
        call.opt_text(5, "requester", SCOPE_MAX)?,
    )?;
    let patch = Patch::read(&machine, call.datum(4))?;
    let version = version_argument(&machine, call, 6)?;
    let statements = Statements::of(&machine, &wanted, &patch)?;
    let answer = statements.run(&machine, &id, version, &patch, &wanted.to)?;
    Ok(SHAPE.with(|shape| shape.row(&answer)))
}

/// A version is compared only where the machine has one.
pub fn version_argument(machine: &Machine, call: &Call, i: usize) -> Result<Option<Datum>> {
    match (call.datum(i), &machine.shape.version) {
        (Some(_), None) => Err(Error::bad_argument(
            "version",
            format!(
                "is given, but machine \"{}\" declares no version column",
                machine.name()
            ),
            "Leave it NULL, or add the member \"version\" to the definition.",
        )),
        (version, _) => Ok(version),
    }
}

/// The statements of one kind of move.
struct Statements {
    update: Rc<Plan>,
    look: Rc<Plan>,
}

impl Statements {
    fn of(machine: &Machine, wanted: &Wanted, patch: &Patch) -> Result<Statements> {
        let key = wanted.key();
        let moves = wanted.moves(&machine.definition)?;
        let update = machine.plan(
            &format!("move\0{key}\0\0{}", patch.key()),
            &[machine.id_type(), pg_sys::INT8OID, pg_sys::JSONBOID],
            || fill_move(MOVE, machine, wanted, &moves, &patch.assignments(3)),
        )?;
        let look = machine.plan(
            &format!("look\0{key}"),
            &[machine.id_type(), pg_sys::INT8OID],
            || {
                let parts = machine.parts();
                let from = moves.iter().flat_map(|m| m.from.iter().copied());
                let from = super::sql::is_any(&parts.status, from);
                let moves = condition(&parts.status, &moves);
                parts.fill(LOOK, &[("moves", &moves), ("from", &from)])
            },
        )?;
        Ok(Statements { update, look })
    }

    fn run(
        &self,
        machine: &Machine,
        id: &RowId,
        version: Option<Datum>,
        patch: &Patch,
        to: &str,
    ) -> Result<Answer> {
        let writable = table::is_writable();
        for locked in [false, true] {
            if locked {
                // It could move when we looked: now nobody can come in between.
                look(machine, id, Lock::Update)?;
            }
            if writable {
                let moved = self.update.query(&[Some(id.value), version, patch.value])?;
                if let Some(row) = machine.one(&moved)? {
                    ensure_moved(machine, id, row, 0, to)?;
                    return Ok(moved_answer(column(row, 0), column(row, 1)));
                }
            }
            if let Some(answer) = self.why_not(machine, id, version)? {
                return Ok(answer);
            }
            if !writable {
                return Err(Error::read_only(machine.row_named(id)));
            }
        }
        Err(machine.kept_back(id))
    }

    /// Why the row did not move; None: it could now.
    fn why_not(
        &self,
        machine: &Machine,
        id: &RowId,
        version: Option<Datum>,
    ) -> Result<Option<Answer>> {
        let seen = self.look.query(&[Some(id.value), version])?;
        let Some(row) = seen.first() else {
            return Ok(Some(stayed(None, None, b"not_found")));
        };
        let yes = |i: usize| column(row, i).is_some_and(|d| d.value() != 0);
        if yes(0) {
            return Ok(None);
        }
        let status = column(row, 1);
        let text = status.map(varlena).unwrap_or_default();
        let text = shown(text);
        let reason: &[u8] = if machine.definition.is_claim_state(&text) {
            b"claimed"
        } else if yes(3) && !machine.definition.is_terminal(&text) {
            b"cancelling"
        } else if !yes(4) {
            b"status"
        } else if !yes(5) {
            b"version"
        } else {
            b"guard"
        };
        Ok(Some(stayed(status, column(row, 2), reason)))
    }
}

fn fill_move(
    template: &str,
    machine: &Machine,
    wanted: &Wanted,
    moves: &[Move],
    patch: &str,
) -> String {
    let parts = machine.parts();
    parts.fill(
        template,
        &[
            ("status_column", &machine.shape.status.name),
            ("to", &super::sql::literal(&wanted.to)),
            ("next_version", &machine.next_version()),
            ("patch", patch),
            ("moves", &condition(&parts.status, moves)),
        ],
    )
}

/// A trigger of the table may have made another status of it.
fn ensure_moved(machine: &Machine, id: &RowId, row: &Row, status: usize, to: &str) -> Result<()> {
    match column(row, status).is_some_and(|s| *varlena(s) == *from_utf8(to)) {
        true => Ok(()),
        false => Err(machine.kept_back(id)),
    }
}

fn moved_answer(status: Option<Datum>, version: Option<Datum>) -> Answer {
    [Some(Datum::from(true)), status, version, None]
}

fn stayed(status: Option<Datum>, version: Option<Datum>, reason: &[u8]) -> Answer {
    [
        Some(Datum::from(false)),
        status,
        version,
        Some(row::text(reason)),
    ]
}

/// `once.transition_many`.
pub fn transition_many(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let ids = read_ids(&machine, call)?;
    let wanted = Wanted::read(
        call.text(2, "to_status", SCOPE_MAX)?,
        call.datum(3),
        call.opt_text(4, "requester", SCOPE_MAX)?,
    )?;
    let no_patch = Patch::none();
    let single = Statements::of(&machine, &wanted, &no_patch)?;
    let rows = Rows::begin(call);
    let writable = table::is_writable() && !ids.is_empty();
    let (locked, moved) = match writable {
        true => move_many(&machine, &wanted, &ids)?,
        false => (Vec::new(), Vec::new()),
    };
    let locked: HashSet<&[u8]> = locked.iter().filter_map(first_text).collect();
    let moved: HashMap<&[u8], &Row> = moved
        .iter()
        .filter_map(|row| Some((first_text(row)?, row)))
        .collect();
    for id in &ids {
        let answer = match moved.get(id.text.as_slice()) {
            Some(row) => {
                ensure_moved(&machine, id, row, 1, &wanted.to)?;
                moved_answer(column(row, 1), column(row, 2))
            }
            // A row that came since was not there yet.
            None if writable && !locked.contains(id.text.as_slice()) => {
                stayed(None, None, b"not_found")
            }
            None => match single.why_not(&machine, id, None)? {
                Some(answer) => answer,
                None if writable => return Err(machine.kept_back(id)),
                None => return Err(Error::read_only(machine.row_named(id))),
            },
        };
        let [is_moved, status, version, reason] = answer;
        rows.push(&[Some(row::text(&id.text)), is_moved, status, version, reason]);
    }
    Ok(call.return_null())
}

fn first_text<'a>(row: &Row) -> Option<&'a [u8]> {
    column(row, 0).map(varlena)
}

/// The ids that are there, now locked, and the rows that moved.
fn move_many(machine: &Machine, wanted: &Wanted, ids: &[RowId]) -> Result<(Vec<Row>, Vec<Row>)> {
    let moves = wanted.moves(&machine.definition)?;
    let types = [machine.id_array_type()];
    let lock = machine.plan("lock many", &types, || machine.parts().fill(LOCK_MANY, &[]))?;
    let update = machine.plan(&format!("many\0{}", wanted.key()), &types, || {
        fill_move(MOVE_MANY, machine, wanted, &moves, "")
    })?;
    let ids = row::array(ids.iter().map(|id| id.value), machine.id_type());
    Ok((lock.query(&[Some(ids)])?, update.query(&[Some(ids)])?))
}

/// Each id once, in the order given.
fn read_ids(machine: &Machine, call: &Call) -> Result<Vec<RowId>> {
    let problem = |what: &str| {
        Error::bad_argument(
            "ids",
            what,
            format!("Give an array of 0 to {MOST_IDS} ids."),
        )
    };
    let elements = texts_or_null(call.datum(1).ok_or_else(|| problem("must not be null"))?);
    if elements.len() > MOST_IDS {
        return Err(problem(&format!("has more than {MOST_IDS} elements")));
    }
    let mut seen = HashSet::new();
    let mut ids = Vec::with_capacity(elements.len());
    for element in elements {
        let text = element.ok_or_else(|| problem("has a NULL element"))?;
        let id = RowId::read(machine.shape.id.base_type, text, "ids")?;
        if seen.insert(id.text.clone()) {
            ids.push(id);
        }
    }
    Ok(ids)
}

//! `transition`: one conditional UPDATE. If it moves no row, a SELECT finds the reason. If the SELECT finds that the
//! row can be moved now, the row is locked and the UPDATE is retried once. If moves are recorded or emit events, the
//! row is locked before the UPDATE, to read its old status. For a plain table (`direct.rs`), `transition` first tries
//! to move the row without running a statement.

use super::after::MoveMade;
use super::direct::{self, Direct};
use super::id::RowId;
use super::model::Machine;
use super::moves::{Move, WantedMoves, condition};
use super::patch::Patch;
use super::permit::{self, Doing, Granted};
use super::statement::{NO, READ, Statement, WRITE};
use super::user_row::{RowLock, RowSeen};
use crate::call::{Call, SCOPE_MAX, shown, varlena};
use crate::error::{Error, Result};
use crate::row::{self, Shape};
use crate::spi::{Row, column, yes};
use crate::table;
use pgrx::pg_sys::{self, Datum};
use std::rc::Rc;

/// $1 id, $2 version, $3 patch.
const MOVE: &str = "
    UPDATE {table} AS t SET {status_column} = {to}{next_version}{patch}
     WHERE {id} OPERATOR(pg_catalog.=) $1 AND {moves} AND NOT {flag} {at_version}
    RETURNING {status}::pg_catalog.text, {version}";

const AT_VERSION: &str = "AND {version} OPERATOR(pg_catalog.=) $2";

/// $1 id, $2 version (NULL: any). Columns of the answer: whether the row may move; its status; its version; its flag;
/// whether its status fits; whether its version fits; its id.
const READ_ROW: &str = "
    SELECT {moves} IS TRUE AND NOT {flag}
           AND ($2::pg_catalog.int8 IS NULL OR {version} OPERATOR(pg_catalog.=) $2),
           {status}::pg_catalog.text, {version}, {flag}, {from},
           ($2::pg_catalog.int8 IS NULL OR {version} OPERATOR(pg_catalog.=) $2), {id}::pg_catalog.text
      FROM {table} AS t WHERE {id} OPERATOR(pg_catalog.=) $1";

static SHAPE: Shape = Shape::new(&[
    (c"moved", pg_sys::BOOLOID),
    (c"status", pg_sys::TEXTOID),
    (c"version", pg_sys::INT8OID),
    (c"reason", pg_sys::TEXTOID),
]);

pub type Answer = [Option<Datum>; 4];

/// `once.transition`.
pub fn transition(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let id = machine.id(call, 1)?;
    let patch = Patch::read(&machine, call.datum(4))?;
    let wish = MoveWish::of_call(call, 5)?;
    let version = version_argument(&machine, call, 6)?;
    let answer = wish.run(&machine, &id, version, &patch)?;
    Ok(SHAPE.row(&answer))
}

/// The version argument; 22023 if it is given but the machine has no version column.
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

/// The arguments of a move. Their bytes are the key of a kept statement, so they are parsed only for a new statement.
pub struct MoveWish<'a> {
    pub to: &'a [u8],
    from: Option<Datum>,
    requester: Option<&'a [u8]>,
}

impl MoveWish<'_> {
    /// Arguments 2, 3 and `requester` of a call.
    pub fn of_call(call: &Call, requester: usize) -> Result<MoveWish<'_>> {
        Ok(MoveWish {
            to: call.text(2, "to_status", SCOPE_MAX)?,
            from: call.datum(3),
            requester: call.opt_text(requester, "requester", SCOPE_MAX)?,
        })
    }

    pub fn wanted(&self) -> Result<WantedMoves> {
        WantedMoves::read(self.to, self.from, self.requester)
    }

    /// The key of a kept statement; each part begins with its length.
    pub fn key(&self, kind: &str, patch: &str) -> Vec<u8> {
        let from = self.from.map(varlena);
        let parts = [Some(kind.as_bytes()), Some(self.to), from, self.requester];
        let mut key = Vec::with_capacity(160);
        for part in parts.into_iter().chain([Some(patch.as_bytes())]) {
            let length = part.map_or(u32::MAX, |part| part.len() as u32);
            key.extend_from_slice(&length.to_ne_bytes());
            key.extend_from_slice(part.unwrap_or_default());
        }
        key
    }

    fn update(
        &self,
        machine: &Machine,
        version: Option<Datum>,
        patch: &Patch,
    ) -> Result<Rc<Statement>> {
        let (kind, at_version) = match version {
            None => ("move", ""),
            Some(_) => ("move at", AT_VERSION),
        };
        let types = [machine.id_type(), pg_sys::INT8OID, pg_sys::JSONBOID];
        let key = self.key(kind, &patch.key());
        machine.plan_or(key, &types, [WRITE, NO, NO], || {
            let wanted = self.wanted()?;
            let moves = wanted.moves(&machine.definition)?;
            let statement = MOVE.replace("{at_version}", at_version);
            let patch = patch.assignments(3);
            Ok(fill_move(&statement, machine, &wanted, &moves, &patch))
        })
    }

    fn direct(&self, machine: &Machine, patch: &Patch) -> Result<Option<Rc<Direct>>> {
        machine.direct(self.key("", &patch.key()), || {
            let wanted = self.wanted()?;
            let moves = wanted.moves(&machine.definition)?;
            Direct::for_moves(machine, &wanted.to, &moves, patch)
        })
    }

    fn row_now(&self, machine: &Machine) -> Result<Rc<Statement>> {
        let types = [machine.id_type(), pg_sys::INT8OID];
        let key = self.key("row now", "");
        machine.plan_or(key, &types, [READ, NO, NO], || {
            let wanted = self.wanted()?;
            let moves = wanted.moves(&machine.definition)?;
            let parts = machine.parts();
            let from = moves.iter().flat_map(|m| m.from.iter().copied());
            let from = super::sql::is_any(&parts.status, from);
            let moves = condition(&parts.status, &moves);
            Ok(parts.fill(READ_ROW, &[("moves", &moves), ("from", &from)]))
        })
    }

    fn run(
        &self,
        machine: &Machine,
        id: &RowId,
        version: Option<Datum>,
        patch: &Patch,
    ) -> Result<Answer> {
        let writable = table::is_writable();
        if writable
            && let Some(direct) = self.direct(machine, patch)?
            && let Some(moved) = direct.make(&direct::DirectMove {
                machine,
                id,
                to: self.to,
                at_version: version,
                patch,
            })?
        {
            self.follow(machine, id, &moved.from)?;
            return Ok(moved_answer(Some(row::text(self.to)), moved.version));
        }
        let update = self.update(machine, version, patch)?;
        let is_followed = machine.is_followed;
        for locked in [false, true] {
            let mut from = String::new();
            if locked || (is_followed && writable) {
                let seen = RowSeen::find(machine, id, RowLock::Update)?;
                from = seen.map_or(from, |seen| shown(seen.status()));
            }
            if writable {
                let permit = is_followed.then(|| self.permit(machine, [id.text.as_slice()], &from));
                let moved = update.query(&[Some(id.value), version, patch.value()?])?;
                drop(permit);
                if let Some(row) = machine.one(&moved)? {
                    ensure_moved(machine, id, row, 0, self.to)?;
                    self.follow(machine, id, &from)?;
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

    /// A permit for this move. The guard records each declared move that has no permit. [`MoveWish::follow`] records
    /// this move.
    pub fn permit<'i>(
        &self,
        machine: &Machine,
        ids: impl IntoIterator<Item = &'i [u8]>,
        from: &str,
    ) -> Granted {
        permit::grant(
            machine.name(),
            ids,
            Doing::Move(from.to_owned(), shown(self.to)),
        )
    }

    pub fn follow(&self, machine: &Machine, id: &RowId, from: &str) -> Result<()> {
        if !machine.is_followed {
            return Ok(());
        }
        machine.transitioned(
            id,
            &MoveMade {
                from,
                to: &shown(self.to),
                how: "transition",
                requester: self.requester.map(shown).as_deref(),
                ..MoveMade::default()
            },
        )
    }

    /// Why the row did not move; None: it could move now.
    pub fn why_not(
        &self,
        machine: &Machine,
        id: &RowId,
        version: Option<Datum>,
    ) -> Result<Option<Answer>> {
        let seen = self.row_now(machine)?.query(&[Some(id.value), version])?;
        let Some(row) = seen.first() else {
            return Ok(Some(stayed(None, None, b"not_found")));
        };
        if yes(row, 0) {
            return Ok(None);
        }
        let status = column(row, 1);
        let text = status.map(varlena).unwrap_or_default();
        let text = shown(text);
        let reason: &[u8] = if machine.definition.is_claim_state(&text) {
            b"claimed"
        } else if yes(row, 3) && !machine.definition.is_terminal(&text) {
            b"cancelling"
        } else if !yes(row, 4) {
            b"status"
        } else if !yes(row, 5) {
            b"version"
        } else {
            b"guard"
        };
        Ok(Some(stayed(status, column(row, 2), reason)))
    }
}

pub fn fill_move(
    template: &str,
    machine: &Machine,
    wanted: &WantedMoves,
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

/// ON002 if a trigger of the table changed the new status.
pub fn ensure_moved(
    machine: &Machine,
    id: &RowId,
    row: &Row,
    status: usize,
    to: &[u8],
) -> Result<()> {
    match column(row, status).is_some_and(|s| varlena(s) == to) {
        true => Ok(()),
        false => Err(machine.kept_back(id)),
    }
}

pub fn moved_answer(status: Option<Datum>, version: Option<Datum>) -> Answer {
    [Some(Datum::from(true)), status, version, None]
}

pub fn stayed(status: Option<Datum>, version: Option<Datum>, reason: &[u8]) -> Answer {
    [
        Some(Datum::from(false)),
        status,
        version,
        Some(row::text(reason)),
    ]
}

//! `transition_many`: one UPDATE of many rows, which are locked in the order of their ids.

use super::id::RowId;
use super::model::Machine;
use super::permit::Granted;
use super::statement::{NO, ROW_SHARE, WRITE};
use super::transition::{MoveWish, ensure_moved, fill_move, moved_answer, stayed};
use super::user_row::ensure_updatable;
use crate::call::{Call, shown, texts_or_null, varlena};
use crate::error::{Error, Result};
use crate::row::{self, Rows};
use crate::spi::{Row, column};
use crate::table;
use pgrx::pg_sys::Datum;
use std::collections::{HashMap, HashSet};

/// $1 ids. Locks the rows in the order of their ids.
const LOCK_MANY: &str = "
    SELECT {id}::pg_catalog.text, {status}::pg_catalog.text
      FROM {table} AS t WHERE {id} OPERATOR(pg_catalog.=) ANY ($1)
     ORDER BY {id} FOR NO KEY UPDATE OF t";

/// $1 ids of locked rows.
const MOVE_MANY: &str = "
    UPDATE {table} AS t SET {status_column} = {to}{next_version}
     WHERE {id} OPERATOR(pg_catalog.=) ANY ($1) AND {moves} AND NOT {flag}
    RETURNING {id}::pg_catalog.text, {status}::pg_catalog.text, {version}";

/// The maximum number of ids of one call.
const MOST_IDS: usize = 10_000;

/// `once.transition_many`.
pub fn transition_many(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let ids = read_ids(&machine, call)?;
    let wish = MoveWish::of_call(call, 4)?;
    wish.wanted()?.moves(&machine.definition)?;
    let rows = Rows::begin(call);
    let writable = table::is_writable() && !ids.is_empty();
    let (locked, moved) = match writable {
        true => move_many(&machine, &wish, &ids)?,
        false => (Vec::new(), Vec::new()),
    };
    let locked: HashMap<&[u8], Option<Datum>> = locked
        .iter()
        .filter_map(|row| Some((first_text(row)?, column(row, 1))))
        .collect();
    let moved: HashMap<&[u8], &Row> = moved
        .iter()
        .filter_map(|row| Some((first_text(row)?, row)))
        .collect();
    for id in &ids {
        let answer = match moved.get(id.text.as_slice()) {
            Some(row) => {
                ensure_moved(&machine, id, row, 1, wish.to)?;
                let from = locked.get(id.text.as_slice()).copied().flatten();
                wish.follow(&machine, id, &shown(from.map(varlena).unwrap_or_default()))?;
                moved_answer(column(row, 1), column(row, 2))
            }
            // The locking SELECT did not find the row: not_found, even if the row was inserted since.
            None if writable && !locked.contains_key(id.text.as_slice()) => {
                ensure_updatable(&machine, id)?;
                stayed(None, None, b"not_found")
            }
            None => match wish.why_not(&machine, id, None)? {
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

/// Locks the rows and moves those that may move; returns the locked and the moved rows.
fn move_many(machine: &Machine, wish: &MoveWish, ids: &[RowId]) -> Result<(Vec<Row>, Vec<Row>)> {
    let types = [machine.id_array_type()];
    let update = machine.plan_or(wish.key("many", ""), &types, [WRITE, NO, NO], || {
        let wanted = wish.wanted()?;
        let moves = wanted.moves(&machine.definition)?;
        Ok(fill_move(MOVE_MANY, machine, &wanted, &moves, ""))
    })?;
    // Takes the stronger table lock of the UPDATE first, so that no lock is upgraded.
    update.hold()?;
    let lock = machine.plan("lock many", &types, [ROW_SHARE, NO, NO], || {
        machine.parts().fill(LOCK_MANY, &[])
    })?;
    let ids = row::array(ids.iter().map(|id| id.value), machine.id_type());
    let locked = lock.query(&[Some(ids)])?;
    let mut permits: Vec<Granted> = Vec::new();
    if machine.is_followed {
        let mut by_status: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
        for row in &locked {
            let status = column(row, 1).map(varlena).unwrap_or_default();
            by_status.entry(status).or_default().extend(first_text(row));
        }
        for (from, ids) in by_status {
            permits.push(wish.permit(machine, ids, &shown(from)));
        }
    }
    let moved = update.query(&[Some(ids)])?;
    drop(permits);
    Ok((locked, moved))
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

//! `machine_history`, and the sweep task `history_reap`.

use super::after::{BY_ROW, MoveRecord, TABLE, told};
use super::model::Machine;
use super::stored;
use crate::call::{Call, SCOPE_MAX};
use crate::clock;
use crate::error::Result;
use crate::row::{self, Rows};
use crate::settings;
use crate::spi::{self, Kept, column, number};
use crate::swept::{DueWork, Swept};
use crate::table::{ScanKey, Snapshot, Table};
use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID, Oid, TEXTARRAYOID, TIMESTAMPTZOID};
use std::ffi::CStr;

/// One call returns at most this many rows.
const MOST_MOVES: i32 = 100_000;

// REAP deletes up to $1 moves, DUE counts up to $1 of each machine. $2: machines with `history`; $3: their `history` in
// microseconds; $4: now. All moves of a machine without `history` are due. The recursion finds machines one by one in
// the index.
const DUE: &CStr = c"
    WITH RECURSIVE machines (machine) AS (
        (SELECT m.machine FROM once.machine_move m ORDER BY m.machine LIMIT 1)
        UNION ALL
        SELECT (SELECT m.machine FROM once.machine_move m WHERE m.machine > p.machine ORDER BY m.machine LIMIT 1)
          FROM machines p WHERE p.machine IS NOT NULL)
    SELECT pg_catalog.count(*), min(d.due_at)
      FROM machines n
           LEFT JOIN ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3)) k (machine, kept_us) ON k.machine = n.machine
           CROSS JOIN LATERAL (
               SELECT m.at + COALESCE(k.kept_us, 0) * interval '1 microsecond' AS due_at FROM once.machine_move m
                WHERE m.machine = n.machine AND m.at < COALESCE($4 - k.kept_us * interval '1 microsecond', 'infinity')
                ORDER BY m.at LIMIT $1) d";

const REAP: &CStr = c"
    WITH RECURSIVE machines (machine) AS (
        (SELECT m.machine FROM once.machine_move m ORDER BY m.machine LIMIT 1)
        UNION ALL
        SELECT (SELECT m.machine FROM once.machine_move m WHERE m.machine > p.machine ORDER BY m.machine LIMIT 1)
          FROM machines p WHERE p.machine IS NOT NULL),
    due AS MATERIALIZED (
        SELECT d.id, d.n
          FROM machines n
               LEFT JOIN ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3)) k (machine, kept_us) ON k.machine = n.machine
               CROSS JOIN LATERAL (
                   SELECT m.id, m.n FROM once.machine_move m
                    WHERE m.machine = n.machine AND m.at < COALESCE($4 - k.kept_us * interval '1 microsecond', 'infinity')
                    ORDER BY m.at LIMIT $1 FOR UPDATE SKIP LOCKED) d
         LIMIT $1),
    reaped AS (DELETE FROM once.machine_move m USING due d WHERE m.id = d.id AND m.n = d.n RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $1 FROM reaped";

const TYPES: &[Oid] = &[INT8OID, TEXTARRAYOID, INT8ARRAYOID, TIMESTAMPTZOID];

static MOVES_DUE: Kept = Kept::new(DUE, TYPES);
static MOVES_REAPED: Kept = Kept::new(REAP, TYPES);

/// `once.machine_history`.
pub fn machine_history(call: &Call) -> Result<Datum> {
    let machine = Machine::for_tables(call.text(0, "machine", SCOPE_MAX)?)?;
    let id = machine.id(call, 1)?;
    let max = call.limit(2, "max", MOST_MOVES)?;
    let rows = Rows::begin(call);
    let (table, snapshot) = (Table::to_read(TABLE)?, Snapshot::now());
    let keys = &mut [ScanKey::uuid(1, row::uuid(&id.key(machine.name())))];
    let mut scan = table.scan(BY_ROW, keys, &snapshot)?.backwards();
    for _ in 0..max {
        let Some(slot) = scan.advance() else {
            break;
        };
        rows.push(&told(&MoveRecord::borrow(slot)));
    }
    Ok(call.return_null())
}

/// Deletes at most `max` moves that are older than their machine's `history`, or whose machine has no `history`.
pub fn reap(max: i64) -> Result<Swept> {
    let args = arguments(max)?;
    let rows = settings::by_index(|| spi::query_latest(&MOVES_REAPED, &args))?;
    let first = rows.first();
    Ok(Swept {
        done: first.map_or(0, |r| number(r, 0)),
        more: first.is_some_and(|r| number(r, 1) != 0),
        ..Swept::default()
    })
}

/// Counts the moves that a reap would delete; of each machine it counts up to `most` moves.
pub fn due(most: i64) -> Result<DueWork> {
    let args = arguments(most)?;
    let rows = settings::by_index(|| spi::query(&MOVES_DUE, &args))?;
    let first = rows.first();
    Ok(DueWork {
        rows: first.map_or(0, |r| number(r, 0)),
        since: first.and_then(|r| column(r, 1)).map(|at| at.value() as i64),
    })
}

/// The earliest time at which a move of a machine with `history` is due for a reap; None: there is no such move.
pub fn next_due() -> Result<Option<i64>> {
    let table = Table::to_read(TABLE)?;
    let snapshot = Snapshot::latest();
    let mut next: Option<i64> = None;
    stored::each_stored(&mut |stored| {
        let Some(kept) = stored.definition()?.history_us else {
            return Ok(());
        };
        let keys = &mut [ScanKey::text(1, row::text(stored.name()))];
        let first = table.find(c"machine_move_at", keys, &snapshot)?;
        let at = first.map(|slot| MoveRecord::borrow(&slot).i64(super::after::MoveCol::At) + kept);
        next = next.into_iter().chain(at).min();
        Ok(())
    })?;
    Ok(next)
}

fn arguments(max: i64) -> Result<[Option<Datum>; 4]> {
    let (mut names, mut kept) = (Vec::new(), Vec::new());
    stored::each_stored(&mut |stored| {
        if let Some(us) = stored.definition()?.history_us {
            names.push(stored.name().to_vec());
            kept.push(Datum::from(us));
        }
        Ok(())
    })?;
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    Ok([
        Some(Datum::from(max)),
        Some(row::texts(&names)),
        Some(row::array(kept.into_iter(), INT8OID)),
        Some(Datum::from(clock::now_us()?)),
    ])
}

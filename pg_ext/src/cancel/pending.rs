//! `cancel_pending`: the open teardowns that a worker can continue, oldest first. It reads the user's rows with the
//! caller's rights. The sweep's work on teardowns is here, too: it closes orphaned teardowns.

use super::record::{BY_OPEN, TABLE, Teardown, TeardownCol};
use crate::action::lease::Lease;
use crate::call::{Call, from_utf8, shown, varlena};
use crate::error::Result;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::statement::{NO, READ};
use crate::machine::stored::StoredMachine;
use crate::row::{self, Rows};
use crate::spi::{column, yes};
use crate::subxact::{self, Failure};
use crate::table::{Scan, ScanKey, Snapshot, Table, Wait, WriteOutcome};
use pgrx::pg_sys::{Datum, Oid};
use std::collections::HashMap;

const MOST_PENDING: i32 = 100_000;
/// The number of teardowns whose rows one query reads.
const CHUNK: usize = 1_000;
/// A sweep checks at most this many open teardowns of a machine, the oldest first.
const SWEPT: usize = 1_000;

/// $1 ids.
const ROWS: &str = "
    SELECT {id}::pg_catalog.text, {status}::pg_catalog.text, {flag} FROM {table} AS t
     WHERE {id} OPERATOR(pg_catalog.=) ANY ($1)";

/// An open teardown, copied from its row.
struct OpenTeardown {
    id: RowId,
    requested_at: i64,
    items_total: i64,
    amount_total: Datum,
}

/// `once.cancel_pending`.
pub fn cancel_pending(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let max = call.limit(1, "max", MOST_PENDING)? as usize;
    if machine.definition.cancel.is_none() {
        return Err(machine.undeclared("cancel"));
    }
    let rows = Rows::begin(call);
    let table = Table::to_read(TABLE)?;
    let snapshot = Snapshot::now();
    let name = from_utf8(machine.name());
    let mut scan = Some(open_teardowns(&table, &name, &snapshot)?);
    let mut found = 0;
    while found < max {
        let Some(open) = next_open(&machine, &mut scan, CHUNK)? else {
            break;
        };
        let present = rows_present(&machine, &open, false)?;
        for teardown in &open {
            let Some((status, flagged)) = present.get(&teardown.id.text) else {
                continue; // the row is gone, or not visible to the caller
            };
            let leased =
                Lease::latest(&machine, &teardown.id)?.is_some_and(|l| l.covers(varlena(*status)));
            let over = machine.definition.is_terminal(&shown(varlena(*status)));
            if !*flagged || leased || over || found == max {
                continue;
            }
            found += 1;
            rows.push(&[
                Some(row::text(&teardown.id.text)),
                Some(*status),
                Some(Datum::from(teardown.requested_at)),
                Some(Datum::from(teardown.items_total)),
                Some(teardown.amount_total),
            ]);
        }
    }
    Ok(call.return_null())
}

/// A machine's open teardowns, oldest first.
fn open_teardowns<'s>(table: &Table, machine: &[u8], snapshot: &'s Snapshot) -> Result<Scan<'s>> {
    let keys = &mut [ScanKey::text(1, row::text(machine)), ScanKey::bool(2, true)];
    table.scan(BY_OPEN, keys, snapshot)
}

/// The id of one row of table `relation` with an open teardown; None if no row has one.
pub fn first_open(machine: &[u8], relation: Option<Oid>) -> Result<Option<String>> {
    let table = Table::to_read(TABLE)?;
    let snapshot = Snapshot::latest();
    let mut scan = open_teardowns(&table, machine, &snapshot)?;
    while let Some(slot) = scan.advance() {
        let teardown = Teardown::borrow(slot);
        if teardown.relation() == relation {
            let id = teardown.bytes(TeardownCol::RowId).unwrap_or_default();
            return Ok(Some(shown(id)));
        }
    }
    Ok(None)
}

/// Part of a machine's sweep: closes orphaned teardowns among the oldest open teardowns. A teardown is orphaned if its
/// row was deleted. The inner error counts as a failure of the machine.
pub fn close_orphaned(machine: &[u8]) -> Result<std::result::Result<(), Failure>> {
    subxact::attempt_briefly(|| {
        let present = StoredMachine::find(machine)?.and_then(|stored| stored.table());
        if present.is_some() && first_open(machine, present)?.is_some() {
            let machine = Machine::for_tables(machine)?;
            machine.as_owner(|| close_of_gone_rows(&machine))?;
        }
        Ok(())
    })
}

/// Closes teardowns whose rows were deleted. Must run as the table's owner, because a policy may hide rows from the
/// caller.
fn close_of_gone_rows(machine: &Machine) -> Result<()> {
    let table = Table::to_write(TABLE)?;
    let snapshot = Snapshot::latest();
    let mut scan = Some(open_teardowns(
        &table,
        &from_utf8(machine.name()),
        &snapshot,
    )?);
    let Some(open) = next_open(machine, &mut scan, SWEPT)? else {
        return Ok(());
    };
    // Reads the latest snapshot: a row that exists can be missing from an older one.
    let there = rows_present(machine, &open, true)?;
    for gone in open.iter().filter(|o| !there.contains_key(&o.id.text)) {
        let found = Teardown::find(machine, &gone.id, &Snapshot::latest())?;
        if let Some(teardown) = found
            && teardown.i64(TeardownCol::RequestedAt) == gone.requested_at
        {
            close_teardown(&table, teardown)?;
        }
    }
    Ok(())
}

/// Closes a teardown, unless it is locked.
fn close_teardown(table: &Table, mut teardown: Teardown) -> Result<()> {
    if let Some(tid) = teardown.tid()
        && teardown.is_open()
        && table.lock(tid, &Snapshot::latest(), Wait::No)? == WriteOutcome::Done
    {
        teardown.put(TeardownCol::Open, Some(Datum::from(false)));
        teardown.update_at(table, tid)?;
    }
    Ok(())
}

/// The next open teardowns of the scan; None at its end.
fn next_open(
    machine: &Machine,
    scan: &mut Option<Scan<'_>>,
    most: usize,
) -> Result<Option<Vec<OpenTeardown>>> {
    let mut open = Vec::new();
    while let Some(slot) = scan.as_mut().and_then(Scan::advance) {
        let teardown = Teardown::borrow(slot);
        let id = teardown.bytes(TeardownCol::RowId).unwrap_or_default();
        // An id that the column's present type cannot read belongs to no row.
        let id = RowId::read(machine.shape.id.base_type, id, "id");
        if let (true, Ok(id)) = (teardown.is_of(machine), id) {
            open.push(OpenTeardown {
                id,
                requested_at: teardown.i64(TeardownCol::RequestedAt),
                items_total: teardown.i64(TeardownCol::ItemsTotal),
                amount_total: row::copied(teardown.amount_total()),
            });
        }
        if open.len() == most {
            return Ok(Some(open));
        }
    }
    *scan = None;
    Ok(Some(open).filter(|open| !open.is_empty()))
}

/// The status and flag of each row that exists, by id. `latest`: read in the latest snapshot, not in the statement's.
fn rows_present(
    machine: &Machine,
    open: &[OpenTeardown],
    latest: bool,
) -> Result<HashMap<Vec<u8>, (Datum, bool)>> {
    let plan = machine.plan("rows", &[machine.id_array_type()], [READ, NO, NO], || {
        machine.parts().fill(ROWS, &[])
    })?;
    let ids = row::array(open.iter().map(|o| o.id.value), machine.id_type());
    let rows = match latest {
        false => plan.query(&[Some(ids)])?,
        true => plan.query_latest(&[Some(ids)])?,
    };
    Ok(rows
        .iter()
        .filter_map(|row| {
            Some((
                varlena(column(row, 0)?).to_vec(),
                (column(row, 1)?, yes(row, 2)),
            ))
        })
        .collect())
}

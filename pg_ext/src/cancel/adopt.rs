//! `action_adopt` finds the rows in a claim state that have no lease, and stores an overdue lease for each. The next
//! sweep then reverts the rows. For rows that were flagged by hand `action_adopt` begins a teardown. It works with the
//! caller's rights.

use super::request;
use crate::action::lease::{Lease, LeaseCol, TABLE};
use crate::call::{Call, from_utf8, shown, varlena};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::sql::{array, is_any};
use crate::machine::statement::{NO, READ};
use crate::machine::user_row::{RowLock, RowSeen};
use crate::spi::column;
use crate::table::{Snapshot, Table, Wait, WriteOutcome};
use crate::trylock::TryLock;
use pgrx::pg_sys::{self, Datum};

const MOST_ADOPTED: i32 = 1_000_000;
/// How many rows one fetch reads.
const CHUNK: i64 = 1_000;

const CANDIDATES: &str = "
    SELECT {id}::pg_catalog.text, {status}::pg_catalog.text FROM {table} AS t WHERE {which}";

/// Rows without their lease or teardown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Orphan {
    /// In a claim state without a lease.
    Claimed,
    /// Flagged and in no terminal status, without an open teardown.
    Flagged,
}

/// `once.action_adopt`.
pub fn action_adopt(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let max = call.limit(1, "max", MOST_ADOPTED)?;
    let table = Table::to_write(TABLE)?;
    machine.shape.table.lock(pg_sys::AccessShareLock);
    // Shares the machine's lock as a claim does, so machine_define waits for the end of this transaction.
    let Some(shared) = TryLock::shared(machine.lock) else {
        return Err(Error::new(
            Kind::InUse,
            format!("machine \"{}\" is being changed right now", machine.name()),
        )
        .hint("Call action_adopt again."));
    };
    shared.keep();
    let machine = Machine::of(call)?;
    let mut adopted = 0;
    for kind in [Orphan::Claimed, Orphan::Flagged] {
        if adopted >= max {
            break;
        }
        orphans(&machine, kind, &mut |id, _| {
            let done = match kind {
                Orphan::Claimed => adopt_claimed(&machine, &table, &id)?,
                Orphan::Flagged => request::adopt_flagged(&machine, &id)?,
            };
            adopted += i32::from(done);
            Ok(adopted < max)
        })?;
    }
    Ok(Datum::from(adopted))
}

/// Calls `each` with the id and the status of every orphaned row, until `each` returns false.
pub fn orphans(
    machine: &Machine,
    kind: Orphan,
    each: &mut dyn FnMut(RowId, &[u8]) -> Result<bool>,
) -> Result<()> {
    let definition = &machine.definition;
    let states: Vec<_> = definition.claim_states().map(|(s, _)| s).collect();
    let nothing = match kind {
        Orphan::Claimed => states.is_empty(),
        Orphan::Flagged => definition.cancel.is_none(),
    };
    if nothing {
        return Ok(());
    }
    let key = match kind {
        Orphan::Claimed => "claimed rows",
        Orphan::Flagged => "flagged rows",
    };
    let plan = machine.plan(key, &[], [READ, NO, NO], || {
        let parts = machine.parts();
        let terminal = definition.terminal.iter().map(String::as_str);
        let which = match kind {
            // Compares in the column's own type, so that an index on the column can be used.
            Orphan::Claimed => {
                let own = machine.shape.status.base_type_name();
                format!(
                    "{}::{own} OPERATOR(pg_catalog.=) ANY ({})",
                    parts.status,
                    array(states, &own)
                )
            }
            Orphan::Flagged => {
                format!(
                    "{} AND NOT ({})",
                    parts.flag,
                    is_any(&parts.status, terminal)
                )
            }
        };
        parts.fill(CANDIDATES, &[("which", &which)])
    })?;
    let base = machine.shape.id.base_type;
    plan.hold()?;
    // One snapshot for rows, leases and teardowns: a row whose lease ends during the scan is not taken for an orphan.
    let snapshot = Snapshot::now();
    let leases = Table::to_read(TABLE)?;
    plan.stream(&[], &snapshot, CHUNK, |rows| {
        for row in &rows {
            let (Some(id), Some(status)) = (column(row, 0), column(row, 1)) else {
                continue;
            };
            let id = RowId::read(base, varlena(id), "id")?;
            let known = match kind {
                Orphan::Claimed => Lease::find(&leases, machine, &id, &snapshot)?
                    .is_some_and(|lease| lease.covers(varlena(status))),
                Orphan::Flagged => request::is_begun(machine, &id, &snapshot)?,
            };
            if !known && !each(id, varlena(status))? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Locks the row, as a claim does, and stores an overdue lease of the row. Skips a locked row or lease.
fn adopt_claimed(machine: &Machine, table: &Table, id: &RowId) -> Result<bool> {
    let Some(seen) = RowSeen::find(machine, id, RowLock::UpdateIfFree)? else {
        return Ok(false);
    };
    let status = shown(seen.status());
    let mut states = machine.definition.claim_states();
    let Some((into, revert)) = states.find(|(into, _)| *into == status) else {
        return Ok(false);
    };
    let snapshot = Snapshot::latest();
    let known = Lease::find(table, machine, id, &snapshot)?;
    if known.as_ref().is_some_and(|l| l.covers(seen.status())) {
        return Ok(false);
    }
    let tid = known.as_ref().and_then(Lease::tid);
    if let Some(tid) = tid
        && table.lock(tid, &snapshot, Wait::No)? != WriteOutcome::Done
    {
        return Ok(false);
    }
    let now = clock::now_us()?;
    let mut lease = known.unwrap_or_else(Lease::empty);
    lease.begin(machine, id, now, 0);
    lease.put_text(LeaseCol::ClaimInto, Some(&from_utf8(into)));
    lease.put_text(LeaseCol::RevertTo, Some(&from_utf8(revert)));
    lease.put(LeaseCol::StepKey, None);
    lease.put(LeaseCol::StepStatus, None);
    lease.put(LeaseCol::SuccessfulState, None);
    lease.put(LeaseCol::Requester, None);
    lease.put(LeaseCol::Holder, None);
    lease.put_i32(LeaseCol::Attempts, 0);
    match tid {
        Some(tid) => drop(lease.update_at(table, tid)?),
        None => lease.insert(table)?,
    }
    Ok(true)
}

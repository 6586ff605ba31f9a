//! `action_adopt`: rows that wear a claim state without a lease get an overdue one, with the caller's rights.

use super::lease::{Col, Lease, TABLE};
use super::row::{self as user_row, Lock};
use crate::call::{Call, from_utf8, shown, varlena};
use crate::clock;
use crate::error::Result;
use crate::machine::id::RowId;
use crate::machine::model::{Machine, column};
use crate::machine::sql::is_any;
use crate::table::{Outcome, Snapshot, Table, Wait};
use pgrx::pg_sys::Datum;

const MOST: i32 = 1_000_000;
/// Rows looked at in one go.
const STEP: i64 = 1_000;

const IN_CLAIM_STATES: &str = "
    SELECT {id}::pg_catalog.text, {status}::pg_catalog.text FROM {table} AS t WHERE {claimed}";

/// `once.action_adopt`.
pub fn action_adopt(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let max = call.limit(1, "max", MOST)?;
    let mut adopted = 0;
    let table = Table::to_write(TABLE)?;
    orphans(&machine, &mut |id| {
        adopted += i32::from(adopt(&machine, &table, &id)?);
        Ok(adopted < max)
    })?;
    Ok(Datum::from(adopted))
}

/// Shows each row in a claim state whose lease does not cover it, until `each` says stop (false).
pub fn orphans(machine: &Machine, each: &mut dyn FnMut(RowId) -> Result<bool>) -> Result<()> {
    let states: Vec<_> = machine.definition.claim_states().map(|(s, _)| s).collect();
    if states.is_empty() {
        return Ok(());
    }
    let plan = machine.plan("claimed rows", &[], || {
        let parts = machine.parts();
        parts.fill(
            IN_CLAIM_STATES,
            &[("claimed", &is_any(&parts.status, states))],
        )
    })?;
    let base = machine.shape.id.base_type;
    plan.stream(&[], &Snapshot::now(), STEP, |rows| {
        for row in &rows {
            let (Some(id), Some(status)) = (column(row, 0), column(row, 1)) else {
                continue;
            };
            let id = RowId::read(base, varlena(id), "id")?;
            let lease = Lease::latest(machine, &id)?;
            if !lease.is_some_and(|l| l.covers(varlena(status))) && !each(id)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Under the row's lock, unless somebody else has it: whoever claims the row has it too.
fn adopt(machine: &Machine, table: &Table, id: &RowId) -> Result<bool> {
    let Some(seen) = user_row::look(machine, id, Lock::UpdateIfFree)? else {
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
        && table.lock(tid, &snapshot, Wait::No)? != Outcome::Done
    {
        return Ok(false);
    }
    let now = clock::now_us()?;
    let mut lease = known.unwrap_or_else(Lease::empty);
    lease.begin(machine, id, now, 0);
    lease.put_text(Col::ClaimInto, Some(&from_utf8(into)));
    lease.put_text(Col::RevertTo, Some(&from_utf8(revert)));
    lease.put(Col::StepKey, None);
    lease.put(Col::SuccessfulState, None);
    lease.put(Col::Holder, None);
    match tid {
        Some(tid) => drop(lease.update_at(table, tid, Wait::Yes)?),
        None => lease.insert(table)?,
    }
    Ok(true)
}

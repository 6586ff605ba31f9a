//! `action_get` and `action_list`: who has a row, since when, what failed, and what happens next.
//!
//! Both functions are for roles that may observe. Such a role needs no right on the table. It need not own the machine.
//! Of a user's row the functions show only the id, the status and the cancel flag.

use super::lease::{BY_LOOK, Lease, LeaseCol, LeaseState, TABLE};
use crate::call::{Call, SCOPE_MAX, from_utf8, shown};
use crate::clock;
use crate::error::Result;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::stored::{self, StoredMachine};
use crate::machine::user_row::{RowLock, RowSeen};
use crate::row::{self, Rows};
use crate::subxact;
use crate::swept;
use crate::table::{ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;

/// A list has at most this many rows.
const MOST_LEASES: i32 = 10_000;
/// How many leases of a machine a call may read. Ended leases stay for a day, and a call reads and skips them.
const MOST_READ: usize = 1_000_000;

/// status, step_key, requester, holder, claimed_at, lease_left, attempts, last_error, cancelling, next.
type ActionView = [Option<Datum>; 10];

/// `once.action_get`.
pub fn action_get(call: &Call) -> Result<Datum> {
    let machine = Machine::for_tables(call.text(0, "machine", SCOPE_MAX)?)?;
    let id = machine.id(call, 1)?;
    let rows = Rows::begin(call);
    if let Some(seen) = row_seen(&machine, &id)? {
        let lease = Lease::latest(&machine, &id)?;
        rows.push(&view(&machine, Some(&seen), lease.as_ref())?);
    }
    Ok(call.return_null())
}

/// `once.action_list`.
pub fn action_list(call: &Call) -> Result<Datum> {
    let only = call.opt_text(0, "machine", SCOPE_MAX)?;
    let mut left = call.limit(1, "max", MOST_LEASES)? as usize;
    let names = match only {
        Some(name) => vec![StoredMachine::existing(name)?.name().to_vec()],
        None => stored::names()?,
    };
    let rows = Rows::begin(call);
    for name in names {
        for lease in held(&name, left)? {
            let id = lease.raw(LeaseCol::RowId);
            // If a table is gone or locked, its rows are listed without details, and the call does not fail.
            let known = subxact::attempt_briefly(|| of_list(&name, &lease))?;
            let view = known.unwrap_or_else(|failure| {
                let mut none: ActionView = [None; 10];
                none[9] = Some(row::text(&from_utf8(&format!(
                    "Not known: {}; see once.machine_check().",
                    failure.message
                ))));
                none
            });
            rows.push(&[&[Some(row::text(&name)), id], &view[..]].concat());
            left -= 1;
        }
    }
    Ok(call.return_null())
}

/// The held leases of a machine, in the order of look_at.
fn held(machine: &[u8], max: usize) -> Result<Vec<Lease>> {
    let snapshot = Snapshot::latest();
    let table = Table::to_read(TABLE)?;
    let keys = &mut [ScanKey::text(1, row::text(machine))];
    let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
    let mut found = Vec::new();
    for _ in 0..MOST_READ {
        let Some(slot) = scan.advance().filter(|_| found.len() < max) else {
            break;
        };
        let lease = Lease::borrow(slot);
        if lease.state() == LeaseState::Held
            && let Some(key) = lease.key()
        {
            found.extend(Lease::find_by_key(&table, &key, &snapshot)?);
        }
    }
    Ok(found)
}

fn of_list(machine: &[u8], lease: &Lease) -> Result<ActionView> {
    let machine = Machine::for_tables(machine)?;
    let id = lease.bytes(LeaseCol::RowId).unwrap_or_default();
    let id = RowId::read(machine.shape.id.base_type, id, "id")?;
    let seen = row_seen(&machine, &id)?;
    view(&machine, seen.as_ref(), Some(lease))
}

fn row_seen(machine: &Machine, id: &RowId) -> Result<Option<RowSeen>> {
    let seen = machine.as_owner(|| RowSeen::find(machine, id, RowLock::No))?;
    Ok(seen.flatten())
}

fn view(machine: &Machine, seen: Option<&RowSeen>, lease: Option<&Lease>) -> Result<ActionView> {
    let now = clock::now_us()?;
    let status = seen.map(RowSeen::status).unwrap_or_default();
    let covering = lease.filter(|l| l.covers(status));
    let held = |col| covering.and_then(|l| l.raw(col));
    // A lease whose action is finished is not shown.
    let told = lease.filter(|l| l.state() != LeaseState::Finished);
    let of_lease = |col| told.and_then(|l| l.raw(col));
    let left = |l: &Lease| clock::interval_datum(l.i64(LeaseCol::LeaseUntil) - now);
    Ok([
        seen.and_then(|s| s.status),
        of_lease(LeaseCol::StepKey),
        of_lease(LeaseCol::Requester),
        held(LeaseCol::Holder),
        held(LeaseCol::Token),
        covering.map(left),
        of_lease(LeaseCol::Attempts),
        of_lease(LeaseCol::Note),
        seen.map(|s| Datum::from(s.flagged)),
        Some(row::text(&from_utf8(&next(machine, seen, lease, now)?))),
    ])
}

/// Describes what happens to the row next, and who does it.
fn next(
    machine: &Machine,
    seen: Option<&RowSeen>,
    lease: Option<&Lease>,
    now: i64,
) -> Result<String> {
    let Some(seen) = seen else {
        return Ok("The row is gone: a sweep after its lease's end deletes the lease.".to_owned());
    };
    let (definition, status) = (&machine.definition, shown(seen.status()));
    Ok(match lease.filter(|l| l.covers(seen.status())) {
        Some(lease) => of_holder(machine, seen, lease, now)?,
        None if definition.is_claim_state(&status) => format!(
            "The row has no lease: after once.action_adopt('{}') the next sweep reverts it.",
            machine.name()
        ),
        None if definition.is_terminal(&status) => "Nothing: the status is terminal.".to_owned(),
        None if seen.flagged => {
            "A teardown worker finds the row with once.cancel_pending (a flag set by hand: after once.action_adopt), and ends the teardown with once.cancel_finish."
                .to_owned()
        }
        None => "No action has the row: it waits for the next claim or transition.".to_owned(),
    })
}

fn of_holder(machine: &Machine, seen: &RowSeen, lease: &Lease, now: i64) -> Result<String> {
    let revert = lease.text(LeaseCol::RevertTo);
    let until = lease.i64(LeaseCol::LeaseUntil);
    if until > now {
        let left = (until - now) / 1_000_000;
        let done = match seen.flagged {
            true => "learns of the cancellation, releases the row and does the teardown",
            false => "finishes or releases the row",
        };
        return Ok(format!(
            "Its holder {done} within {left} s, or extends the lease; else a sweep puts the row back to \"{revert}\"."
        ));
    }
    let failures = lease.i32(LeaseCol::Failures);
    if failures > 0 {
        let wait = (lease.i64(LeaseCol::LookAt) - now).max(0) / 1_000_000;
        return Ok(format!(
            "Sweeps that failed to put the row back to \"{revert}\": {failures}; the next one tries in {wait} s, or at once after once.action_expire. last_error says why."
        ));
    }
    Ok(match swept::covers(&from_utf8(machine.name()))? {
        true => format!(
            "The next sweep (action_release) puts the row back to \"{revert}\". If a sweep leaves it as it is, a backend has the row locked (once.doctor)."
        ),
        false => format!(
            "The row waits for a sweep (action_release) to put it back to \"{revert}\", but no such sweep has succeeded lately: see once.janitor_status()."
        ),
    })
}

//! `action_finish` and `action_release`: the row leaves its claim state, and the lease ends.
//!
//! Lock order: first the row, by an UPDATE that requires the claim state, then the lease. Sweeps and claims change a
//! lease's token and state only under the row's lock, so token and state are final after the UPDATE.

use super::fence::{FencedAction, TokenUse};
use super::lease::{Lease, LeaseCol, LeaseState};
use crate::call::{Call, shown};
use crate::digest::call_mark;
use crate::error::{Error, Result};
use crate::key::fingerprint;
use crate::machine::after::MoveMade;
use crate::machine::patch::Patch;
use crate::machine::user_row::{self, MoveIf, RowSeen};
use crate::row::{self, Shape};
use crate::table::{above_read_committed, is_writable};
use pgrx::pg_sys::{self, Datum};

static FINISHED: Shape = Shape::new(&[
    (c"outcome", pg_sys::TEXTOID),
    (c"status", pg_sys::TEXTOID),
    (c"version", pg_sys::INT8OID),
]);
static RELEASED: Shape = Shape::new(&[(c"status", pg_sys::TEXTOID), (c"version", pg_sys::INT8OID)]);

/// `once.action_finish`.
pub fn action_finish(call: &Call) -> Result<Datum> {
    let fenced = FencedAction::of_call(call)?;
    let patch = Patch::read(&fenced.machine, call.datum(3))?;
    let request = call.bytes(3).map(fingerprint::of_json).transpose()?;
    let mark = call_mark("finish", &[request.as_ref().map(|f| f.as_slice())]);
    let row = |outcome: &[u8], status, version| {
        FINISHED.row(&[Some(row::text(outcome)), status, version])
    };
    let repeated = |lease: &Lease| {
        let status = lease.raw(LeaseCol::SuccessfulState);
        row(b"finished", status, lease.raw(LeaseCol::EndedVersion))
    };
    let again = |lease: &Lease| {
        lease.state() == LeaseState::Finished
            && lease.i64(LeaseCol::LastCall) == mark
            && lease.is_ours()
    };
    let (lease, present) = fenced.lease(again)?;
    if present == TokenUse::Repeated {
        return Ok(repeated(&lease));
    }
    let (from, to) = (
        lease.text(LeaseCol::ClaimInto),
        lease.text(LeaseCol::SuccessfulState),
    );
    if let Some(moved) = leave(&fenced, &from, &to, MoveIf::Unflagged, &patch)? {
        end(&fenced, LeaseState::Finished, mark, &moved, None)?;
        after(&fenced, &lease, "finish", &from, &to)?;
        return Ok(row(b"finished", moved.status, moved.version));
    }
    // Another session may have ended the lease during the wait for the row.
    let (lease, _) = fenced.lease(|_| false)?;
    let seen = RowSeen::latest(&fenced.machine, &fenced.id)?;
    match seen {
        Some(seen) if seen.flagged && lease.covers(seen.status()) => {
            Ok(row(b"cancelling", seen.status, seen.version))
        }
        other => Err(stayed(&fenced, &lease, other)),
    }
}

/// `once.action_release`.
pub fn action_release(call: &Call) -> Result<Datum> {
    let fenced = FencedAction::of_call(call)?;
    let error = call.note(3);
    let row = |status, version| RELEASED.row(&[status, version]);
    let repeated = |lease: &Lease| {
        row(
            lease.raw(LeaseCol::RevertTo),
            lease.raw(LeaseCol::EndedVersion),
        )
    };
    let again = |lease: &Lease| lease.state() == LeaseState::Released;
    let (lease, present) = fenced.lease(again)?;
    if present == TokenUse::Repeated {
        return Ok(repeated(&lease));
    }
    let (from, to) = (
        lease.text(LeaseCol::ClaimInto),
        lease.text(LeaseCol::RevertTo),
    );
    if let Some(moved) = leave(&fenced, &from, &to, MoveIf::Always, &Patch::default())? {
        end(&fenced, LeaseState::Released, 0, &moved, error)?;
        after(&fenced, &lease, "release", &from, &to)?;
        return Ok(row(moved.status, moved.version));
    }
    let (lease, present) = fenced.lease(again)?;
    if present == TokenUse::Repeated {
        return Ok(repeated(&lease));
    }
    let seen = RowSeen::latest(&fenced.machine, &fenced.id)?;
    Err(stayed(&fenced, &lease, seen))
}

/// The error if the lease is held but the UPDATE did not move the row.
fn stayed(fenced: &FencedAction, lease: &Lease, seen: Option<RowSeen>) -> Error {
    match seen {
        // The row was claimed after this transaction's snapshot.
        Some(seen) if lease.covers(seen.status()) && above_read_committed() => {
            Error::retry_transaction(fenced.named())
        }
        Some(seen) if lease.covers(seen.status()) => fenced.machine.kept_back(&fenced.id),
        other => fenced.dead(other.as_ref().map(RowSeen::status)),
    }
}

/// Records the move that ends an action. A finished step also emits its event. In this event, the member "from" is the
/// status in which the step began.
fn after(
    fenced: &FencedAction,
    lease: &Lease,
    how: &'static str,
    from: &str,
    to: &str,
) -> Result<()> {
    let machine = &fenced.machine;
    if !machine.is_followed {
        return Ok(());
    }
    let requester = lease.bytes(LeaseCol::Requester).map(shown);
    let made = MoveMade {
        from,
        to,
        how,
        requester: requester.as_deref(),
        holder: lease.bytes(LeaseCol::Holder),
        role: None,
    };
    machine.record(&fenced.id, &made)?;
    if how != "finish" {
        return Ok(());
    }
    let (key, from) = (lease.text(LeaseCol::StepKey), &lease.began_in());
    let step = machine.definition.step(&key, from);
    match step.and_then(|step| step.emit.as_deref()) {
        Some(topic) => machine.emit(topic, &fenced.id, &MoveMade { from, ..made }),
        None => Ok(()),
    }
}

fn leave(
    fenced: &FencedAction,
    from: &str,
    to: &str,
    condition: MoveIf,
    patch: &Patch,
) -> Result<Option<RowSeen>> {
    // The server's own error for a read-only transaction has no hint.
    if !is_writable() {
        return Err(Error::read_only(fenced.named()));
    }
    user_row::move_row(&fenced.machine, &fenced.id, from, to, condition, patch)
}

fn end(
    fenced: &FencedAction,
    state: LeaseState,
    mark: i64,
    moved: &RowSeen,
    note: Option<&[u8]>,
) -> Result<()> {
    fenced.write(|lease: &mut Lease, now| {
        lease.end(state, now, mark, moved.version);
        lease.put_text(LeaseCol::Note, note);
    })
}

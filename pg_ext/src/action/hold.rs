//! `action_extend` is a heartbeat: it checks the token, updates the lease and reports a cancellation. The update can be
//! HOT unless it moves look_at to an earlier time. The row is read without a lock.
//!
//! `action_expire` makes a lease expire now. When a sweep has failed to revert a row, the next try waits until look_at.
//! `action_expire` ends this wait, too.

use super::fence::FencedAction;
use super::lease::{Lease, LeaseCol, LeaseState};
use crate::call::Call;
use crate::clock;
use crate::error::{Kind, Result};
use crate::machine::model::Machine;
use crate::machine::user_row::RowSeen;
use crate::row::Shape;
use crate::settings;
use pgrx::pg_sys::{self, Datum};

static SHAPE: Shape = Shape::new(&[
    (c"lease_left", pg_sys::INTERVALOID),
    (c"cancelling", pg_sys::BOOLOID),
]);

/// `once.action_extend`.
pub fn action_extend(call: &Call) -> Result<Datum> {
    let fenced = FencedAction::of_call(call)?;
    let asked = call.interval(3, "lease")?;
    let definition = &fenced.machine.definition;
    let (left, claim_into) = fenced.write(|lease, now| {
        let step = lease.text(LeaseCol::StepKey);
        let declared = || definition.step(&step, &lease.began_in())?.lease_us;
        // Without an argument the lease never gets shorter.
        let until = match asked {
            Some(us) => now + us,
            None => {
                let us = declared().unwrap_or_else(settings::action_lease_us);
                (now + us).max(lease.i64(LeaseCol::LeaseUntil))
            }
        };
        lease.put_i64(LeaseCol::LeaseUntil, until);
        if until < lease.i64(LeaseCol::LookAt) {
            // The sweep must look at the lease earlier. This update is not HOT, because look_at is indexed.
            lease.put_i64(LeaseCol::LookAt, until);
        }
        (
            until - now,
            lease.bytes(LeaseCol::ClaimInto).map(<[u8]>::to_vec),
        )
    })?;
    let seen = RowSeen::latest(&fenced.machine, &fenced.id)?;
    match seen {
        Some(seen) if Some(seen.status()) == claim_into.as_deref() => {
            let values = [
                Some(clock::interval_datum(left)),
                Some(Datum::from(seen.flagged)),
            ];
            Ok(SHAPE.row(&values))
        }
        other => Err(fenced.dead(other.as_ref().map(|s| s.status()))),
    }
}

/// `once.action_expire`. The holder keeps its token: until the next claim or sweep it may still write.
pub fn action_expire(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    let id = machine.id(call, 1)?;
    let Some(lease) = Lease::latest(&machine, &id)?.filter(|l| l.state() == LeaseState::Held)
    else {
        return Ok(Datum::from(false));
    };
    let written = FencedAction::of_present(machine, id, &lease).write(|lease, now| {
        let until = lease.i64(LeaseCol::LeaseUntil);
        let is_later = now < until.max(lease.i64(LeaseCol::LookAt));
        if is_later {
            lease.put_i64(LeaseCol::LeaseUntil, until.min(now));
            lease.put_i64(LeaseCol::LookAt, now);
        }
        is_later
    });
    match written {
        // The lease ended during the wait for its lock.
        Err(error) if matches!(error.kind, Kind::LeaseLost | Kind::AlreadyDone) => {
            Ok(Datum::from(false))
        }
        written => Ok(Datum::from(written?)),
    }
}

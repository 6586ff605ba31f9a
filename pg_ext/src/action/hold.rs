//! `action_extend`: a heartbeat that fences and reports a cancellation. A HOT update of the lease, and a read of the row
//! without a lock.

use super::fence::FencedAction;
use super::lease::LeaseCol;
use crate::call::Call;
use crate::clock;
use crate::error::Result;
use crate::machine::user_row::RowSeen;
use crate::row::Shape;
use crate::settings;
use pgrx::pg_sys::{self, Datum};

thread_local! {
    static SHAPE: Shape = const { Shape::new(&[
        (c"lease_left", pg_sys::INTERVALOID),
        (c"cancelling", pg_sys::BOOLOID),
    ]) };
}

/// `once.action_extend`.
pub fn action_extend(call: &Call) -> Result<Datum> {
    let fenced = FencedAction::of_call(call)?;
    let asked = call.interval(3, "lease")?;
    let steps = &fenced.machine.definition.steps;
    let (left, claim_into) = fenced.write(|lease, now| {
        let step = lease.text(LeaseCol::StepKey);
        let declared = || steps.iter().find(|s| s.step_key == step)?.lease_us;
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
            // Not a HOT update: the lease ends before the sweep would look.
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
            Ok(SHAPE.with(|shape| shape.row(&values)))
        }
        other => Err(fenced.dead(other.as_ref().map(|s| s.status()))),
    }
}

//! `outbox_extend`: a worker's heartbeat for its batch.

use super::batch::{self, Batch};
use super::receipt::Ledger;
use super::topic::Subscriber;
use crate::call::Call;
use crate::clock;
use crate::error::Result;
use pgrx::pg_sys::Datum;

/// `once.outbox_extend`.
pub fn outbox_extend(call: &Call) -> Result<Datum> {
    let subscriber = Subscriber::named_in(call)?;
    let token = call.i64(2, "token")?;
    let lease = call.interval(3, "lease")?.unwrap_or(subscriber.lease_us);
    let mut batch = Batch::locked(&subscriber, token)?;
    match Ledger::read(&batch)?.split(None) {
        (held, _) if !held.is_empty() => {}
        (_, ended) if !ended.is_empty() => {
            return Err(batch::already_done(&subscriber, token, "ended"));
        }
        _ => return Err(batch::lost(&subscriber, token, &[])),
    }
    let now = clock::now_us()?;
    let most = batch.taken_at().saturating_add(subscriber.max_life_us);
    // A lease becomes shorter only if max_lease_life was lowered.
    let until = (now + lease).min(most).max(batch.lease_until().min(most));
    batch.extend(until)?;
    Ok(clock::interval_datum((until - now).max(0)))
}

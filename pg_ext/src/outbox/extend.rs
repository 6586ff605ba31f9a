//! `outbox_extend`: a worker's heartbeat for its batch.

use super::batch::{self, Batch, Col, TABLE};
use super::receipt::Ledger;
use super::topic::Subscriber;
use crate::call::Call;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::table::{Outcome, Table, Wait};
use pgrx::pg_sys::Datum;

/// `once.outbox_extend`.
pub fn outbox_extend(call: &Call) -> Result<Datum> {
    let subscriber = Subscriber::of(call)?;
    let token = call.i64(2, "token")?;
    let lease = call.interval(3, "lease")?.unwrap_or(subscriber.lease_us);
    let mut batch = Batch::locked(&subscriber, token)?;
    if Ledger::of(&batch)?.held.is_empty() {
        return Err(batch::lost(&subscriber, token));
    }
    let now = clock::now_us()?;
    let most = batch.i64(Col::TakenAt).saturating_add(subscriber.max_life_us);
    // What was granted before is not taken back.
    let until = (now + lease).min(most).max(batch.i64(Col::LeaseUntil).min(most));
    batch.put_i64(Col::LeaseUntil, until);
    let Some(tid) = batch.tid() else {
        return Err(Error::new(Kind::Internal, "a batch that is not stored"));
    };
    match batch.update_at(&Table::to_write(TABLE)?, tid, Wait::Yes)? {
        Outcome::Done => Ok(clock::interval_datum(until - now)),
        _ => Err(Error::new(Kind::Internal, "a locked batch was changed")),
    }
}

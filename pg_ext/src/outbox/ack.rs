//! `outbox_ack`: marks events of a batch as delivered. A call writes at most one receipt, however many events it names.

use super::batch::{self, Batch};
use super::receipt::{Ledger, LeftBy, ReceiptKind};
use super::retry;
use super::topic::Subscriber;
use crate::call::Call;
use crate::error::Result;
use pgrx::pg_sys::Datum;

/// `once.outbox_ack`.
pub fn outbox_ack(call: &Call) -> Result<Datum> {
    let subscriber = Subscriber::named_in(call)?;
    let token = call.i64(2, "token")?;
    let wanted = call.opt_i64s(3, "event_ids")?;
    let batch = Batch::locked(&subscriber, token)?;
    let mut ledger = Ledger::read(&batch)?;
    let (leaving, others) = ledger.split(wanted.as_deref());
    let (acked, lost): (Vec<i64>, Vec<i64>) = others
        .iter()
        .partition(|id| ledger.has_left(**id, LeftBy::Acked));
    let done: Vec<i64> = acked
        .iter()
        .copied()
        .filter(|id| !ledger.is_ours(*id))
        .collect();
    if !done.is_empty() {
        return Err(batch::already_done(&subscriber, token, "acked").detail(batch::listed(&done)));
    }
    let nothing = wanted.is_none() && leaving.is_empty() && acked.is_empty();
    if nothing || !lost.is_empty() {
        return Err(batch::lost(&subscriber, token, &lost));
    }
    if !leaving.is_empty() {
        ledger.append(ReceiptKind::Acked, &leaving, None)?;
        retry::acked(&subscriber, &batch, &leaving)?;
    }
    Ok(Datum::from((leaving.len() + acked.len()) as i32))
}

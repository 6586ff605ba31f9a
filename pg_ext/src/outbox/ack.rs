//! `outbox_ack`: events of a batch are delivered. One receipt, whatever their number.

use super::batch::{self, Batch};
use super::receipt::{Kind, Ledger};
use super::retry;
use super::topic::Subscriber;
use crate::call::Call;
use crate::error::Result;
use pgrx::pg_sys::Datum;
use std::collections::HashSet;

/// `once.outbox_ack`.
pub fn outbox_ack(call: &Call) -> Result<Datum> {
    let subscriber = Subscriber::of(call)?;
    let token = call.i64(2, "token")?;
    let wanted = call.opt_i64s(3, "event_ids")?;
    let batch = Batch::locked(&subscriber, token)?;
    let mut ledger = Ledger::of(&batch)?;
    let leaving = match wanted {
        // The answer of an ack may be asked for again; who gave the rest back, or lost it, has nothing to ack.
        None if ledger.held.is_empty() && !ledger.ended_by_ack => {
            return Err(batch::lost(&subscriber, token));
        }
        None => ledger.held.clone(),
        Some(wanted) => {
            let held: HashSet<&i64> = ledger.held.iter().collect();
            let mut leaving = Vec::new();
            let mut seen = HashSet::new();
            for id in &wanted {
                if held.contains(id) {
                    if seen.insert(*id) {
                        leaving.push(*id);
                    }
                } else if !ledger.has_acked(*id) {
                    return Err(batch::lost(&subscriber, token));
                }
            }
            leaving
        }
    };
    if !leaving.is_empty() {
        ledger.append(Kind::Acked, &leaving, 0, None)?;
        retry::acked(&subscriber, &batch, &leaving)?;
    }
    Ok(Datum::from(ledger.acked))
}

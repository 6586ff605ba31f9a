//! Owns the order of a batch: the events of one order key are a chain, and are handled one after another.
//!
//! Invariant: an event begins only when the previous event of its order key is done, and never after the worker was
//! told to stop. Unless the lease is lost, each event of a chain is in exactly one [`Verdict`]; the verdict of an event
//! that failed or is released lists the later events of the chain, too.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::super::panics::apart;
use super::super::stage::{Stage, reached};
use super::{Deliver, Shared, Undelivered};
use crate::{Acked, Begin, Event};

pub(super) enum Verdict {
    Done(i64),
    /// The handler has acked the event itself.
    Acked,
    Failed {
        event: Arc<Event>,
        failure: Undelivered,
        /// The later events of the order key; a nack of this event also removes them from the batch.
        behind: Vec<i64>,
    },
    /// The events released at a stop: an event that is not finished, and the later events of its order key.
    Released(Vec<i64>),
}

pub(super) type Chain = Vec<Arc<Event>>;

/// Groups a batch's events by order key; an event without a key is a chain of its own.
pub(super) fn chains_of(events: Vec<Event>) -> Vec<Chain> {
    let mut chains: Vec<Chain> = vec![];
    let mut by_key: HashMap<String, usize> = HashMap::new();
    for event in events {
        let known = event.order_key.as_ref().and_then(|key| by_key.get(key));
        match known.and_then(|chain| chains.get_mut(*chain)) {
            Some(chain) => chain.push(Arc::new(event)),
            None => {
                if let Some(key) = &event.order_key {
                    by_key.insert(key.clone(), chains.len());
                }
                chains.push(vec![Arc::new(event)]);
            }
        }
    }
    chains
}

/// Handles a chain, in a given slot or in the next free slot. Drops `begun` when the chain has a slot, or at a stop.
pub(super) async fn follow<P: Begin, H: Deliver>(
    shared: Arc<Shared<P, H>>,
    chain: Chain,
    slot: Option<OwnedSemaphorePermit>,
    begun: mpsc::Sender<()>,
    verdicts: mpsc::UnboundedSender<Verdict>,
) {
    let mut stage = shared.stage.clone();
    let slot = match slot {
        Some(slot) => Some(slot),
        None => tokio::select! {
            biased;
            () = reached(&mut stage, Stage::Finish) => None,
            slot = Arc::clone(&shared.slots).acquire_owned() => slot.ok(),
        },
    };
    drop(begun);
    let mut chain = chain.into_iter();
    while let Some(event) = chain.next() {
        let begins = *stage.borrow() < Stage::Finish;
        let handled = tokio::select! {
            biased;
            handled = handle(&shared, &event), if begins => Some(handled),
            () = reached(&mut stage, Stage::GiveBack), if begins => None,
            else => None,
        };
        let verdict = match handled {
            None => {
                let rest = [event].into_iter().chain(chain.by_ref());
                Verdict::Released(rest.map(|event| event.event_id).collect())
            }
            Some(Ok(Acked::ByWorker)) => Verdict::Done(event.event_id),
            Some(Ok(Acked::ByHandler)) => Verdict::Acked,
            Some(Err(failure)) => Verdict::Failed {
                event,
                failure,
                behind: chain.by_ref().map(|event| event.event_id).collect(),
            },
        };
        // A send fails only if the batch was given up and the receiver is gone.
        let _ = verdicts.send(verdict);
    }
    drop(slot);
}

/// Calls the handler; its panic counts as a failure of this event.
async fn handle<P: Begin, H: Deliver>(
    shared: &Arc<Shared<P, H>>,
    event: &Arc<Event>,
) -> Result<Acked, Undelivered> {
    let (shared, event) = (Arc::clone(shared), Arc::clone(event));
    let handled = apart(async move { shared.handler.deliver(&event).await }).await;
    handled.unwrap_or_else(|panic| Err(Undelivered::retry("panic", panic)))
}

#[cfg(test)]
#[path = "../../../tests/unit/chain.rs"]
mod tests;

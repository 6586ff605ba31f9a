//! Owns one batch from its take to its end: its handlers, its heartbeat, its acks and nacks.
//!
//! Invariant: no handler of the batch runs at a time at which the batch's lease may have ended.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::heartbeat::{Leased, until_lost};
use super::super::panics::tell;
use super::chain::{chains_of, follow};
use super::settle::Settle;
use super::{Deliver, Delivered, Shared};
use crate::{Batch, Begin, Error, Executor};

impl Leased for Batch {
    fn name(&self) -> String {
        format!("{:?}, batch {}", self.subscriber(), self.token())
    }

    fn lease_left(&self) -> Duration {
        self.length.unwrap_or_default()
    }

    fn renew<E: Executor>(&self, exec: &E) -> impl Future<Output = Result<Duration, Error>> + Send {
        self.extend(exec, None)
    }
}

/// `since` is the time at which the take was sent. `slot` permits the first chain to run its handlers. The next take
/// waits until each clone of `begun` is dropped.
pub(super) async fn deliver<P: Begin, H: Deliver>(
    shared: Arc<Shared<P, H>>,
    mut batch: Batch,
    since: Instant,
    mut slot: Option<OwnedSemaphorePermit>,
    begun: mpsc::Sender<()>,
) -> Delivered {
    let events = std::mem::take(&mut batch.events);
    let held = events.len();
    let (send, verdicts) = mpsc::unbounded_channel();
    let mut chains = JoinSet::new();
    for chain in chains_of(events) {
        let shared = Arc::clone(&shared);
        let (begun, send) = (begun.clone(), send.clone());
        chains.spawn(follow(shared, chain, slot.take(), begun, send));
    }
    drop(send);
    let _begun = P::ONE_AT_A_TIME.then_some(begun);

    let mut settle = Settle::new(&shared, &batch, held);
    let (pool, backoff) = (&shared.exec, &shared.backoff);
    {
        let mut settling = pin!(settle.all(verdicts));
        tokio::select! {
            biased;
            () = &mut settling => {}
            () = until_lost(pool, backoff, &batch, since) => {
                chains.shutdown().await;
                // An ack may be on its way: waits for the server's answer.
                let _ = timeout(backoff.call_timeout, settling).await;
            }
        }
    }
    chains.shutdown().await;
    let mut counts = settle.counts();
    counts.lost = u64::try_from(held)
        .unwrap_or(u64::MAX)
        .saturating_sub(counts.total());
    if counts.lost > 0 {
        tracing::warn!(
            batch = batch.name(),
            events = counts.lost,
            "events of the batch were neither acked nor nacked; they are delivered again"
        );
        tell(|| shared.handler.lost(counts.lost));
    }
    counts
}

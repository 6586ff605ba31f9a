//! Owns one batch from its take to its end: its handlers, its heartbeat, its verdicts.
//!
//! Invariant: no handler of the batch runs past the time up to which its lease is known to be
//! alive.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::heartbeat::{Heartbeat, Leased};
use super::super::panics::tell;
use super::chain::{chains_of, follow};
use super::settle::Settle;
use super::{Deliver, Delivered, Shared};
use crate::{Batch, Error, Executor};

/// A leased batch.
pub(super) struct Held<H> {
    shared: Arc<Shared<H>>,
    lease: BatchLease,
    /// When the take was sent.
    since: Instant,
}

/// The lease that the heartbeat extends.
struct BatchLease {
    batch: Batch,
    length: Duration,
}

impl Leased for BatchLease {
    fn name(&self) -> String {
        format!(
            "{:?}, batch {}",
            self.batch.subscriber(),
            self.batch.token()
        )
    }

    fn lease_left(&self) -> Duration {
        self.length
    }

    fn renew<E: Executor>(&self, exec: &E) -> impl Future<Output = Result<Duration, Error>> + Send {
        self.batch.extend(exec, None)
    }
}

impl<H: Deliver> Held<H> {
    pub(super) const fn new(
        shared: Arc<Shared<H>>,
        batch: Batch,
        length: Duration,
        since: Instant,
    ) -> Self {
        Self {
            shared,
            lease: BatchLease { batch, length },
            since,
        }
    }

    /// Delivers the batch's events. The first chain has a slot already; `begun` is dropped when the
    /// last one has its own.
    pub(super) async fn deliver(
        mut self,
        slot: OwnedSemaphorePermit,
        begun: mpsc::Sender<()>,
    ) -> Delivered {
        let events = std::mem::take(&mut self.lease.batch.events);
        let held = events.len();
        let (send, verdicts) = mpsc::unbounded_channel();
        let (mut chains, mut slot) = (JoinSet::new(), Some(slot));
        for chain in chains_of(events) {
            let shared = Arc::clone(&self.shared);
            let (begun, send) = (begun.clone(), send.clone());
            chains.spawn(follow(shared, chain, slot.take(), begun, send));
        }
        drop((send, begun));

        let mut settle = Settle::new(&self.shared, &self.lease.batch, held);
        let heartbeat = Heartbeat {
            exec: &self.shared.pool,
            backoff: &self.shared.backoff,
            lease: &self.lease,
            since: self.since,
        };
        {
            let mut settling = pin!(settle.all(verdicts));
            tokio::select! {
                biased;
                () = &mut settling => {}
                () = heartbeat.until_lost() => {
                    chains.shutdown().await;
                    // A last ack may be on its way; the server decides whether it counts.
                    let _ = timeout(self.shared.backoff.call_timeout, settling).await;
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
                batch = self.lease.name(),
                events = counts.lost,
                "the lease of the batch is lost; another worker delivers its events"
            );
            tell(|| self.shared.handler.lost(counts.lost));
        }
        counts
    }
}

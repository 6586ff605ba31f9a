//! Owns the batches that are out, each in a task of its own, and the counts of those that are over.
//!
//! Invariant: dropped, the set stops every batch; nothing of it outlives the worker.

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::{JoinError, JoinSet};

use super::Deliver;
use super::batch::Held;

/// What an [`OutboxWorker`](crate::OutboxWorker) did until it was told to stop; each is a count of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Delivered and acked.
    pub delivered: u64,
    /// Failed attempts; their events come again.
    pub failed: u64,
    /// Failed for good: the attempts are used up, or the handler gave up.
    pub dead: u64,
    /// Given back without an attempt counted: the worker was told to stop, or one in front of it in
    /// its order key failed.
    pub released: u64,
    /// Of leases that were lost: somebody else delivers them, or will.
    pub lost: u64,
}

/// The batches that are out, and what became of those that are over.
#[derive(Default)]
pub(super) struct Batches {
    tasks: JoinSet<Delivered>,
    counts: Delivered,
}

impl Batches {
    /// Begins with a batch. What comes back ends when all of its events have begun or are over.
    pub(super) fn begin<H: Deliver>(
        &mut self,
        held: Held<H>,
        slot: OwnedSemaphorePermit,
    ) -> mpsc::Receiver<()> {
        let (begun, waiting) = mpsc::channel(1);
        self.tasks.spawn(held.deliver(slot, begun));
        waiting
    }

    /// Counts what is over.
    pub(super) fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            self.count(ended);
        }
    }

    pub(super) async fn all(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            self.count(ended);
        }
    }

    pub(super) const fn counts(&self) -> Delivered {
        self.counts
    }

    fn count(&mut self, ended: Result<Delivered, JoinError>) {
        match ended {
            Ok(batch) => self.counts.add(batch),
            Err(error) => tracing::error!(%error, "a batch was left to its lease"),
        }
    }
}

impl Delivered {
    const fn add(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.failed += other.failed;
        self.dead += other.dead;
        self.released += other.released;
        self.lost += other.lost;
    }

    pub(super) const fn total(&self) -> u64 {
        self.delivered + self.failed + self.dead + self.released + self.lost
    }
}

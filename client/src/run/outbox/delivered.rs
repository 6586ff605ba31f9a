//! Owns the counts of an outbox worker.

use crate::run::tasks::counted;

/// The counts of an [`OutboxWorker`](crate::OutboxWorker). An event that was taken twice is counted twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Events that were delivered and acked.
    pub delivered: u64,
    /// Events whose attempt failed; they are retried.
    pub failed: u64,
    /// Events that failed for good: the attempts are used up, or the handler returned `Never`.
    pub dead: u64,
    /// Events that were released, with no attempt counted: the worker was told to stop, the handler deferred the
    /// event, the `dead` callback failed, or an earlier event of the order key was not delivered.
    pub released: u64,
    /// Events that were neither acked nor nacked, such as after the batch's lease was lost; they are delivered again.
    pub lost: u64,
}

impl Delivered {
    pub(super) const fn total(&self) -> u64 {
        self.delivered + self.failed + self.dead + self.released + self.lost
    }
}

counted!(Delivered: delivered, failed, dead, released, lost);

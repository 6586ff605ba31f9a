//! Owns the counts of an outbox worker.

use crate::run::tasks::counted;

/// The counts of an [`OutboxWorker`](crate::OutboxWorker); each counts events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Delivered and acked.
    pub delivered: u64,
    /// Failed attempts; their events are retried.
    pub failed: u64,
    /// Failed for good: the attempts are used up, or the handler gave up.
    pub dead: u64,
    /// Released without counting an attempt: the worker was told to stop, the handler deferred it, its
    /// `dead` callback failed, or an earlier event of its order key failed.
    pub released: u64,
    /// Events of lost leases: another worker delivers them.
    pub lost: u64,
}

impl Delivered {
    pub(super) const fn total(&self) -> u64 {
        self.delivered + self.failed + self.dead + self.released + self.lost
    }
}

counted!(Delivered: delivered, failed, dead, released, lost);

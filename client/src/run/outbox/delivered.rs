//! Owns the counts of an outbox worker.

use std::ops::AddAssign;

/// What an [`OutboxWorker`](crate::OutboxWorker) did until it was told to stop; each is a count of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Delivered and acked.
    pub delivered: u64,
    /// Failed attempts; their events come again.
    pub failed: u64,
    /// Failed for good: the attempts are used up, or the handler gave up.
    pub dead: u64,
    /// Given back without an attempt counted: the worker was told to stop, the handler put it off, or one in
    /// front of it in its order key failed.
    pub released: u64,
    /// Of leases that were lost: somebody else delivers them, or will.
    pub lost: u64,
}

impl Delivered {
    pub(super) const fn total(&self) -> u64 {
        self.delivered + self.failed + self.dead + self.released + self.lost
    }
}

impl AddAssign for Delivered {
    fn add_assign(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.failed += other.failed;
        self.dead += other.dead;
        self.released += other.released;
        self.lost += other.lost;
    }
}

//! Wakes idle workers.
//!
//! Invariant: a wake-up costs its sender no round trip, no NOTIFY and no lock in the database. No wake-up is lost while
//! the worker is busy.

use tokio::sync::watch;

/// Wakes an idle worker of the same process ([`OutboxWorker`](crate::OutboxWorker), [`Completer`](crate::Completer),
/// [`TeardownWorker`](crate::TeardownWorker)), so that new work need not wait for the next poll. Optional: without a
/// waker the worker finds the work at its next poll.
///
/// Call [`Waker::wake`] after the commit that emits the event, releases the key or requests the cancel; before the
/// commit there is nothing to find. Many calls while the worker is busy count as one.
///
/// A process that emits for workers in other processes can send one `NOTIFY` for many commits, from a session of its
/// own. The receiving process then calls `wake` (`examples/wake_up`). A `NOTIFY` in each emitting transaction would
/// make the commits wait for one another.
///
/// ```
/// let waker = pg_once::Waker::new();
/// // subscriber.worker(&pool).waker(&waker).run(...)
/// // ... and after the commit that emitted:
/// waker.wake();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Waker(watch::Sender<()>);

impl Waker {
    /// Makes a waker. Several workers may share it; a wake-up wakes each of them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the workers that share this waker, because there may be work.
    pub fn wake(&self) {
        self.0.send_replace(());
    }

    pub(super) fn seen(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}

//! Owns the waits of the workers: when an idle one asks again, and for how long what failed is put off.
//!
//! Invariant: an idle database is asked no more often than once in the longest wait, by each worker,
//! and a wake-up costs who gives it nothing: no round trip, no NOTIFY, no lock. No wait is the same for
//! everybody, so that workers who began together do not ask together.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::stage::{Stage, reached};
use crate::Backoff;

/// The first wait after the last thing there was to do; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(20);

/// How long something that fails again and again is put off.
pub(super) const PUT_OFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(300),
    tries: u32::MAX,
    call_timeout: Duration::MAX,
};

/// Wakes an idle worker of the same process ([`OutboxWorker`](crate::OutboxWorker),
/// [`Completer`](crate::Completer), [`TeardownWorker`](crate::TeardownWorker)), so that what there is to
/// do need not wait for the next poll. Optional: without it the worker finds it by itself.
///
/// Call [`Waker::wake`] after the commit of what was emitted, given back or asked for; before it there is
/// nothing to find. Many calls while the worker is busy are one. A process that emits for workers elsewhere can send them a
/// datagram, or one `NOTIFY` a second from a session of its own, and have the receiving end call this;
/// a `NOTIFY` in the emitting transaction would make all commits wait for one another.
///
/// ```
/// let waker = pg_once::Waker::new();
/// // subscriber.worker(&pool).waker(&waker).run(...)
/// // ... and after the commit that emitted:
/// waker.wake();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Waker(Arc<Notify>);

impl Waker {
    /// A waker that wakes nobody yet. One of them may be given to several workers; a wake-up goes to
    /// one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// There may be something to do.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// A random time up to this, and at least half of it.
pub(super) fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// The waits of an idle worker.
pub(super) struct Poll<'w> {
    longest: Duration,
    waker: &'w Waker,
    wait: Duration,
}

impl<'w> Poll<'w> {
    pub(super) fn new(longest: Duration, waker: &'w Waker) -> Self {
        Self {
            longest,
            waker,
            wait: FIRST_WAIT.min(longest),
        }
    }

    /// Waits until it is worth asking again; `false` if the worker is told to stop first.
    pub(super) async fn wait_unless_told(&mut self, stage: &mut watch::Receiver<Stage>) -> bool {
        tokio::select! {
            biased;
            () = reached(stage, Stage::Finish) => false,
            () = self.wait() => true,
        }
    }

    /// There was something: begin with the short wait again.
    pub(super) fn found(&mut self) {
        self.wait = FIRST_WAIT.min(self.longest);
    }

    async fn wait(&mut self) {
        let wait = self.next();
        tokio::select! {
            biased;
            () = self.waker.0.notified() => self.found(),
            () = sleep(wait) => {}
        }
    }

    /// A random time up to the wait, and at least half of it; the next wait is twice as long.
    fn next(&mut self) -> Duration {
        let wait = jittered(self.wait);
        self.wait = self.wait.saturating_mul(2).min(self.longest);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_worker_asks_less_and_less_often_up_to_the_longest_wait() {
        let waker = Waker::new();
        let mut poll = Poll::new(Duration::from_secs(1), &waker);
        let waits: Vec<Duration> = (0..10).map(|_| poll.next()).collect();
        assert!(waits[0] <= FIRST_WAIT, "{waits:?}");
        assert!(waits[8] >= Duration::from_millis(500), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(1)));
        poll.found();
        assert!(poll.next() <= FIRST_WAIT);
    }

    #[tokio::test]
    async fn many_wake_ups_while_the_worker_is_busy_are_one_and_it_is_not_lost() {
        let waker = Waker::new();
        let hour = Duration::from_secs(3600);
        let mut poll = Poll::new(hour, &waker);
        poll.wait = hour;
        for _ in 0..5 {
            waker.wake(); // nobody waits yet
        }
        poll.wait().await; // the test would not end otherwise
        poll.wait = hour;
        let again = tokio::time::timeout(Duration::from_millis(50), poll.wait());
        assert!(again.await.is_err());
    }
}

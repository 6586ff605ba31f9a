//! Owns the parts that all workers share: the settings, and the loop that asks for work.
//!
//! Invariant: a worker waits for a database that is unreachable or overloaded. The wait of an idle worker between two
//! polls doubles each time, up to `poll_every`. Each wait is random and never zero, so that workers that began together
//! do not ask together. A worker that is told to stop asks no more, but waits for a take that is on its way, because
//! the leases of that take would otherwise have to expire.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};
use tracing::Span;

use super::stage::{Stage, reached};
use super::waker::Waker;
use crate::{Backoff, Error, Kind};

/// The first wait of a worker that finds no more work; the wait then doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(20);

/// The smallest value of `poll_every` that a worker accepts.
pub(super) const SHORTEST_POLL: Duration = Duration::from_millis(10);

/// How long handlers may go on after the worker is told to stop.
const GRACE: Duration = Duration::from_secs(25);

/// After a failure, a completer defers the request with this backoff, and a teardown worker defers the row.
pub(super) const DEFERRED: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(300),
    tries: u32::MAX,
    call_timeout: Duration::MAX,
};

/// A random time between half of `time` and all of it.
pub(super) fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// The settings of a loop. The loop's builder has methods for the settings that apply to the loop (`settings!`).
#[derive(Debug)]
pub(super) struct Pace {
    pub(super) concurrency: usize,
    pub(super) lease: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) backoff: Backoff,
    pub(super) poll_every: Duration,
    pub(super) waker: Waker,
}

/// The methods of a builder with a field `pace`: a method for each named setting.
macro_rules! settings {
    (@concurrency) => {
        /// How many handlers run at a time, at least one. Events of one order key are never handled at the same time.
        pub fn concurrency(mut self, handlers: usize) -> Self {
            self.pace.concurrency = handlers.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
            self
        }
    };
    (@lease) => {
        /// The length of each lease; the default is set on the scope, step or subscriber. While the work runs, the
        /// lease is extended each time a third of it has passed, and is lost if no extension succeeds before its end.
        /// So the length decides how soon others notice that this process died, not how long the work may take.
        pub fn lease(mut self, lease: std::time::Duration) -> Self {
            self.pace.lease = Some(lease);
            self
        }
    };
    (@poll_every) => {
        /// The longest wait between two polls when there is no work, at least 10 ms. The first wait after work is at
        /// most 20 ms; then the wait doubles each time.
        pub fn poll_every(mut self, time: std::time::Duration) -> Self {
            self.pace.poll_every = time.max(crate::run::pace::SHORTEST_POLL);
            self
        }
    };
    (@grace) => {
        /// How long handlers may go on after the worker is told to stop. Then they are stopped and their leases
        /// released; a teardown has no lease. docs/how-to/rust.md says how long the release of a lease may take.
        pub fn grace(mut self, time: std::time::Duration) -> Self {
            self.pace.grace = time;
            self
        }
    };
    (@backoff) => {
        /// How calls to the database are retried.
        pub fn backoff(mut self, backoff: crate::Backoff) -> Self {
            self.pace.backoff = backoff;
            self
        }
    };
    (@waker) => {
        /// Wakes the worker when it is idle: see [`Waker`](crate::Waker).
        pub fn waker(mut self, waker: &crate::Waker) -> Self {
            self.pace.waker = waker.clone();
            self
        }
    };
    ($($setting:ident)*) => {
        $(settings!(@$setting);)*
    };
}
pub(super) use settings;

/// A database that a worker works in, and its shard number if the worker was made over shards.
pub(super) type Place<E> = (Option<usize>, E);

/// Clones the executors: a worker that owns them may be moved into a task.
pub(super) fn owned<E: Clone>(places: Vec<Place<&E>>) -> Vec<Place<E>> {
    let owned = |(shard, exec): Place<&E>| (shard, exec.clone());
    places.into_iter().map(owned).collect()
}

/// The state that a worker's tasks in one place share.
pub(super) struct Shared<E, H> {
    pub(super) exec: E,
    pub(super) shard: Option<usize>,
    pub(super) backoff: Backoff,
    pub(super) handler: Arc<H>,
    /// A permit for each handler that may run; all places share them.
    pub(super) slots: Arc<Semaphore>,
    pub(super) stage: watch::Receiver<Stage>,
}

/// Asks for work, for one loop of a worker.
pub(super) struct Intake<'p, W> {
    whose: &'p W,
    shard: Option<usize>,
    pace: &'p Pace,
    stage: watch::Receiver<Stage>,
    woken: watch::Receiver<()>,
    wait: Duration,
    answered: bool,
}

/// The time at which the last call was sent (the one that was answered), the slot, and the answer.
type InSlot<T> = (Instant, Option<OwnedSemaphorePermit>, T);

pub(super) fn span_of(shard: Option<usize>) -> Span {
    shard.map_or_else(Span::none, |number| tracing::info_span!("shard", number))
}

impl Pace {
    /// The default settings. Loops that are not workers use only the lease and the backoff.
    pub(super) fn new(concurrency: usize, poll_every: Duration) -> Self {
        Self {
            concurrency,
            lease: None,
            grace: GRACE,
            backoff: Backoff::default(),
            poll_every,
            waker: Waker::new(),
        }
    }

    /// Retries a claim, as often as the backoff allows; returns the answer with the time at which the claim was sent.
    pub(super) async fn claim<T, Fut>(
        &self,
        mut call: impl FnMut() -> Fut,
    ) -> Result<(Instant, T), Error>
    where
        Fut: Future<Output = Result<T, Error>>,
    {
        let timed = || {
            let (sent, asked) = (Instant::now(), call());
            async move { Ok((sent, asked.await?)) }
        };
        self.backoff.retry(timed).await
    }

    /// The shared state for this worker's tasks in each place, and the sender that stops them.
    pub(super) fn share<E: Clone, H>(
        &self,
        places: &[Place<E>],
        handler: H,
    ) -> (watch::Sender<Stage>, Vec<Arc<Shared<E, H>>>) {
        let (stage, seen) = watch::channel(Stage::Run);
        let slots = Arc::new(Semaphore::new(self.concurrency));
        let handler = Arc::new(handler);
        let shared = |(shard, exec): &Place<E>| {
            Arc::new(Shared {
                exec: exec.clone(),
                shard: *shard,
                backoff: self.backoff,
                handler: Arc::clone(&handler),
                slots: Arc::clone(&slots),
                stage: seen.clone(),
            })
        };
        (stage, places.iter().map(shared).collect())
    }

    /// `whose`: the worker's name in the log.
    pub(super) fn intake<'p, W: Debug>(
        &'p self,
        whose: &'p W,
        shard: Option<usize>,
        stage: &watch::Receiver<Stage>,
    ) -> Intake<'p, W> {
        Intake {
            whose,
            shard,
            pace: self,
            stage: stage.clone(),
            woken: self.waker.seen(),
            wait: FIRST_WAIT.min(self.poll_every),
            answered: false,
        }
    }
}

impl<W: Debug> Intake<'_, W> {
    /// Takes a slot, then asks until there is an answer. An unreachable shard must not take a slot from the other
    /// shards: after a failure the shard is asked without a slot. `None` if the worker is told to stop.
    pub(super) async fn ask<T, Fut>(
        &mut self,
        slots: &Arc<Semaphore>,
        mut call: impl FnMut() -> Fut,
    ) -> Result<Option<InSlot<T>>, Error>
    where
        Fut: Future<Output = Result<T, Error>>,
    {
        let (backoff, mut failures) = (self.pace.backoff, 0);
        let slot = Arc::clone(slots).acquire_owned();
        let Some(slot) = self.unless_told(slot).await else {
            return Ok(None);
        };
        let mut slot = slot.ok();
        loop {
            let sent = Instant::now();
            let error = match backoff.in_time(call()).await {
                Ok(answer) => {
                    if failures > 0 {
                        tracing::info!(whose = ?self.whose, failures, "asking for work succeeds again");
                    }
                    self.answered = true;
                    return Ok(Some((sent, slot, answer)));
                }
                Err(error) if self.outlives(&error, failures) => error,
                Err(error) => return Err(error),
            };
            slot = slot.filter(|_| self.shard.is_none());
            failures += 1;
            let wait = backoff.pause(failures);
            tracing::warn!(whose = ?self.whose, %error, failures, ?wait, "asking for work failed");
            if self.unless_told(sleep(wait)).await.is_none() {
                return Ok(None);
            }
        }
    }

    /// Asks until `work_in` finds work in an answer; holds no slot between polls. `None` if the worker is told to stop.
    pub(super) async fn find<A, T, Fut>(
        &mut self,
        slots: &Arc<Semaphore>,
        mut call: impl FnMut() -> Fut,
        mut work_in: impl FnMut(A) -> Option<T>,
    ) -> Result<Option<InSlot<T>>, Error>
    where
        Fut: Future<Output = Result<A, Error>>,
    {
        while let Some((sent, slot, answer)) = self.ask(slots, &mut call).await? {
            if let Some(work) = work_in(answer) {
                self.found();
                return Ok(Some((sent, slot, work)));
            }
            drop(slot);
            self.idle().await;
        }
        Ok(None)
    }

    /// Whether the worker goes on after this error. A worker whose first call is refused ends, because its setup is
    /// wrong. A worker that was answered before goes on after most refusals, such as those during a failover or a
    /// change of the password. It ends only after a final error: the topic or machine is gone, access is refused, an
    /// argument is wrong, or the pool is closed. A pooler may not know a database yet, so the first call is retried a
    /// few times if the database is missing (3D000).
    fn outlives(&self, error: &Error, failures: u32) -> bool {
        if error.code() == Some("3D000") && !self.answered {
            return failures + 1 < self.pace.backoff.tries;
        }
        match error.kind() {
            Kind::ReadOnly => self.answered,
            Kind::Other => self.answered && error.code().is_some(),
            _ => error.may_pass(),
        }
    }

    /// Waits before the next poll; ends early at a wake-up, or when the worker is told to stop.
    async fn idle(&mut self) {
        let wait = self.next_wait();
        tokio::select! {
            biased;
            () = reached(&mut self.stage, Stage::Finish) => {}
            _ = self.woken.changed() => self.found(),
            () = sleep(wait) => {}
        }
    }

    fn found(&mut self) {
        self.wait = FIRST_WAIT.min(self.pace.poll_every);
    }

    /// Waits for something; `None` if the worker is told to stop first.
    pub(super) async fn unless_told<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = reached(&mut self.stage, Stage::Finish) => None,
            ended = what => Some(ended),
        }
    }

    /// A random time between half of the wait and all of it; doubles the wait for the next call.
    fn next_wait(&mut self) -> Duration {
        let wait = jittered(self.wait);
        self.wait = self.wait.saturating_mul(2).min(self.pace.poll_every);
        wait
    }
}

#[cfg(test)]
#[path = "../../tests/unit/pace.rs"]
mod tests;

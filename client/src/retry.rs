//! Waits between tries: exponential backoff with full jitter.
//!
//! Invariant: a call is retried only after a temporary failure and a random wait, so that callers who failed together
//! do not retry together. In a loop without a bound on its tries, no wait is shorter than `SHORTEST_PAUSE`.

use std::future::Future;
use std::time::Duration;

use rand::Rng;
use tokio::time::{Instant, sleep, timeout};

use crate::{Error, Failure, Kind};

/// The shortest wait of a loop without a bound on its tries, whatever the settings.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Limit of the time for which the write that ends a lease is retried. A worker that stops waits for this write.
const LONGEST_INSISTENCE: Duration = Duration::from_secs(30);

/// The number of tries, the waits between them, and the timeout of each try.
///
/// Before try `n + 1` the caller waits a random time between zero and the smaller of `base · 2^(n−1)` and `cap`.
///
/// ```
/// use pg_once::Backoff;
/// use std::time::Duration;
///
/// // For a database whose failover takes a minute: a minute and a half of waits on average.
/// let patient = Backoff { cap: Duration::from_secs(10), tries: 25, ..Backoff::default() };
/// assert!((1..patient.tries).map(|n| patient.ceiling(n)).sum::<Duration>().as_secs() / 2 > 80);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The upper bound of the first random wait.
    pub base: Duration,
    /// The upper bound of every random wait.
    pub cap: Duration,
    /// How many times to try in all; 0 counts as 1. The write that ends a key's lease or releases a row ignores
    /// `tries`. It is retried for the length of the lease, but for 30 seconds at most and one `call_timeout` at least.
    pub tries: u32,
    /// How long one call to the database may take before it times out ([`Error::TimedOut`]), including the wait for a
    /// connection of the pool.
    pub call_timeout: Duration,
}

/// Counts the failures of a loop; after each failure the loop waits or gives up.
pub(crate) struct Failures<'b> {
    backoff: &'b Backoff,
    pub(crate) count: u32,
}

impl Default for Backoff {
    /// Eight tries of at most ten seconds each. The upper bound of the waits between tries grows from 50 ms to 2 s. All
    /// waits together take about two and a half seconds on average, 5.2 seconds at most: enough for a database that
    /// restarts. A failover takes longer and needs a longer [`Backoff`].
    fn default() -> Self {
        Self {
            base: Duration::from_millis(50),
            cap: Duration::from_secs(2),
            tries: 8,
            call_timeout: Duration::from_secs(10),
        }
    }
}

impl Backoff {
    /// The longest wait after `failures` failures.
    #[must_use]
    pub fn ceiling(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }

    /// A random wait after `failures` failures: anything up to [`Backoff::ceiling`].
    #[must_use]
    pub fn wait(&self, failures: u32) -> Duration {
        self.ceiling(failures).mul_f64(rand::rng().random::<f64>())
    }

    /// A random wait for loops without a bound on their tries: never zero.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        self.wait(failures).max(SHORTEST_PAUSE)
    }

    pub(crate) const fn failures(&self) -> Failures<'_> {
        Failures {
            backoff: self,
            count: 0,
        }
    }

    pub(crate) async fn in_time<T, X>(
        &self,
        call: impl Future<Output = Result<T, X>>,
    ) -> Result<T, Error>
    where
        Error: From<X>,
    {
        let answer = timeout(self.call_timeout, call).await;
        Ok(answer.map_err(|_| Error::TimedOut)??)
    }

    /// Runs `call` until it succeeds, fails with an error that is not [retryable](Error::is_retryable), or has used up
    /// the tries.
    ///
    /// `call` is one call of this crate, or a whole transaction: anything that may be run again from its beginning. If
    /// its future is dropped, at a timeout or because `retry` is dropped, the call may or may not have taken effect.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::{Backoff, Scope};
    ///
    /// let key = Scope::new("payments.create").key(&idempotency_key);
    /// let derived = Backoff::default().retry(|| key.derive(&pool, "charge")).await?;
    /// assert!(derived.len() <= 255);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The last error; [`Error::TimedOut`] if the last try timed out.
    pub async fn retry<T, Fut>(&self, mut call: impl FnMut() -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = Result<T, Error>>,
    {
        let mut failures = self.failures();
        loop {
            match self.in_time(call()).await {
                Err(error) => failures.wait(error, Error::is_retryable).await?,
                answer => return answer,
            }
        }
    }

    /// Calls another service, at most `tries` times. After [`Failure::Retry`], waits for its `retry_after` plus a
    /// random time and calls again. Any other failure, or a `retry_after` above `cap`, ends the calls at once.
    ///
    /// Return `Retry` if the service did nothing, or if it dedupes by the key that was sent; `Unknown` if the service
    /// may have acted; `Abort` for a [final](crate::http::is_final) status other than 404 and 405.
    ///
    /// # Errors
    /// The last failure.
    pub async fn foreign<T, Fut>(&self, mut call: impl FnMut() -> Fut) -> Result<T, Failure>
    where
        Fut: Future<Output = Result<T, Failure>>,
    {
        for failures in 1..self.tries {
            let after = match call().await {
                Err(Failure::Retry { retry_after, .. }) if retry_after <= Some(self.cap) => {
                    retry_after.unwrap_or_default()
                }
                ended => return ended,
            };
            sleep(self.wait(failures).saturating_add(after)).await;
        }
        call().await
    }

    /// Makes the write that ends a lease. Without this write others wait until the lease expires, so it is retried for
    /// the lease's length, at most `LONGEST_INSISTENCE`, at least one `call_timeout`, however many `tries` that takes.
    pub(crate) async fn insist<T, F: Future<Output = Result<T, Error>>>(
        &self,
        lease: Duration,
        call: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let enough = lease.min(LONGEST_INSISTENCE).max(self.call_timeout);
        Ok(self.until_answered(enough, call).await?.1)
    }

    /// Like `insist`, for a write that succeeds once per token: if a retry gets `ON006`, an earlier try has succeeded.
    pub(crate) async fn insist_once<F: Future<Output = Result<(), Error>>>(
        &self,
        lease: Duration,
        mut call: impl FnMut() -> F,
    ) -> Result<(), Error> {
        let mut tries = 0;
        let counted = || {
            tries += 1;
            call()
        };
        match self.insist(lease, counted).await {
            Err(error) if error.kind() == Kind::AlreadyDone && tries > 1 => Ok(()),
            ended => ended,
        }
    }

    /// Like `retry`, but retries for `enough` time, also after `Overloaded` and `ReadOnly`. Returns the answer and the
    /// time at which its call was sent. When the time is over, returns the last error other than `TimedOut`, if any.
    pub(crate) async fn until_answered<T, F: Future<Output = Result<T, Error>>>(
        &self,
        enough: Duration,
        mut call: impl FnMut() -> F,
    ) -> Result<(Instant, T), Error> {
        let (began, mut failures, mut last) = (Instant::now(), self.failures(), Error::TimedOut);
        loop {
            let sent = Instant::now();
            let error = match self.in_time(call()).await {
                Err(error) if error.may_pass() => error,
                answer => return Ok((sent, answer?)),
            };
            let over = began.elapsed() >= enough;
            if !over {
                failures.pause(&error).await;
            }
            if !matches!(error, Error::TimedOut) {
                last = error;
            }
            if over {
                return Err(last);
            }
        }
    }
}

impl Failures<'_> {
    /// Waits after a failure. If the error is final or the tries are used up, returns the error without a wait.
    pub(crate) async fn wait(
        &mut self,
        error: Error,
        again: fn(&Error) -> bool,
    ) -> Result<(), Error> {
        self.count += 1;
        if self.count >= self.backoff.tries || !again(&error) {
            return Err(error);
        }
        self.sleep(&error, self.backoff.wait(self.count)).await;
        Ok(())
    }

    /// Waits after a failure in a loop without a bound on its tries.
    pub(crate) async fn pause(&mut self, error: &Error) {
        self.count += 1;
        self.sleep(error, self.backoff.pause(self.count)).await;
    }

    async fn sleep(&self, error: &Error, wait: Duration) {
        if self.count == self.backoff.tries {
            tracing::warn!(%error, failures = self.count, "a call still fails; trying again");
        }
        tracing::debug!(%error, failures = self.count, ?wait, "trying again");
        sleep(wait).await;
    }
}

#[cfg(test)]
#[path = "../tests/unit/retry.rs"]
mod tests;

//! Owns waiting between attempts: exponential backoff with full jitter.
//!
//! Invariant: a call is repeated only after an error that says so ([`Error::is_retryable`]), a
//! bounded number of times, and never without a random wait, so that callers who failed together do
//! not come back together.

use std::future::Future;
use std::time::Duration;

use rand::Rng;

use crate::Error;

/// How often and how patiently to try again.
///
/// Before try `n + 1` it waits a random time between nothing and `base · 2^(n−1)`, at most `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest first wait.
    pub base: Duration,
    /// The longest wait of all.
    pub cap: Duration,
    /// How many times to try in all; 1 means once, without a retry. 0 counts as 1.
    pub tries: u32,
    /// How long one call may take before it counts as unanswered ([`Error::TimedOut`]).
    pub call_timeout: Duration,
}

impl Default for Backoff {
    /// Eight tries with waits of 50 ms to 2 s: about four seconds of a database that restarts.
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

    /// Runs `call` until it succeeds, fails for good, or the tries are used up.
    ///
    /// `call` is anything that may be run again from its beginning: one call of this crate, or a
    /// whole transaction.
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
    /// The last error; [`Error::TimedOut`] if the last try was not answered in time.
    pub async fn retry<T, F, Fut>(&self, mut call: F) -> Result<T, Error>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let mut failures = 0;
        loop {
            let answer = tokio::time::timeout(self.call_timeout, call()).await;
            let error = match answer.unwrap_or(Err(Error::TimedOut)) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            failures += 1;
            if failures >= self.tries || !error.is_retryable() {
                return Err(error);
            }
            let wait = self.wait(failures);
            tracing::debug!(%error, failures, ?wait, "trying again");
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const QUICK: Backoff = Backoff {
        base: Duration::from_millis(2),
        cap: Duration::from_millis(5),
        tries: 4,
        call_timeout: Duration::from_millis(20),
    };

    #[test]
    fn waits_double_up_to_the_cap_and_are_jittered_below_it() {
        let backoff = Backoff {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(1),
            ..QUICK
        };
        let ceilings: Vec<u128> = (1..=6).map(|n| backoff.ceiling(n).as_millis()).collect();
        assert_eq!(ceilings, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.ceiling(u32::MAX), backoff.cap);
        let waits: Vec<Duration> = (0..200).map(|_| backoff.wait(4)).collect();
        assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(800)));
        assert!(waits.iter().any(|wait| *wait < Duration::from_millis(400)));
        assert!(waits.iter().any(|wait| *wait > Duration::from_millis(400)));
    }

    #[tokio::test]
    async fn an_unanswered_call_is_tried_as_often_as_said_and_a_final_error_once() {
        let calls = Cell::new(0);
        let never = QUICK.retry(|| {
            calls.set(calls.get() + 1);
            std::future::pending::<Result<(), Error>>()
        });
        assert!(matches!(never.await, Err(Error::TimedOut)));
        assert_eq!(calls.replace(0), 4);

        let refused = QUICK.retry(|| {
            calls.set(calls.get() + 1);
            std::future::ready(Err::<(), _>(Error::Answer("no".into())))
        });
        assert!(matches!(refused.await, Err(Error::Answer(_))));
        assert_eq!(calls.get(), 1);
    }

    #[tokio::test]
    async fn it_ends_with_the_first_success() {
        let calls = Cell::new(0);
        let third = QUICK.retry(|| {
            calls.set(calls.get() + 1);
            let calls = calls.get();
            async move {
                if calls < 3 {
                    Err(Error::TimedOut)
                } else {
                    Ok(calls)
                }
            }
        });
        assert!(matches!(third.await, Ok(3)));
    }
}

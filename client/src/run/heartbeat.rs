//! Owns the heartbeat: it extends a lease while the work runs, and notices its loss.
//!
//! Invariant: the work never runs past the time up to which its lease is known to be alive. That
//! time counts from before each extension was sent, so it is never later than the server's.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{Autocommit, Backoff, Error, Executor, Kind, Lease};

/// The shortest time between two beats, however short the lease.
const SHORTEST_BEAT: Duration = Duration::from_millis(10);

/// A lease that a heartbeat extends.
pub(super) trait Leased {
    /// Its name in the log, without payloads.
    fn name(&self) -> String;

    /// How long the lease lasted when it was given.
    fn lease_left(&self) -> Duration;

    /// Renews it by its first length; returns the time left.
    fn renew<E: Executor>(&self, exec: &E) -> impl Future<Output = Result<Duration, Error>> + Send;
}

impl Leased for Lease {
    fn name(&self) -> String {
        format!("{:?}, attempt {}", self.key(), self.attempt())
    }

    fn lease_left(&self) -> Duration {
        Self::lease_left(self)
    }

    fn renew<E: Executor>(&self, exec: &E) -> impl Future<Output = Result<Duration, Error>> + Send {
        self.extend(exec, None)
    }
}

/// A lease, and the time up to which it is known to be alive.
pub(super) struct Heartbeat<'a, E, L> {
    pub(super) exec: &'a E,
    pub(super) backoff: &'a Backoff,
    pub(super) lease: &'a L,
    /// When the claim was sent.
    pub(super) since: Instant,
}

impl<E: Autocommit, L: Leased> Heartbeat<'_, E, L> {
    /// Extends the lease at every third of it; returns only when it is lost.
    ///
    /// This future may be dropped: an extension that is on its way may or may not take effect.
    pub(super) async fn until_lost(&self) {
        let (mut asked, mut left) = (self.since, self.lease.lease_left());
        loop {
            let ends = asked + left;
            sleep_until(asked + (left / 3).max(SHORTEST_BEAT)).await;
            (asked, left) = match timeout_at(ends, self.beat()).await {
                Ok(Ok(granted)) => granted,
                Ok(Err(error)) if error.kind() == Kind::AlreadyDone => {
                    // The work has ended the lease itself.
                    return std::future::pending().await;
                }
                Ok(Err(error)) => {
                    tracing::warn!(lease = self.lease.name(), %error,
                        "the lease is lost; the work is stopped");
                    return;
                }
                Err(_) => {
                    tracing::warn!(
                        lease = self.lease.name(),
                        "the lease expired before it could be extended; the work is stopped"
                    );
                    return;
                }
            };
            if left.is_zero() {
                tracing::warn!(
                    lease = self.lease.name(),
                    "the lease has reached its longest life; the work is stopped"
                );
                return;
            }
        }
    }

    /// One extension, retried until it is answered; the caller bounds it by the end of the lease.
    async fn beat(&self) -> Result<(Instant, Duration), Error> {
        let mut failures = 0;
        loop {
            let sent = Instant::now();
            let error = match self.backoff.in_time(self.lease.renew(self.exec)).await {
                Ok(left) => return Ok((sent, left)),
                Err(error) if error.may_pass() => error,
                Err(error) => return Err(error),
            };
            failures += 1;
            tracing::debug!(lease = self.lease.name(), %error, failures, "a heartbeat failed");
            sleep(self.backoff.pause(failures)).await;
        }
    }
}

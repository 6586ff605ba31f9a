//! Owns the heartbeat: it extends a lease while the work runs, and notices the loss of the lease.
//!
//! Invariant: the work is dropped at the latest at the known end of its lease. This end is counted from the time at
//! which the claim or extension was sent, so it is never later than the end of the lease on the server.

use std::future::{Future, pending};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{Autocommit, Backoff, Error, Executor, Kind, Lease};

/// The shortest time between two beats, however short the lease.
const SHORTEST_BEAT: Duration = Duration::from_millis(10);

/// A lease that a heartbeat extends.
pub(super) trait Leased {
    /// The name of the lease in the log, without payloads.
    fn name(&self) -> String;

    /// The remaining length of the lease when the claim was answered.
    fn lease_left(&self) -> Duration;

    /// Renews the lease by the length that the claim or take asked for; returns the time left.
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

/// Extends a lease each time a third of it has passed; returns only when the lease is lost. `since`: when the claim was
/// sent.
///
/// If this future is dropped, an extension that is on its way may or may not take effect.
pub(super) async fn until_lost<E: Autocommit, L: Leased>(
    exec: &E,
    backoff: &Backoff,
    lease: &L,
    since: Instant,
) {
    let (mut asked, mut left) = (since, lease.lease_left());
    loop {
        let ends = asked + left;
        sleep_until(asked + (left / 3).max(SHORTEST_BEAT)).await;
        let beat = backoff.until_answered(Duration::MAX, || lease.renew(exec));
        let why = match timeout_at(ends, beat).await {
            Ok(Ok((_, Duration::ZERO))) => {
                "it has been extended up to the longest time allowed".to_owned()
            }
            Ok(Ok(granted)) => {
                (asked, left) = granted;
                continue;
            }
            // The work has ended the lease itself.
            Ok(Err(error)) if error.kind() == Kind::AlreadyDone => return pending().await,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it expired before it could be extended".to_owned(),
        };
        let lease = lease.name();
        tracing::warn!(lease, why, "the lease is lost; the work is stopped");
        return;
    }
}

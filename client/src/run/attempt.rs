//! Owns one attempt at a key: the work, its heartbeat, and the write that ends the attempt.
//!
//! Invariant: an attempt stores its outcome, or loses its lease, or returns the error of the write that should have
//! stored the outcome (after a panic: logs this error). After such an error the lease expires.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::heartbeat::until_lost;
use super::outcome::{Done, Failure, Outcome};
use super::panics::caught;
use super::{saying, storable_wait};
use crate::{Autocommit, Backoff, Error, Kind, Lease};

/// The reason of the release when the work is told to stop.
pub(super) const STOPPED: &str = "the worker was told to stop";

pub(super) struct Attempt<'a, E> {
    pub(super) exec: &'a E,
    pub(super) backoff: &'a Backoff,
    pub(super) lease: &'a Lease,
    /// The time until the key is due again after a failure; a longer `retry_after` of the failure applies instead.
    pub(super) deferred: Option<Duration>,
}

pub(super) enum End {
    /// The request's outcome: ran, aborted, released, parked or lease lost.
    Outcome(Outcome),
    /// The key was finished before with this token, for example in a commit whose answer was lost.
    Finished,
    /// The work failed with a retryable error, or repeated a committed write (`ON006`). The key is released; a new
    /// attempt goes on from the recovery point.
    Again(Error),
    /// A call failed for good during the work; the key is released.
    Failed(Error),
}

impl From<Outcome> for End {
    fn from(outcome: Outcome) -> Self {
        Self::Outcome(outcome)
    }
}

impl<E: Autocommit> Attempt<'_, E> {
    /// Runs the work until it ends, loses its lease, or `stop` completes. `since`: when the claim was sent.
    pub(super) async fn run(
        &self,
        since: Instant,
        work: impl Future<Output = Result<Done, Failure>>,
        stop: impl Future<Output = ()>,
    ) -> Result<End, Error> {
        let ended = tokio::select! {
            biased;
            ended = caught(work) => ended,
            () = until_lost(self.exec, self.backoff, self.lease, since) => return Ok(Outcome::LeaseLost.into()),
            () = stop => return self.give_back().await,
        };
        match ended {
            Ok(ended) => self.settle(ended).await,
            Err(panic) => {
                let error = format!("the work panicked: {panic}");
                if let Err(error) = self.release(&error, self.deferred).await {
                    tracing::warn!(key = ?self.lease.key(), %error, "the key could not be released");
                }
                panic.resume()
            }
        }
    }

    /// Releases the key, due at once, with the error STOPPED.
    pub(super) async fn give_back(&self) -> Result<End, Error> {
        let ended = Outcome::Released {
            error: STOPPED.to_owned(),
            retry_after: None,
        };
        self.end_as(ended, self.release(STOPPED, None).await)
    }

    async fn settle(&self, ended: Result<Done, Failure>) -> Result<End, Error> {
        let (exec, lease) = (self.exec, self.lease);
        match ended {
            Ok(Done::Stored(answer)) => Ok(Outcome::Ran(answer).into()),
            Ok(Done::Answer(answer)) => {
                let complete = || lease.complete(exec, &answer);
                let written = self.backoff.insist_once(lease.lease_left(), complete).await;
                self.end_as(Outcome::Ran(answer), written)
            }
            Err(Failure::Abort(answer)) => {
                let abort = || lease.abort(exec, &answer);
                let written = self.backoff.insist_once(lease.lease_left(), abort).await;
                self.end_as(Outcome::Aborted(answer), written)
            }
            Err(Failure::Retry { error, retry_after }) => {
                let retry_after = retry_after.max(self.deferred).map(storable_wait);
                let written = self.release(&error, retry_after).await;
                self.end_as(Outcome::Released { error, retry_after }, written)
            }
            Err(Failure::Unknown { reason }) => {
                tracing::warn!(key = ?lease.key(), attempt = lease.attempt(), %reason, "parked");
                let park = |reason: Option<String>| async move {
                    lease
                        .park(exec, reason.as_deref().unwrap_or_default())
                        .await
                };
                let written = saying(self.backoff, lease.lease_left(), Some(&reason), park).await;
                let attempt = lease.attempt();
                self.end_as(Outcome::Parked { attempt }, written)
            }
            Err(Failure::Error(error)) => self.settle_error(error).await,
        }
    }

    /// Releases the key after a call of the work failed. The work's writes since the last recovery point may or may not
    /// be committed.
    async fn settle_error(&self, error: Error) -> Result<End, Error> {
        // The error may be about another lease, so the key is always released. On a finished key this gets ON006.
        let written = self.release(&error.to_string(), self.deferred).await;
        let ended = match error.is_retryable() || error.kind() == Kind::AlreadyDone {
            true => End::Again(error),
            false => End::Failed(error),
        };
        self.end_as(ended, written)
    }

    fn end_as(&self, ended: impl Into<End>, written: Result<(), Error>) -> Result<End, Error> {
        match written {
            Ok(()) => Ok(ended.into()),
            Err(error) => self.refused(error),
        }
    }

    /// The end of an attempt whose last write failed.
    fn refused(&self, error: Error) -> Result<End, Error> {
        match error.kind() {
            Kind::LeaseLost => Ok(Outcome::LeaseLost.into()),
            Kind::AlreadyDone => Ok(End::Finished),
            _ => {
                tracing::warn!(key = ?self.lease.key(), %error, "the end of the attempt could not be stored");
                Err(error)
            }
        }
    }

    async fn release(&self, error: &str, after: Option<Duration>) -> Result<(), Error> {
        let release = |error: Option<String>| async move {
            let (lease, error) = (self.lease, error.as_deref());
            lease.release(self.exec, error, after).await
        };
        saying(self.backoff, self.lease.lease_left(), Some(error), release).await
    }
}

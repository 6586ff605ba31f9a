//! Owns one attempt at a key: the work beside its heartbeat, and the key's end as the work says.
//!
//! Invariant: an attempt that is over has told the server so, or has lost the lease, or says in its error
//! that the server could not be told; then the lease runs out by itself.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::heartbeat::Heartbeat;
use super::outcome::{Done, Failure};
use super::panics::caught;
use super::{storable, storable_wait};
use crate::{Autocommit, Backoff, Error, Kind, Lease, Response};

/// Why the key is given back when the attempt is told to stop.
const STOPPED: &str = "the worker was told to stop";

/// A key that is held, and what to do with it.
pub(super) struct Attempt<'a, E> {
    pub(super) exec: &'a E,
    pub(super) backoff: &'a Backoff,
    pub(super) lease: &'a Lease,
    /// When a key that failed is due again, where the work does not say; `None`: at once.
    pub(super) put_off: Option<Duration>,
}

/// How an attempt ended.
pub(super) enum End {
    Ran(Response),
    Aborted(Response),
    Released {
        error: String,
        retry_after: Option<Duration>,
    },
    Parked,
    LeaseLost,
    /// This token has finished the key: a commit whose answer was lost.
    Finished,
    /// The database failed under the work, or had done a write of it before, and the key is given back: a
    /// new attempt finds out.
    Again(Error),
    /// A call failed for good under the work; the key is given back.
    Failed(Error),
}

impl<E: Autocommit> Attempt<'_, E> {
    /// Runs the work until it ends, loses its lease, or `stop` completes. `since`: when the claim was sent.
    pub(super) async fn run(
        &self,
        since: Instant,
        work: impl Future<Output = Result<Done, Failure>>,
        stop: impl Future<Output = ()>,
    ) -> Result<End, Error> {
        let heartbeat = Heartbeat {
            exec: self.exec,
            backoff: self.backoff,
            lease: self.lease,
            since,
        };
        let ended = tokio::select! {
            biased;
            ended = caught(work) => ended,
            () = heartbeat.until_lost() => return Ok(End::LeaseLost),
            () = stop => return self.give_back().await,
        };
        match ended {
            Ok(ended) => self.settle(ended).await,
            Err(panic) => {
                let error = format!("the work panicked: {panic}");
                if let Err(error) = self.release(&error, self.put_off).await {
                    tracing::warn!(key = ?self.lease.key(), %error, "could not be given back");
                }
                panic.resume()
            }
        }
    }

    /// Releases the key at once: nothing was wrong with it.
    pub(super) async fn give_back(&self) -> Result<End, Error> {
        let ended = End::Released {
            error: STOPPED.to_owned(),
            retry_after: None,
        };
        self.end_as(ended, self.release(STOPPED, None).await)
    }

    /// Ends the key as the work says.
    async fn settle(&self, ended: Result<Done, Failure>) -> Result<End, Error> {
        let (exec, lease) = (self.exec, self.lease);
        match ended {
            Ok(Done::Stored(answer)) => Ok(End::Ran(answer)),
            Ok(Done::Answer(answer)) => {
                let complete = || lease.complete(exec, &answer);
                let written = self.backoff.insist_once(complete).await;
                self.end_as(End::Ran(answer), written)
            }
            Err(Failure::Abort(answer)) => {
                let abort = || lease.abort(exec, &answer);
                let written = self.backoff.insist_once(abort).await;
                self.end_as(End::Aborted(answer), written)
            }
            Err(Failure::Retry { error, retry_after }) => {
                let retry_after = retry_after.or(self.put_off);
                let written = self.release(&error, retry_after).await;
                self.end_as(End::Released { error, retry_after }, written)
            }
            Err(Failure::Unknown { reason }) => {
                tracing::warn!(key = ?lease.key(), attempt = lease.attempt(), %reason, "parked");
                let reason = storable(&reason);
                let park = || lease.park(exec, &reason);
                self.end_as(End::Parked, self.backoff.insist(park).await)
            }
            Err(Failure::Error(error)) => self.settle_error(error).await,
        }
    }

    /// A call failed under the work. What it had done since the last recovery point may or
    /// may not have been committed; a new attempt finds out.
    async fn settle_error(&self, error: Error) -> Result<End, Error> {
        if error.kind() == Kind::LeaseLost {
            return self.refused(error);
        }
        // Where the work's own transaction had finished the key, the release is told so.
        let written = self.release(&error.to_string(), self.put_off).await;
        let ended = match error.is_retryable() || error.kind() == Kind::AlreadyDone {
            true => End::Again(error),
            false => End::Failed(error),
        };
        self.end_as(ended, written)
    }

    fn end_as(&self, ended: End, written: Result<(), Error>) -> Result<End, Error> {
        match written {
            Ok(()) => Ok(ended),
            Err(error) => self.refused(error),
        }
    }

    /// A write with the token was refused, or the database stayed away.
    fn refused(&self, error: Error) -> Result<End, Error> {
        match error.kind() {
            Kind::LeaseLost => Ok(End::LeaseLost),
            Kind::AlreadyDone => Ok(End::Finished),
            _ => {
                tracing::warn!(key = ?self.lease.key(), %error, "the end of the attempt could not be stored");
                Err(error)
            }
        }
    }

    async fn release(&self, error: &str, after: Option<Duration>) -> Result<(), Error> {
        let (error, after) = (storable(error), after.map(storable_wait));
        self.backoff
            .insist(|| self.lease.release(self.exec, Some(&error), after))
            .await
    }
}

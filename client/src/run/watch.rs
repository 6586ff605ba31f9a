//! Owns the state of a running action: the time at which the last successful claim or extension of the lease was sent,
//! and whether the row is being cancelled.
//!
//! Invariant: `cancelling` is never reset, since nothing clears a cancel flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::heartbeat::{Leased, until_lost};
use super::job::JobFailure;
use super::panics::caught;
use super::saying;
use super::test_mode::OpenTransaction;
use crate::{Action, ActionEnd, Backoff, Begin, Error, Executor, Json, Kind};

pub(super) struct Watch<'a, P> {
    pub(super) pool: &'a P,
    pub(super) backoff: &'a Backoff,
    pub(super) action: &'a Action,
    /// When the claim was sent.
    since: Instant,
    cancelling: AtomicBool,
    heard: Mutex<Instant>,
}

impl<'a, P: Begin> Watch<'a, P> {
    pub(super) fn new(
        pool: &'a P,
        backoff: &'a Backoff,
        action: &'a Action,
        since: Instant,
    ) -> Self {
        Self {
            pool,
            backoff,
            action,
            since,
            cancelling: AtomicBool::new(false),
            heard: Mutex::new(since),
        }
    }

    pub(super) fn is_cancelling(&self) -> bool {
        self.cancelling.load(Ordering::Relaxed)
    }

    /// The time since the last successful claim or extension of the lease was sent.
    pub(super) fn silence(&self) -> Duration {
        self.heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }

    /// Extends the lease and notes a cancellation.
    pub(super) async fn look<E: Executor>(&self, exec: &E) -> Result<Duration, Error> {
        let asked = Instant::now();
        let extended = self.backoff.in_time(self.action.extend(exec, None)).await?;
        if extended.cancelling {
            self.cancelling.store(true, Ordering::Relaxed);
        }
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        *heard = asked.max(*heard);
        Ok(extended.lease_left)
    }

    pub(super) async fn begin(&self) -> Result<OpenTransaction, Error> {
        self.backoff.in_time(self.pool.begin()).await
    }

    pub(super) async fn finish(
        &self,
        transaction: &OpenTransaction,
        patch: Option<&Json>,
    ) -> Result<ActionEnd, Error> {
        self.backoff
            .in_time(self.action.finish(transaction, patch))
            .await
    }

    /// Commits a transaction that has extended the lease or finished the action. If the commit has no answer, waits
    /// for the transaction's end and extends the lease. If this extension gets `AlreadyDone`, the action is finished.
    pub(super) async fn commit(&self, transaction: OpenTransaction) -> Result<(), Error> {
        let committed = self.backoff.in_time(transaction.end()).await;
        match &committed {
            Err(error) if error.kind() == Kind::Unavailable => {}
            _ => return committed,
        }
        let look = || self.look(self.pool);
        match self.backoff.until_answered(Duration::MAX, look).await {
            Ok(_) => committed,
            Err(error) if error.kind() == Kind::AlreadyDone => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Runs the work beside its heartbeat; `None`: the lease is lost. After a panic, releases the row and resumes the
    /// panic.
    pub(super) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let ended = tokio::select! {
            biased;
            ended = caught(work) => ended,
            () = until_lost(self.pool, self.backoff, self, self.since) => return None,
        };
        match ended {
            Ok(ended) => Some(ended),
            Err(panic) => {
                let reason = format!("the work panicked: {panic}");
                if let Err(error) = self.give_back(Some(&reason)).await {
                    tracing::warn!(row = ?self.action.row(), %error, "the row could not be released");
                }
                panic.resume()
            }
        }
    }

    /// Releases the row; `false` if the lease was lost.
    pub(super) async fn give_back(&self, reason: Option<&str>) -> Result<bool, Error> {
        let release = |reason: Option<String>| async move {
            self.action.release(self.pool, reason.as_deref()).await
        };
        match saying(self.backoff, self.lease_left(), reason, release).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::LeaseLost => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Releases the row after a failure; `None` if the lease was lost.
    pub(super) async fn fail(&self, failure: JobFailure) -> Result<Option<String>, Error> {
        let (reason, error) = match failure {
            JobFailure::Release(reason) => (reason, None),
            JobFailure::Error(error) => (error.to_string(), Some(error)),
        };
        match (self.give_back(Some(&reason)).await, error) {
            (Ok(false), _) => Ok(None),
            (Ok(true), None) => Ok(Some(reason)),
            (Ok(true), Some(error)) => Err(error),
            (Err(refusal), None) => Err(refusal),
            // The job's error says that a lease was lost. It was the row's lease, or another one such as a key's.
            // The row's lease ends in both cases, because its release failed and nothing extends it.
            (Err(_), Some(error)) if error.kind() == Kind::LeaseLost => Ok(None),
            (Err(refusal), Some(error)) => {
                tracing::warn!(row = ?self.action.row(), error = %refusal, "the row could not be released");
                Err(error)
            }
        }
    }
}

impl<P: Begin> Leased for Watch<'_, P> {
    fn name(&self) -> String {
        format!("{:?}, step {}", self.action.row(), self.action.step_key())
    }

    fn lease_left(&self) -> Duration {
        self.action.lease_left()
    }

    fn renew<E: Executor>(&self, exec: &E) -> impl Future<Output = Result<Duration, Error>> + Send {
        self.look(exec)
    }
}

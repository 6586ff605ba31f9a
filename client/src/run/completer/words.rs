//! Owns the interface between the completer, its handler and its caller.

use std::future::Future;
use std::time::Duration;

use crate::run::tasks::counted;
use crate::{Abandoned, Done, Error, Failure, Key};

/// A handler of abandoned requests. A closure `|abandoned: Abandoned| async move { ... }` is a handler that implements
/// only [`Complete::complete`].
pub trait Complete: Send + Sync + 'static {
    /// Finishes one request, from the last recovery point. Call the same function as the request path,
    /// with the lease and the stored request.
    ///
    /// The future is dropped when the lease is lost, or when it is not done at the end of the completer's grace time.
    fn complete(&self, abandoned: Abandoned) -> impl Future<Output = Result<Done, Failure>> + Send;

    /// Called once for each key that was taken, with the outcome. Use this call to count and to alert.
    fn ended(&self, key: &Key, completion: &Completion) {
        let _ = (key, completion);
    }
}

impl<F, Fut> Complete for F
where
    F: Fn(Abandoned) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Done, Failure>> + Send,
{
    fn complete(&self, abandoned: Abandoned) -> impl Future<Output = Result<Done, Failure>> + Send {
        self(abandoned)
    }
}

/// The outcome of an abandoned request. A `match` must handle each case.
#[derive(Debug)]
pub enum Completion {
    /// The request has its answer; a client that retries gets it as a replay.
    Completed,
    /// The request failed for good; the failure is its answer.
    Aborted,
    /// The key is released: the request failed with [`Failure::Retry`] or [`Failure::Error`], the handler panicked, or
    /// the completer was told to stop.
    Released {
        /// What went wrong.
        error: String,
        /// The time until the key is due again; `None`: at once.
        retry_after: Option<Duration>,
    },
    /// The outcome of the attempt is unknown; a verdict is needed.
    Parked {
        /// The attempt that is parked.
        attempt: i32,
    },
    /// Another holder has the lease, or the lease could not be kept alive; the handler was stopped.
    LeaseLost,
    /// The attempt's last write failed. Unless the write was committed, the key is taken again after the lease expired.
    Unsettled(Error),
}

/// The counts of a [`Completer`](crate::Completer). A key that was taken twice is counted twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Keys that were finished with their answer.
    pub completed: u64,
    /// Keys whose request failed for good; the failure is the answer.
    pub aborted: u64,
    /// Keys that were released, to be retried.
    pub released: u64,
    /// Keys that wait for a verdict.
    pub parked: u64,
    /// Keys whose lease was lost, or whose end could not be stored.
    pub lost: u64,
}

impl Completed {
    pub(super) fn of(completion: &Completion) -> Self {
        let mut counts = Self::default();
        match completion {
            Completion::Completed => counts.completed = 1,
            Completion::Aborted => counts.aborted = 1,
            Completion::Released { .. } => counts.released = 1,
            Completion::Parked { .. } => counts.parked = 1,
            Completion::LeaseLost | Completion::Unsettled(_) => counts.lost = 1,
        }
        counts
    }
}

counted!(Completed: completed, aborted, released, parked, lost);

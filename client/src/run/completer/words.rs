//! Owns the words between the completer, its handler and its caller.

use std::future::Future;
use std::ops::AddAssign;
use std::time::Duration;

use crate::{Abandoned, Done, Error, Failure, Key};

/// What is done with abandoned requests. A closure `|abandoned: Abandoned| async move { ... }` is one,
/// for those who need nothing but [`Complete::complete`].
pub trait Complete: Send + Sync + 'static {
    /// Brings one request to its end, from wherever the last attempt got to: the same function that the
    /// request path runs, with the lease and with what is read of the stored request.
    ///
    /// The future is dropped when the lease is lost, or when it is not done at the end of the completer's
    /// grace time.
    fn complete(&self, abandoned: Abandoned) -> impl Future<Output = Result<Done, Failure>> + Send;

    /// A request is over here. To count and to alert; called once for each key that was taken.
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

/// What became of an abandoned request. A `match` has to say what happens in each case.
#[derive(Debug)]
pub enum Completion {
    /// It has its answer; its client gets it as a replay, should it ever come back.
    Completed,
    /// It failed for good, and that is its answer.
    Aborted,
    /// It failed in a way that is worth another attempt, or the completer was told to stop; the key is
    /// given back.
    Released {
        /// What went wrong.
        error: String,
        /// When it is due again; `None`: at once.
        retry_after: Option<Duration>,
    },
    /// Nobody knows how the attempt ended; a verdict is needed.
    Parked {
        /// The attempt that is parked.
        attempt: i32,
    },
    /// The lease went to somebody else, or could not be kept alive; the handler was stopped.
    LeaseLost,
    /// The database was not there to be told the end; the key comes again when its lease has run out,
    /// unless that had been stored.
    Unsettled(Error),
}

/// What a [`Completer`](crate::Completer) did until it was told to stop; each is a count of takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// They have their answer.
    pub completed: u64,
    /// Failed for good, which is their answer.
    pub aborted: u64,
    /// Given back, to be tried again.
    pub released: u64,
    /// Waiting for a verdict.
    pub parked: u64,
    /// Left to their lease, or to somebody else who has it.
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

impl AddAssign for Completed {
    fn add_assign(&mut self, other: Self) {
        self.completed += other.completed;
        self.aborted += other.aborted;
        self.released += other.released;
        self.parked += other.parked;
        self.lost += other.lost;
    }
}

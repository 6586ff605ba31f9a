//! Owns the results of a job: `JobFailure` goes from the job to the runner, `JobOutcome` from the runner to the caller.

use std::fmt::Display;
use std::time::Duration;

use crate::{Cancelled, Error};

/// The failure of a part of a job, or of an action's work. An item that fails for good is no failure of the job: record
/// it in [`Job::save`](super::Job::save).
#[derive(Debug)]
pub enum JobFailure {
    /// The row is released, with this reason; the next claim goes on with the remaining items.
    Release(String),
    /// A call failed; `?` makes this. After a lost race or connection the runner tries again from the last commit. A
    /// lost lease ends the run. Any other error, and the error of the last try, is returned after the row is released.
    Error(Error),
}

impl JobFailure {
    /// Asks for the release of the row, for this reason.
    pub fn release(reason: impl Display) -> Self {
        Self::Release(reason.to_string())
    }
}

/// `?` converts an error of the database or of JSON; for any other error write `.map_err(Error::other)?`. A
/// [`Failure`](crate::Failure) of a foreign call is not converted, because the call may have taken effect. If the other
/// side drops duplicates, return [`JobFailure::release`]. The row is released, and the next claim repeats the call.
impl<X: Into<Error>> From<X> for JobFailure {
    fn from(error: X) -> Self {
        Self::Error(error.into())
    }
}

/// The outcome of a job. A `match` must handle each case.
#[derive(Clone, Debug)]
pub enum JobOutcome {
    /// All items are done. The row now has the `successful_state` that the machine declares.
    Finished {
        /// The successful state.
        status: String,
        /// The row's version, where the machine has one.
        version: Option<i64>,
    },
    /// The job was cancelled, and is torn down.
    Cancelled(Cancelled),
    /// Another attempt has the row, or a sweep must still revert it, or the row or its machine is locked. Retry later.
    InProgress {
        /// The time to wait before asking again.
        retry_after: Duration,
    },
    /// The row is not in the step's status, or the step lacks this requester.
    Refused {
        /// The status that the row has.
        status: String,
    },
    /// There is no such row.
    NotFound,
    /// The step declares no claim state for this requester, so the job was not run.
    Unclaimed,
    /// The job asked for its release, or was told to stop; the next claim goes on with the remaining items.
    Released {
        /// The reason.
        error: String,
    },
    /// Another holder has the lease, or the lease could not be kept alive; this run was stopped. If the run's last
    /// commit was on its way when the lease ended, the job may be finished: look at the row.
    LeaseLost,
}

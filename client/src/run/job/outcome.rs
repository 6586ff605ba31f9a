//! Owns the words of a job's run: what the job says to the runner, and what the runner says to the
//! caller.

use std::fmt::Display;
use std::time::Duration;

use deadpool_postgres::PoolError;

use crate::{Cancelled, Error};

/// How a part of a job failed. An item that fails for good is no failure of the job: write it down
/// in [`Job::save`](super::Job::save).
#[derive(Debug)]
pub enum JobFailure {
    /// The job is given back, with this reason; the next claim goes on with what is not done.
    Release(String),
    /// A call failed, mostly one to the database; this is what `?` makes of it. After a lost race or
    /// a lost connection the runner asks for the next item again; any other error gives the job back
    /// and is handed on.
    Error(Error),
}

impl JobFailure {
    /// The job is given back because of this.
    pub fn release(reason: impl Display) -> Self {
        Self::Release(reason.to_string())
    }
}

impl From<Error> for JobFailure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<tokio_postgres::Error> for JobFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<PoolError> for JobFailure {
    fn from(error: PoolError) -> Self {
        Self::Error(error.into())
    }
}

/// What became of a job. A `match` has to say what happens in each case.
#[derive(Clone, Debug)]
pub enum JobOutcome {
    /// All items are done, and the row has its step's successful state.
    Finished {
        /// That state.
        status: String,
        /// The row's version, where the machine has one.
        version: Option<i64>,
    },
    /// It was being cancelled, and is torn down.
    Cancelled(Cancelled),
    /// Somebody else is at it: come back after this time.
    InProgress {
        /// When it is worth asking again.
        retry_after: Duration,
    },
    /// It is not in the step's status, or the step names no such requester.
    Refused {
        /// The status that the row has.
        status: String,
    },
    /// There is no such row.
    NotFound,
    /// The step declares no claim state for this requester: it is not run as an action.
    Unclaimed,
    /// The job gave itself back; the next claim goes on with what is not done.
    Released {
        /// Why.
        error: String,
    },
    /// The lease went to somebody else, or could not be kept alive; the job was stopped here.
    LeaseLost,
}

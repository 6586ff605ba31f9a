//! Owns the words of a run: what the work says to the runner, and what the runner says to the caller.

use std::time::Duration;

use deadpool_postgres::PoolError;

use crate::{Error, Response};

/// How the work ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// Here is the answer; the runner stores it.
    Answer(Response),
    /// This answer is stored already: the work called [`Lease::complete`](crate::Lease::complete)
    /// (or `abort`) in the transaction of its own writes, and committed it.
    Stored(Response),
}

impl From<Response> for Done {
    fn from(answer: Response) -> Self {
        Self::Answer(answer)
    }
}

/// How the work failed, and so what becomes of the key.
#[derive(Debug)]
pub enum Failure {
    /// Worth another attempt: the key is released, and the next claim resumes it.
    Retry {
        /// What went wrong; kept with the key.
        error: String,
        /// Not before this time; zero: at once.
        retry_after: Option<Duration>,
    },
    /// Nobody knows how a foreign call ended: the key is parked.
    Unknown {
        /// What is not known; kept with the key.
        reason: String,
    },
    /// It failed for good: this answer is stored and replayed.
    Abort(Response),
    /// A call failed, mostly one to the database; this is what `?` makes of it. After a lost race or
    /// a lost connection the key is released and the work runs again in a new attempt; a lost lease
    /// ends it; any other error releases the key and is handed on.
    Error(Error),
}

impl Failure {
    /// Worth another attempt, at once.
    pub fn retry(error: impl Into<String>) -> Self {
        Self::Retry {
            error: error.into(),
            retry_after: None,
        }
    }

    /// Worth another attempt after this time.
    pub fn retry_after(error: impl Into<String>, after: Duration) -> Self {
        Self::Retry {
            error: error.into(),
            retry_after: Some(after),
        }
    }

    /// Nobody knows.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown {
            reason: reason.into(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        Self::Error(error.into())
    }
}

/// What became of a request. A `match` has to say what happens in each case.
#[derive(Debug)]
pub enum Outcome {
    /// The work ran here, and this is its answer, stored.
    Ran(Response),
    /// The work ran here and failed for good; this answer is stored.
    Aborted(Response),
    /// It had run before; this is the stored answer.
    Replayed(Response),
    /// Somebody else is at it, or it is not due yet.
    InProgress {
        /// When it is worth asking again.
        retry_after: Duration,
    },
    /// The work failed in a way that is worth another attempt; the key is given back.
    Released {
        /// What went wrong.
        error: String,
        /// When it is due again, if the work said so.
        retry_after: Option<Duration>,
    },
    /// The lease went to somebody else, or could not be kept alive; the work was stopped.
    LeaseLost,
    /// Nobody knows how an attempt ended; a verdict is needed.
    Parked {
        /// The attempt that is parked.
        attempt: i32,
    },
    /// The same key came with a different request.
    Mismatched,
    /// It finished so long ago that its answer is no longer kept.
    Gone,
    /// The database was away and the caller chose to fail open: the work ran **without a key**.
    Unkeyed(Result<Response, Failure>),
}

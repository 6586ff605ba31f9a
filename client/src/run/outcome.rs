//! Owns the results of a run: `Done` and `Failure` go from the work to the runner, `Outcome` on to the caller.

use std::fmt::{self, Display};
use std::time::Duration;

use crate::{Claim, Error, Lease, Response};

/// The result of work that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The answer, which the runner stores.
    Answer(Response),
    /// An answer that is stored already: the work called [`Lease::complete`](crate::Lease::complete) (or `abort`) in
    /// the transaction of its own writes, and committed this transaction.
    Stored(Response),
}

impl From<Response> for Done {
    fn from(answer: Response) -> Self {
        Self::Answer(answer)
    }
}

/// The failure of the work, which decides what happens to the key.
#[derive(Debug)]
pub enum Failure {
    /// Worth another attempt: the key is released, and the next claim resumes it.
    Retry {
        /// What went wrong; kept with the key.
        error: String,
        /// The time until the key is due again, at most a day. If a completer's backoff is longer, the backoff applies.
        retry_after: Option<Duration>,
    },
    /// The outcome of a foreign call is unknown: the key is parked.
    Unknown {
        /// The reason; kept with the key.
        reason: String,
    },
    /// The request failed for good: this answer is stored and replayed.
    Abort(Response),
    /// A call failed, mostly a call to the database; `?` makes this. The key is released, unless its lease is lost.
    /// After a lost race, a lost connection or `ON006` the [`Runner`](crate::Runner) runs the work again in a new
    /// attempt; after any other error it returns the error.
    Error(Error),
}

impl Failure {
    /// A failure that is worth another attempt, at once.
    pub fn retry(error: impl Display) -> Self {
        Self::Retry {
            error: error.to_string(),
            retry_after: None,
        }
    }

    /// A failure that is worth another attempt after this time.
    pub fn retry_after(error: impl Display, after: Duration) -> Self {
        Self::Retry {
            error: error.to_string(),
            retry_after: Some(after),
        }
    }

    /// A failure after which the outcome of a foreign call is unknown.
    pub fn unknown(reason: impl Display) -> Self {
        Self::Unknown {
            reason: reason.to_string(),
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { error, .. } => f.write_str(error),
            Self::Unknown { reason } => write!(f, "outcome unknown: {reason}"),
            Self::Abort(answer) => write!(f, "refused: {}", answer.code),
            Self::Error(error) => error.fmt(f),
        }
    }
}

/// `?` converts an error of the database or of JSON; for any other error write `.map_err(Error::other)?`.
impl<X: Into<Error>> From<X> for Failure {
    fn from(error: X) -> Self {
        Self::Error(error.into())
    }
}

/// The outcome of a request. A `match` must handle each case.
#[derive(Debug)]
pub enum Outcome {
    /// The work ran here, and this is its stored answer. After [`Done::Stored`] the answer may be an abort.
    Ran(Response),
    /// The work ran here and failed for good; this answer is stored.
    Aborted(Response),
    /// The work had run before; this is the stored answer.
    Replayed(Response),
    /// Another attempt is running, or the key is not due yet.
    InProgress {
        /// The time to wait before asking again.
        retry_after: Duration,
    },
    /// The work failed in a way that is worth another attempt, or was told to stop; the key is released.
    Released {
        /// What went wrong.
        error: String,
        /// The time until the key is due again, if the work named one.
        retry_after: Option<Duration>,
    },
    /// Another holder has the lease, or the lease could not be kept alive; the work was stopped.
    LeaseLost,
    /// The outcome of an attempt is unknown, or the attempts are used up; a verdict is needed.
    Parked {
        /// The attempt that is parked.
        attempt: i32,
    },
    /// The same key came with a different request.
    Mismatched,
    /// The key finished so long ago that its answer is no longer kept.
    Gone,
    /// The database was unreachable and the caller chose to fail open: the work ran **without a key**.
    Unkeyed(Result<Response, Failure>),
}

impl Claim {
    /// The lease if the request is to be run; otherwise the request's outcome.
    pub(crate) fn into_lease(self) -> Result<Lease, Outcome> {
        Err(match self {
            Self::Claimed(lease) | Self::Resumed(lease) => return Ok(lease),
            Self::Replayed(answer) => Outcome::Replayed(answer),
            Self::InProgress { retry_after } => Outcome::InProgress { retry_after },
            Self::Mismatched => Outcome::Mismatched,
            Self::Gone => Outcome::Gone,
            Self::Parked { attempt } => Outcome::Parked { attempt },
        })
    }
}

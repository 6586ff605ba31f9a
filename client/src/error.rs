//! Owns the errors of this crate, and what to do about each.
//!
//! Invariant: a server's SQLSTATE decides the kind of the error, in [`kind_of_sqlstate`] only; the text never does.

use std::error::Error as StdError;
use std::io;
use std::iter::successors;

use deadpool_postgres::PoolError;
use tokio_postgres::error::DbError;

/// An error of any type, boxed. The errors of the caller's callbacks are converted to this type.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The errors of this crate's calls.
///
/// An expected outcome (another holder has the key, the answer is a replay) is not an error: it is a variant of the
/// call's answer, such as [`Claim`](crate::Claim) or [`Outcome`](crate::Outcome).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of tokio-postgres: the server refused, the connection failed, or a value could not be read.
    #[error("{}", self.describe(.0))]
    Database(#[from] tokio_postgres::Error),
    /// An error of sqlx, or of its pool.
    #[cfg(feature = "sqlx")]
    #[error("{}", self.describe(.0))]
    Sqlx(#[from] sqlx::Error),
    /// The pool could not hand out a connection.
    #[error("no connection from the pool: {0}")]
    Pool(#[source] PoolError),
    /// A value could not be written as JSON, or a text could not be read as JSON of the wanted type.
    #[error("json: {0}")]
    Json(#[from] serde_json::Error),
    /// The database did not answer within [`Backoff::call_timeout`](crate::Backoff). The server may have carried the
    /// call out. A repeated call is safe, except an emit without a `dedupe_key`.
    #[error("the database did not answer in time")]
    TimedOut,
    /// An error of the caller's own code: from the callback that deletes artifacts, or made with [`Error::other`].
    #[error("{0}")]
    Other(#[source] BoxError),
    /// A value that this crate cannot work with; no call was made.
    #[error("{0}")]
    Argument(String),
    /// The server's answer is not one that this version of the client knows.
    #[error("unknown answer of the server: {0}")]
    Answer(String),
}

/// The server's refusal: SQLSTATE, message, detail and hint.
type Refusal<'a> = (&'a str, &'a str, Option<&'a str>, Option<&'a str>);

/// The kind of an [`Error`]: the caller reacts to all errors of a kind in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// `ON001`: the lease is lost. Stop, and undo effects outside the database (the hint may ask for a check first).
    LeaseLost,
    /// `ON006`: an earlier call has made this write, has ended the key, action or event, or has given a verdict. Roll
    /// back. Read the stored state, or claim again, and continue from there. Suppose that a call got no answer, and you
    /// repeat it alone in a transaction. If the repeated call gets `ON006`, the first call succeeded.
    AlreadyDone,
    /// `ON007`: the key, message or saga belongs to another shard ([`Shards`](crate::Shards)), and nothing was
    /// done. Check the number of shards, the separator and each pool's database; resend a bounded number of times.
    WrongShard,
    /// `ON002`: a move that is not declared, a call of the teardown out of order, a write that the machine's guard
    /// refuses, or an update that a trigger or policy suppresses. Fix the program, the definition or the table.
    IllegalTransition,
    /// `ON003`: the machine's definition has faults; [`Error::faults`] lists them.
    InvalidDefinition,
    /// `ON004`: no sweep covers a claim state. Start the janitor before the service.
    UncoveredClaimState,
    /// `ON005`: items are undecided, or the deletion of artifacts is not confirmed. Refund and clean up first.
    TeardownIncomplete,
    /// `42704`: no such machine, topic or subscriber.
    Undeclared,
    /// A race was lost (`40001`, `40P01`, `55P03`): run the same transaction again.
    Conflict,
    /// The database cannot be reached, does not answer in time, has no free connection, is starting or is shutting
    /// down: run the same call again, on another connection.
    Unavailable,
    /// The database ran out of a resource, such as disk or memory (`53…` except `53300`), or it cancelled the call, for
    /// example at a `statement_timeout` or `transaction_timeout` (`57014`, `25P04`). The call had no effect. A retry
    /// may make the overload worse, so this kind is not [retryable](Error::is_retryable). Workers retry after a wait.
    Overloaded,
    /// `25006`: this server or this transaction is read-only. Send the call to the primary.
    ReadOnly,
    /// `55006`: the object's state forbids the call, such as a live lease or a key that is not parked.
    InUse,
    /// `22023`, `22P02` and similar: a bad argument.
    InvalidArgument,
    /// `42501`: the role has no right to do this.
    Forbidden,
    /// Anything else; read [`Error::code`] and the message.
    Other,
}

impl Error {
    /// Wraps an error of any type. In a closure that this crate calls, write `.map_err(Error::other)?` if `?` alone
    /// cannot convert the error. If the error or one in its `source()` chain is a driver's error, that error decides
    /// the kind; otherwise the kind is [`Kind::Other`]. An error of another PostgreSQL server is a driver's error, too.
    /// If its kind is retryable, this crate may run the work again. Wrap only the text of such an error.
    ///
    /// The kind does not show whether another service has carried out a call. If it may have, return
    /// [`Failure::retry`](crate::Failure::retry) or [`Failure::unknown`](crate::Failure::unknown) instead.
    pub fn other(error: impl Into<BoxError>) -> Self {
        Self::Other(error.into())
    }

    /// The SQLSTATE, if the server sent one.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::{ClaimOptions, Kind, Scope};
    ///
    /// let nameless = Scope::new("payments.create").key("");
    /// if let Err(error) = nameless.claim(&pool, &ClaimOptions::new()).await {
    ///     assert_eq!(error.code(), Some("22023"));
    ///     assert_eq!(error.kind(), Kind::InvalidArgument);
    ///     assert!(!error.is_retryable());
    /// }
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        Some(self.refusal()?.0)
    }

    /// The faults of a machine's definition, one line each; empty for any other error.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, _| {
    /// use pg_once::{Json, Kind, Machine};
    ///
    /// let error = Machine::define(&pool, &Json::from_text("{}")).await.unwrap_err();
    /// assert_eq!(error.kind(), Kind::InvalidDefinition);
    /// assert!(error.faults().count() > 0);
    /// # Ok(()) }) }
    /// ```
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        let faulty = self.kind() == Kind::InvalidDefinition;
        let refusal = self.refusal().filter(|_| faulty);
        let detail = refusal.and_then(|(_, _, detail, _)| detail);
        detail.unwrap_or_default().lines()
    }

    /// The kind of the error; its SQLSTATE, if it has one, decides.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match (self, self.code()) {
            (_, Some(code)) => kind_of_sqlstate(code),
            (Self::TimedOut | Self::Pool(PoolError::Timeout(_)), None) => Kind::Unavailable,
            #[cfg(feature = "sqlx")]
            (Self::Sqlx(sqlx::Error::PoolTimedOut), None) => Kind::Unavailable,
            (Self::Argument(_), None) => Kind::InvalidArgument,
            _ if self.is_transport() => Kind::Unavailable,
            _ => Kind::Other,
        }
    }

    /// Whether to retry the same call, or the same transaction.
    ///
    /// No call with a token has its effect twice, so a call whose answer was lost may be retried. If the retry fails
    /// with [`Kind::AlreadyDone`], the first call succeeded. This kind and [`Kind::LeaseLost`] are not retryable.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), Kind::Conflict | Kind::Unavailable)
    }

    /// Whether the transaction was certainly rolled back, and may succeed when it is repeated.
    pub(crate) fn rolled_back(&self) -> bool {
        self.kind() == Kind::Conflict
    }

    /// Whether workers and lease-ending writes retry. They retry after `ReadOnly`, because a failover can cause it.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_retryable() || matches!(self.kind(), Kind::Overloaded | Kind::ReadOnly)
    }

    /// All errors in the chain of `source()`, because the caller's own error may wrap a driver's error.
    fn causes(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        successors(self.source(), |&cause| cause.source())
    }

    /// The server's refusal, over either driver.
    fn refusal(&self) -> Option<Refusal<'_>> {
        self.causes().find_map(|cause| {
            #[cfg(feature = "sqlx")]
            if let Some(error) = cause.downcast_ref::<sqlx::Error>() {
                let error = error.as_database_error()?;
                let error = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
                return Some((error.code(), error.message(), error.detail(), error.hint()));
            }
            let error = cause.downcast_ref::<DbError>()?;
            let (code, hint) = (error.code().code(), error.hint());
            Some((code, error.message(), error.detail(), hint))
        })
    }

    /// Whether the driver failed on the network, not on the server's answer. TLS wraps a network error in an error of
    /// its own, so all causes are searched.
    fn is_transport(&self) -> bool {
        let mut of_driver = false;
        self.causes().any(|cause| {
            let tokio = cause.downcast_ref::<tokio_postgres::Error>();
            of_driver |= tokio.is_some();
            #[cfg(feature = "sqlx")]
            {
                of_driver |= cause.is::<sqlx::Error>();
            }
            let closed = tokio.is_some_and(tokio_postgres::Error::is_closed);
            closed || of_driver && cause.is::<io::Error>()
        })
    }

    /// The server's message with its SQLSTATE and hint; else the driver's own message.
    fn describe(&self, error: &dyn StdError) -> String {
        let Some((code, message, _, hint)) = self.refusal() else {
            let (said, cause) = (error.to_string(), error.source().map(ToString::to_string));
            return match cause {
                Some(cause) if !said.ends_with(&cause) => format!("{said}: {cause}"),
                _ => said,
            };
        };
        // Of all details only the faults of a definition are shown: other details may quote rows.
        let faults = self.faults().collect::<Vec<_>>().join("; ");
        let faults = (!faults.is_empty()).then(|| format!(": {faults}"));
        let hint = hint.map(|hint| format!(" ({hint})"));
        let (faults, hint) = (faults.unwrap_or_default(), hint.unwrap_or_default());
        format!("{code}: {message}{faults}{hint}")
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => Self::Database(error),
            other => Self::Pool(other),
        }
    }
}

fn kind_of_sqlstate(code: &str) -> Kind {
    match code {
        "ON001" => Kind::LeaseLost,
        "ON002" => Kind::IllegalTransition,
        "ON003" => Kind::InvalidDefinition,
        "ON004" => Kind::UncoveredClaimState,
        "ON005" => Kind::TeardownIncomplete,
        "ON006" => Kind::AlreadyDone,
        "ON007" => Kind::WrongShard,
        // Serialization failure, deadlock, lock not available: rolled back, for certain.
        "40001" | "40P01" | "55P03" => Kind::Conflict,
        // Shutdown, crash, starting up, idle-session and idle-in-transaction timeouts, too many connections,
        // "completion unknown" (a lost answer), no such database (a pooler may not know it after a failover).
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "53300" | "40003" | "3D000" => {
            Kind::Unavailable
        }
        "57014" | "25P04" => Kind::Overloaded,
        "25006" => Kind::ReadOnly,
        "55006" => Kind::InUse,
        "42501" => Kind::Forbidden,
        "42704" => Kind::Undeclared,
        // The connection exceptions.
        code if code.starts_with("08") => Kind::Unavailable,
        // No disk, no memory, no room for locks.
        code if code.starts_with("53") => Kind::Overloaded,
        // The data exceptions: a bad argument, text that is not JSON, a value out of range.
        code if code.starts_with("22") => Kind::InvalidArgument,
        _ => Kind::Other,
    }
}

#[cfg(test)]
#[path = "../tests/unit/error.rs"]
mod tests;

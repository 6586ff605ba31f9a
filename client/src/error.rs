//! Owns what can go wrong and what to do about it.
//!
//! Invariant: every question about an error is answered from its SQLSTATE, in the one `match` of
//! [`kind_of_sqlstate`], never from its text.

use std::error::Error as StdError;
use std::io;
use std::iter::successors;

use deadpool_postgres::PoolError;

/// Any error, boxed: what the caller's own callbacks fail with.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// What a call of this crate can fail with.
///
/// An expected outcome (somebody else holds the key, the answer is a replay) is not an error: it is
/// a variant of [`Claim`](crate::Claim) or [`Outcome`](crate::Outcome).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused, or the connection to it failed.
    #[error("{}", describe(.0))]
    Database(#[source] tokio_postgres::Error),
    /// The pool could not hand out a connection.
    #[error("no connection from the pool: {0}")]
    Pool(#[source] PoolError),
    /// A value could not be written as JSON, or JSON is not of the type asked for.
    #[error("json: {0}")]
    Json(#[from] serde_json::Error),
    /// The database did not answer within [`Backoff::call_timeout`](crate::Backoff). The call may
    /// have been carried out all the same; repeating it converges.
    #[error("the database did not answer in time")]
    TimedOut,
    /// Artifacts could not be deleted: what the caller's own callback said. The teardown goes on
    /// from the top when it is run again.
    #[error("cleaning up failed: {0}")]
    Cleanup(#[source] BoxError),
    /// The server answered something that this version of the client does not know.
    #[error("the server's answer is not understood: {0}")]
    Answer(String),
}

/// What an [`Error`] means to the caller: one kind, one thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// `ON001`: the lease is somebody else's now. Stop; undo what was made outside the database.
    LeaseLost,
    /// `ON006`: an earlier, committed transaction has made this write with this token. Roll back the
    /// writes beside it and go on behind it: claim again, or read what is stored. After a call of its own
    /// whose answer was lost it is success.
    AlreadyDone,
    /// `ON002`: a move that is not declared, a step of the teardown out of its place, or a write that
    /// the machine's guard refuses. Fix the program, or the definition.
    IllegalTransition,
    /// `ON003`: the machine's definition is wrong; [`Error::faults`] says where.
    InvalidDefinition,
    /// `ON004`: a claim state that nobody sweeps. Start the janitor before the service.
    UncoveredClaimState,
    /// `ON005`: items are undecided or artifacts not confirmed to be gone. Refund and clean up first.
    TeardownIncomplete,
    /// `42704`: no such machine, topic or subscriber.
    Undeclared,
    /// A race was lost (`40001`, `40P01`, `55P03`): run the same transaction again.
    Conflict,
    /// The database is away or going away: run the same call again, on another connection.
    Unavailable,
    /// The database had no room for the call (`53…`: disk, memory) or gave it up (`57014`, a
    /// `statement_timeout`). Nothing of it is done. Not [retryable](Error::is_retryable) by itself, since
    /// more of the same may make it worse; the workers wait and ask again.
    Overloaded,
    /// `25006`: this server takes no writes. Send the call to the primary.
    ReadOnly,
    /// `55006`: it is in use (a live lease, a key that is not parked).
    InUse,
    /// `22023`, `22P02` and their like: the program passed something wrong.
    InvalidArgument,
    /// `42501`: this role may not.
    Forbidden,
    /// Anything else; read [`Error::code`] and the message.
    Other,
}

impl Error {
    /// The SQLSTATE, where the server gave one.
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
        Some(self.backend()?.code()?.code())
    }

    /// Everything that is wrong with a machine's definition, one line a fault; nothing for any other
    /// error.
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
        let detail = self
            .backend()
            .filter(|_| faulty)
            .and_then(|error| error.as_db_error()?.detail());
        detail.unwrap_or_default().lines()
    }

    /// What the error means; the one question from which the others are answered.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match (self, self.backend()) {
            (_, Some(backend)) => match backend.code() {
                Some(state) => kind_of_sqlstate(state.code()),
                None if is_transport(backend) => Kind::Unavailable,
                None => Kind::Other,
            },
            (Self::TimedOut | Self::Pool(PoolError::Timeout(_)), None) => Kind::Unavailable,
            _ => Kind::Other,
        }
    }

    /// Whether the same call, or the same transaction, can simply be run again.
    ///
    /// No call of this crate that presents a token does anything twice, so a call whose answer was lost may
    /// be repeated too; [`Kind::AlreadyDone`] then says that it had been carried out. That and a lost lease
    /// are not retryable.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), Kind::Conflict | Kind::Unavailable)
    }

    /// Whether a loop that goes on until there is an answer outlives it.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_retryable() || self.kind() == Kind::Overloaded
    }

    /// The error of the driver, wherever it is wrapped.
    fn backend(&self) -> Option<&tokio_postgres::Error> {
        match self {
            Self::Database(error) | Self::Pool(PoolError::Backend(error)) => Some(error),
            _ => None,
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
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

/// The one table of SQLSTATEs.
fn kind_of_sqlstate(code: &str) -> Kind {
    match code {
        "ON001" => Kind::LeaseLost,
        "ON002" => Kind::IllegalTransition,
        "ON003" => Kind::InvalidDefinition,
        "ON004" => Kind::UncoveredClaimState,
        "ON005" => Kind::TeardownIncomplete,
        "ON006" => Kind::AlreadyDone,
        // Serialization failure, deadlock, lock not available: rolled back, for certain.
        "40001" | "40P01" | "55P03" => Kind::Conflict,
        // Shutdown, crash, starting up, idle-session and idle-in-transaction timeouts, out of
        // connections; "completion unknown" is as good as a lost answer; a pooler behind a move does not know the
        // database yet.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "53300" | "40003" | "3D000" => {
            Kind::Unavailable
        }
        "57014" => Kind::Overloaded,
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

/// Whether the driver failed on the way to the server rather than on what was said. TLS wraps what the
/// network says in an error of its own.
fn is_transport(error: &tokio_postgres::Error) -> bool {
    let mut causes = successors(error.source(), |&cause| cause.source());
    error.is_closed() || causes.any(|cause| cause.is::<io::Error>())
}

/// The server's message with its SQLSTATE and hint; the driver's own words otherwise.
fn describe(error: &tokio_postgres::Error) -> String {
    let Some(db) = error.as_db_error() else {
        return match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
    };
    let hint = db
        .hint()
        .map(|hint| format!(" ({hint})"))
        .unwrap_or_default();
    // The faults of a definition name nothing but what its author wrote; other details may quote rows.
    let faults = match (kind_of_sqlstate(db.code().code()), db.detail()) {
        (Kind::InvalidDefinition, Some(detail)) => format!(": {}", detail.replace('\n', "; ")),
        _ => String::new(),
    };
    format!("{}: {}{faults}{hint}", db.code().code(), db.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sqlstate_has_one_meaning() {
        for (code, kind) in [
            ("ON001", Kind::LeaseLost),
            ("ON002", Kind::IllegalTransition),
            ("ON003", Kind::InvalidDefinition),
            ("ON004", Kind::UncoveredClaimState),
            ("ON005", Kind::TeardownIncomplete),
            ("ON006", Kind::AlreadyDone),
            ("42704", Kind::Undeclared),
            ("40001", Kind::Conflict),
            ("40P01", Kind::Conflict),
            ("55P03", Kind::Conflict),
            ("57P01", Kind::Unavailable),
            ("57P02", Kind::Unavailable),
            ("57P03", Kind::Unavailable),
            ("08006", Kind::Unavailable),
            ("08P01", Kind::Unavailable),
            ("53300", Kind::Unavailable),
            ("40003", Kind::Unavailable),
            ("3D000", Kind::Unavailable),
            ("53100", Kind::Overloaded),
            ("53200", Kind::Overloaded),
            ("57014", Kind::Overloaded),
            ("25006", Kind::ReadOnly),
            ("55006", Kind::InUse),
            ("22023", Kind::InvalidArgument),
            ("22P02", Kind::InvalidArgument),
            ("42501", Kind::Forbidden),
            ("42883", Kind::Other),
        ] {
            assert_eq!(kind_of_sqlstate(code), kind, "{code}");
        }
    }

    #[test]
    fn a_call_that_was_not_answered_may_be_repeated_and_a_closed_pool_may_not() {
        assert!(Error::TimedOut.is_retryable());
        assert!(!Error::from(PoolError::Closed).is_retryable());
        assert!(!Error::Answer("?".into()).is_retryable());
        assert!(!Error::Cleanup("the store is away".into()).is_retryable());
    }
}

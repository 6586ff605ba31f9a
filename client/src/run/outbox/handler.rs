//! Owns the interface between the outbox worker and its handler.

use std::fmt::{self, Display};
use std::future::Future;
use std::time::Duration;

use crate::outbox::KIND;
use crate::{Acked, Error, Event, Failure, OpenTransaction};

/// A handler of a subscriber's events. A closure `|event: Event| async move { ... }` is a handler that implements only
/// [`Deliver::deliver`].
pub trait Deliver: Send + Sync + 'static {
    /// Delivers one event. An earlier attempt may have delivered it already: send its
    /// [`delivery_key`](Event::delivery_key) as the `Idempotency-Key`, or ack the event in the transaction of your
    /// writes ([`Subscriber::ack`](crate::Subscriber::ack)).
    ///
    /// The future is dropped when the lease of the event's batch is lost, or at the end of the worker's grace time.
    fn deliver(&self, event: &Event) -> impl Future<Output = Result<Acked, Undelivered>> + Send;

    /// Called when a failure (not an expired lease) makes an event dead: undo earlier work in the transaction that
    /// records the death. To undo the keyed request that emitted the event, claim and abort the request's key here. The
    /// abort emits the compensations of the request's steps.
    ///
    /// The callback's writes commit together with the event's death. If the callback fails or panics, nothing is
    /// committed; the event is released and delivered again after 30 s. After a lost race or connection the callback
    /// runs again, so it must have no effect outside the database. A running callback delays the batch's acks.
    fn dead(
        &self,
        transaction: &OpenTransaction,
        event: &Event,
        failure: &Undelivered,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (transaction, event, failure);
        async { Ok(()) }
    }

    /// Called when a batch ends with this many events neither acked nor nacked, mostly because its lease was lost. The
    /// events are delivered again. Use this call to count and to alert; a `WARN` line is logged, too.
    fn lost(&self, events: u64) {
        let _ = events;
    }
}

impl<F, Fut, R> Deliver for F
where
    F: Fn(Event) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, Undelivered>> + Send,
    R: Into<Acked>,
{
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        self(event.clone()).await.map(Into::into)
    }
}

/// The reason why an event was not delivered, which decides what happens to the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// The event is retried, until the subscriber's `max_attempts` are used up.
    Retry {
        /// The kind of the failure, such as `timeout`; the metrics count failures by kind. (`released`, `never` and
        /// `expired` have other meanings: a failure with one of these kinds, or an empty kind, counts as `error`.)
        kind: String,
        /// What went wrong.
        error: String,
        /// How long to wait instead of the subscriber's backoff, at most a day; zero: at once. Short times use up
        /// `max_attempts` soon: ten answers with `Retry-After: 1` make an event dead in ten seconds.
        after: Option<Duration>,
    },
    /// The event cannot be delivered now, for example because other work on its subject still runs. It is released and
    /// delivered again after this time. No attempt is counted, so deferring never makes an event dead.
    Later {
        /// The reason.
        reason: String,
        /// How long to wait, at most a day.
        after: Duration,
    },
    /// No retry can succeed: the event is dead.
    Never {
        /// What went wrong.
        error: String,
    },
}

impl Undelivered {
    /// A failure that is worth another attempt, with the subscriber's backoff.
    pub fn retry(kind: impl Into<String>, error: impl Display) -> Self {
        Self::Retry {
            kind: kind.into(),
            error: error.to_string(),
            after: None,
        }
    }

    /// A failure that is worth another attempt after this time.
    pub fn retry_after(kind: impl Into<String>, error: impl Display, after: Duration) -> Self {
        Self::Retry {
            kind: kind.into(),
            error: error.to_string(),
            after: Some(after),
        }
    }

    /// No failure: the event cannot be delivered now, and is delivered again after this time.
    pub fn later(reason: impl Display, after: Duration) -> Self {
        Self::Later {
            reason: reason.to_string(),
            after,
        }
    }

    /// A failure that is not worth another attempt.
    pub fn never(error: impl Display) -> Self {
        Self::Never {
            error: error.to_string(),
        }
    }
}

impl Display for Undelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { kind, error, .. } => write!(f, "{kind}: {error}"),
            Self::Later { reason, .. } => write!(f, "later: {reason}"),
            Self::Never { error } => write!(f, "never: {error}"),
        }
    }
}

/// Converts the failure of a foreign call ([`Backoff::foreign`](crate::Backoff::foreign)). If the call was refused, or
/// its outcome is unknown, the event is dead: it is not retried until a person redrives it.
impl From<Failure> for Undelivered {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Retry { error, retry_after } => Self::Retry {
                kind: KIND.to_owned(),
                error,
                after: retry_after,
            },
            Failure::Error(error) => error.into(),
            unknown_or_refused => Self::never(unknown_or_refused),
        }
    }
}

/// `?` makes this from an error in the handler: the event is retried. The kind is `json` for a document that could not
/// be read or written, `error` for an [`Error::other`], `database` otherwise. An event whose payload cannot be read is
/// retried, as the next version of the handler may be able to read it. To make such an event dead at once, write
/// `event.payload.parse().map_err(Undelivered::never)?`.
impl<X: Into<Error>> From<X> for Undelivered {
    fn from(error: X) -> Self {
        let error = error.into();
        let kind = match error {
            Error::Json(_) => "json",
            Error::Other(_) => KIND,
            _ => "database",
        };
        Self::retry(kind, error)
    }
}

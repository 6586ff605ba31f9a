//! Owns the noun `outbox`: events that leave the database. Each event is delivered at least once; a receiver drops
//! duplicates by the delivery key.
//!
//! An event's life, in the order of its calls: it is emitted in the transaction of the writes that it reports
//! ([`Topic::emit`]) and commits with them. A worker of a subscriber takes a batch under a token
//! ([`Subscriber::take`]), delivers, and acks ([`Batch::ack`]) or nacks ([`Batch::nack`]) each event. A failed event is
//! retried later; an event that has used up its attempts is dead ([`Subscriber::dead`]) until it is redriven.
//!
//! Invariant: each `async` method is one call of an SQL function, in one round trip on the caller's executor. The
//! worker ([`Subscriber::worker`]) makes these calls in a loop.

mod batch;
mod dead;
mod emit;
mod options;
mod pending;

use std::fmt;
use std::sync::Arc;

use crate::executor::{Args, call};
use crate::{Error, Executor, Row};
pub(crate) use batch::KIND;
pub use batch::{Acked, Batch, Event, NackOptions, Nacked};
pub use dead::{DeadLetter, FailedDelivery};
pub use emit::{EmitOptions, Emitted};
pub use options::{SubscriberOptions, TopicOptions};
pub use pending::PendingEvent;

/// A topic, to which events are emitted. Created by [`Topic::set`]; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topic(Arc<str>);

/// A receiver of a topic's events, independent of the topic's other subscribers. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Subscriber {
    topic: Topic,
    name: Arc<str>,
}

impl Topic {
    /// The topic of this name; makes no call.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The topic's subscriber of this name; makes no call.
    ///
    /// ```
    /// let mails = pg_once::Topic::new("signups").subscriber("mails");
    /// assert_eq!((mails.topic().as_str(), mails.as_str()), ("signups", "mails"));
    /// ```
    #[must_use]
    pub fn subscriber(&self, name: &str) -> Subscriber {
        Subscriber {
            topic: self.clone(),
            name: name.into(),
        }
    }

    /// The subscriber `default`, which [`Topic::set`] creates with a new topic if no subscribers are named.
    #[must_use]
    pub fn default_subscriber(&self) -> Subscriber {
        self.subscriber("default")
    }
}

impl Subscriber {
    /// The topic.
    #[must_use]
    pub const fn topic(&self) -> &Topic {
        &self.topic
    }

    /// The subscriber's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Makes a call whose first arguments are topic and subscriber, and whose other arguments are `own`.
    async fn rows<E: Executor>(
        &self,
        exec: &E,
        sql: &str,
        own: &Args<'_>,
    ) -> Result<Vec<Row>, Error> {
        let names = [self.topic.as_str(), self.as_str()];
        call(exec, sql, &names, own).await
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.topic.0, self.name)
    }
}

//! Creates and drops topics and subscribers, and changes their options.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::Type;

use super::{Subscriber, Topic};
use crate::executor::{call, only, value};
use crate::interval::Interval;
use crate::options::options;
use crate::{Error, Executor, Json};

const TOPIC_SET: &str = "SELECT once.topic_set(topic => $1, options => $2)";
const TOPIC_GET: &str = "SELECT once.topic_get(topic => $1)";
const TOPIC_DROP: &str = "SELECT once.topic_drop(topic => $1)";
const SUBSCRIBER_SET: &str = "SELECT once.subscriber_set(topic => $1, subscriber => $2, \
                              options => $3)";
const SUBSCRIBER_GET: &str = "SELECT once.subscriber_get(topic => $1, subscriber => $2)";
const SUBSCRIBER_DROP: &str = "SELECT once.subscriber_drop(topic => $1, subscriber => $2)";
// The server converts to microseconds, because an interval's text depends on the session's IntervalStyle.
const GRANTED_LEASE: &str = "SELECT (extract(epoch FROM least(coalesce($3, \
                             (options->>'lease')::interval), \
                             (options->>'max_lease_life')::interval)) * 1000000)::bigint \
                             FROM once.subscriber_get(topic => $1, subscriber => $2) AS options";

options! {
    /// Changes to a topic's options; options that are not named stay as they are.
    TopicOptions {
        /// How long after an emit its `dedupe_key` prevents another emit.
        dedupe_for: Duration,
        /// How many batches with order keys a subscriber can lease at once. Change it while no event is pending.
        lanes: i32,
        /// Only this role's members may use the topic.
        owner: &str,
    }
}

impl TopicOptions {
    /// The subscribers of a new topic; [`Subscriber::set`] adds a subscriber to an existing topic.
    pub fn subscribers<'n>(self, names: impl IntoIterator<Item = &'n str>) -> Self {
        let names: Value = names.into_iter().collect();
        Self(self.0.with("subscribers", names))
    }
}

options! {
    /// Changes to a subscriber's options; options that are not named stay as they are.
    SubscriberOptions {
        /// How many failed attempts make an event dead.
        max_attempts: i32,
        /// The upper bound of the wait after the first failure; each failure doubles this bound.
        backoff_base: Duration,
        /// The upper bound of the backoff; a nack's `retry_after` may be longer.
        backoff_cap: Duration,
        /// How long events are leased if the call of `take` names no lease.
        lease: Duration,
        /// Upper limit of the time for which a batch is leased, however often its lease is extended.
        max_lease_life: Duration,
        /// Whether the subscriber is paused: it then gets no events, but leased events can still be acked or nacked.
        paused: bool,
        /// How long dead letters are kept; for ever by default.
        dead_for: Duration,
    }
}

impl Topic {
    /// Creates the topic, or changes its options.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, name| {
    /// use pg_once::{SubscriberOptions, Topic, TopicOptions};
    /// use std::time::Duration;
    ///
    /// let signups = Topic::new(&format!("signups {name}"));
    /// signups.set(&pool, &TopicOptions::new().subscribers(["mails", "crm"])).await?;
    /// let crm = signups.subscriber("crm");
    /// let patient = SubscriberOptions::new().max_attempts(25).lease(Duration::from_secs(20));
    /// crm.set(&pool, &patient).await?;
    ///
    /// let now: serde_json::Value = crm.get(&pool).await?.parse()?;
    /// assert_eq!(now["max_attempts"], 25);
    /// crm.drop(&pool).await?;
    /// let now: serde_json::Value = signups.get(&pool).await?.parse()?;
    /// assert_eq!(now["subscribers"], serde_json::json!(["mails"]));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `22023` for an unknown option, a bad value or changed `subscribers`; `55006` for changed `lanes` while events
    /// are pending; `55P03` for changed `lanes` while an emit is uncommitted; `42501` if the topic has another owner.
    pub async fn set<E: Executor>(&self, exec: &E, options: &TopicOptions) -> Result<(), Error> {
        let options = options.0.to_json()?;
        let own = [(&options as _, Type::JSON)];
        let name = [self.as_str()];
        call(exec, TOPIC_SET, &name, &own).await.map(drop)
    }

    /// Returns the options in force, defaults included, and the names of the subscribers.
    ///
    /// # Errors
    /// `42704` if there is no such topic; `42501` if the topic has another owner.
    pub async fn get<E: Executor>(&self, exec: &E) -> Result<Json, Error> {
        value(&only(call(exec, TOPIC_GET, &[self.as_str()], &[]).await?)?)
    }

    /// Removes the topic.
    ///
    /// # Errors
    /// `55006` while the topic has subscribers: drop them first; otherwise as [`Topic::get`].
    pub async fn drop<E: Executor>(&self, exec: &E) -> Result<(), Error> {
        let name = [self.as_str()];
        call(exec, TOPIC_DROP, &name, &[]).await.map(drop)
    }
}

impl Subscriber {
    /// Creates the subscriber, or changes its options. A new subscriber gets only the events that commit later.
    ///
    /// # Errors
    /// `42704` if there is no such topic; `22023` for a bad option or value; `42501` if the topic has another owner.
    pub async fn set<E: Executor>(
        &self,
        exec: &E,
        options: &SubscriberOptions,
    ) -> Result<(), Error> {
        let options = options.0.to_json()?;
        let own = [(&options as _, Type::JSON)];
        self.rows(exec, SUBSCRIBER_SET, &own).await.map(drop)
    }

    /// Returns the options in force, defaults included.
    ///
    /// # Errors
    /// `42704` if there is no such topic or subscriber; `42501` if the topic has another owner.
    pub async fn get<E: Executor>(&self, exec: &E) -> Result<Json, Error> {
        value(&only(self.rows(exec, SUBSCRIBER_GET, &[]).await?)?)
    }

    /// Removes the subscriber and discards its backlog, its retries and its dead letters.
    ///
    /// # Errors
    /// As [`Subscriber::get`].
    pub async fn drop<E: Executor>(&self, exec: &E) -> Result<(), Error> {
        self.rows(exec, SUBSCRIBER_DROP, &[]).await.map(drop)
    }

    /// The length of the lease that a take gets.
    pub(crate) async fn granted_lease<E: Executor>(
        &self,
        exec: &E,
        asked: Option<Duration>,
    ) -> Result<Duration, Error> {
        let asked = asked.map(Interval);
        let own = [(&asked as _, Type::INTERVAL)];
        let micros: i64 = value(&only(self.rows(exec, GRANTED_LEASE, &own).await?)?)?;
        Ok(Duration::from_micros(micros.unsigned_abs()))
    }
}

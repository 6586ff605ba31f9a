//! Owns a batch: events that are leased to one worker, and the calls that end them.
//!
//! Invariant: each write presents the batch's token. The write fails with `ON001` once another worker has the events.
//! A call that repeats a committed ack or nack fails with `ON006`.

use std::time::{Duration, SystemTime};

use tokio_postgres::types::Type;

use super::Subscriber;
use crate::executor::{Args, column, of_row, only, value};
use crate::interval::Interval;
use crate::options::setters;
use crate::{Error, Executor, Json, Row};

const TAKE: &str = "SELECT * FROM once.outbox_take(topic => $1, subscriber => $2, max => $3, \
                    lease => $4)";
const ACK: &str = "SELECT once.outbox_ack(topic => $1, subscriber => $2, token => $3, \
                   event_ids => $4)";
const NACK: &str = "SELECT * FROM once.outbox_nack(topic => $1, subscriber => $2, token => $3, \
                    event_ids => $4, error => $5, kind => $6, retry_after => $7)";
const EXTEND: &str = "SELECT once.outbox_extend(topic => $1, subscriber => $2, token => $3, \
                      lease => $4)";

/// The default kind of a failure.
pub(crate) const KIND: &str = "error";

/// An event, as it is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token of the event's batch.
    pub token: i64,
    /// The event's number.
    pub event_id: i64,
    /// The number of this attempt to deliver the event, from 1.
    pub attempt: i32,
    /// The key that the receiver dedupes by: the same on every attempt, a different key for each subscriber. Send it as
    /// the `Idempotency-Key`.
    pub delivery_key: String,
    /// The order key, if any: handle events of one order key one after another.
    pub order_key: Option<String>,
    /// The emitted payload, byte for byte.
    pub payload: Json,
    /// The headers emitted with the payload.
    pub headers: Option<Json>,
    /// When the event was emitted.
    pub emitted_at: SystemTime,
    /// The number of the event's shard, if a worker over shards took the event.
    pub shard: Option<usize>,
}

/// Events that are leased to this worker: each must be acked or nacked.
///
/// Dropping the batch releases nothing: its events are delivered again after the lease has expired.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "ack or nack the events; dropped, they wait for the end of the lease"]
pub struct Batch {
    subscriber: Subscriber,
    token: i64,
    /// The length of lease that the call of `take` named. A renewal without a length asks for this length again.
    pub(crate) length: Option<Duration>,
    /// The events, in the order in which they are to be handled. A batch has at least one event when it is taken.
    pub events: Vec<Event>,
}

/// Whether the worker or the handler acks a delivered event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "return it to the worker"]
pub enum Acked {
    /// The worker acks the event after the handler has returned. A closure may return `()` instead of this value.
    ByWorker,
    /// The handler has acked the event, in the transaction of its own writes: see [`Subscriber::ack`].
    ByHandler,
}

impl From<()> for Acked {
    fn from((): ()) -> Self {
        Self::ByWorker
    }
}

/// The options of a nack: the failure's text and kind, and the wait before a retry.
#[derive(Clone, Debug)]
#[must_use]
pub struct NackOptions {
    error: Option<String>,
    kind: String,
    retry_after: Option<Duration>,
}

/// The answer of [`Batch::nack`] for one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nacked {
    /// The event's number.
    pub event_id: i64,
    /// How many failed attempts at the event have been counted so far.
    pub attempt: i32,
    /// When the event is due again; `None` while it waits for another event of its order key, or is dead.
    pub next_attempt_at: Option<SystemTime>,
    /// Whether the event is dead: its attempts are used up, or it was nacked with the kind `never`.
    pub dead: bool,
}

impl Default for NackOptions {
    fn default() -> Self {
        Self {
            error: None,
            kind: KIND.to_owned(),
            retry_after: None,
        }
    }
}

impl NackOptions {
    setters! {
        /// What went wrong, for [`Subscriber::deliveries`].
        error: impl Into<String>,
        /// How long to wait before a retry, instead of the subscriber's backoff.
        retry_after: Duration,
    }

    /// A failed attempt, of the kind `error`, to be retried with the subscriber's backoff.
    pub fn new() -> Self {
        Self::default()
    }

    /// The events are released: no attempt is counted, and they are due at once or after `retry_after`.
    pub fn released() -> Self {
        Self::new().kind("released")
    }

    /// A failure that no retry can mend. The nacked events are dead at once. If several of them have the same order
    /// key, only the first is dead, and the others stay pending.
    pub fn never() -> Self {
        Self::new().kind("never")
    }

    /// A word for the failure, such as `timeout`; the metrics count failures by kind. The server refuses `expired`.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = kind.into();
        self
    }
}

impl Subscriber {
    /// Leases up to `max` (1 to 10000) events to the caller, for `lease` (`None`: the subscriber's lease). Commit at
    /// once: keep no transaction open during delivery. Returns `None` if no event can be taken now. More events may be
    /// due even if the answer has fewer than `max`.
    ///
    /// If the answer of a take is lost, its events are delivered after their lease has expired.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_topic.rs"));
    /// # fn main() { with_topic(async |pool, topic| {
    /// use pg_once::{EmitOptions, Json};
    ///
    /// topic.emit(&pool, &Json::of("hello")?, &EmitOptions::new()).await?;
    /// let subscriber = topic.default_subscriber();
    /// let Some(batch) = subscriber.take(&pool, 10, None).await? else { panic!("it is due") };
    /// for event in &batch.events {
    ///     assert_eq!((event.payload.as_str(), event.attempt), ("\"hello\"", 1));
    ///     // ... POST it, with event.delivery_key as the Idempotency-Key ...
    /// }
    /// assert_eq!(batch.ack(&pool, None).await?, 1);
    /// assert!(subscriber.take(&pool, 10, None).await?.is_none());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42704` if there is no such topic or subscriber; `22023` for a bad argument; `42501` if the topic has another
    /// owner; `25006` in a read-only transaction.
    pub async fn take<E: Executor>(
        &self,
        exec: &E,
        max: i32,
        lease: Option<Duration>,
    ) -> Result<Option<Batch>, Error> {
        let length = lease.map(Interval);
        let own = [(&max as _, Type::INT4), (&length as _, Type::INTERVAL)];
        let rows = self.rows(exec, TAKE, &own).await?;
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        Ok(Some(Batch {
            subscriber: self.clone(),
            token: column(first, "token")?,
            length: lease,
            events: rows.iter().map(Event::of_row).collect::<Result<_, _>>()?,
        }))
    }

    /// Acks one event in the transaction of its handler's writes: both are committed, or neither. The handler returns
    /// the result of this call, so that its [worker](Subscriber::worker) acks only the other events. Ack the event
    /// before you write keys, machine rows, or rows that your `Deliver::dead` also writes: any other lock order may
    /// deadlock. Commit soon: the batch's other acks and its heartbeat wait for the commit. If the answer of the commit
    /// is lost, return an error or run the transaction again. Both are safe: an acked event is not delivered again.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_topic.rs"));
    /// # fn main() { with_topic(async |pool, topic| {
    /// use pg_once::{Event, Undelivered};
    /// # use pg_once::{EmitOptions, Json};
    /// # topic.emit(&pool, &Json::of("hello")?, &EmitOptions::new()).await?;
    /// # let shutdown = tokio::time::sleep(std::time::Duration::from_millis(300));
    ///
    /// let (subscriber, connections) = (topic.default_subscriber(), pool.clone());
    /// let handler = move |event: Event| {
    ///     let (pool, subscriber) = (connections.clone(), subscriber.clone());
    ///     async move {
    ///         let mut client = pool.get().await?;
    ///         let transaction = client.transaction().await?;
    ///         let acked = subscriber.ack(&transaction, &event).await?;
    ///         // ... the handler's own writes ...
    ///         transaction.commit().await?;
    ///         Ok::<_, Undelivered>(acked)
    ///     }
    /// };
    /// let delivered = topic.default_subscriber().worker(&pool).run(shutdown, handler).await?;
    /// # assert_eq!(delivered.delivered, 1);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON006` if an earlier transaction has acked the event; `ON001` if the lease is lost or the event left the batch.
    pub async fn ack<E: Executor>(&self, exec: &E, event: &Event) -> Result<Acked, Error> {
        let event_ids: &[i64] = &[event.event_id];
        let own = [
            (&event.token as _, Type::INT8),
            (&event_ids as _, Type::INT8_ARRAY),
        ];
        self.rows(exec, ACK, &own).await?;
        Ok(Acked::ByHandler)
    }
}

impl Batch {
    /// The batch's subscriber.
    #[must_use]
    pub const fn subscriber(&self) -> &Subscriber {
        &self.subscriber
    }

    /// The token: unique within its subscriber; fits a JavaScript number.
    #[must_use]
    pub const fn token(&self) -> i64 {
        self.token
    }

    /// Marks these events as delivered; `None`: all events that the batch still holds. Returns how many events this
    /// call acked. Concurrent handlers must name their events.
    ///
    /// # Errors
    /// `ON006` if an earlier transaction has acked one of the named events with this token. With `None`, `ON006` if
    /// such an ack has ended the batch. `ON001` if the lease is lost, or one of the events is not in the batch.
    pub async fn ack<E: Executor>(
        &self,
        exec: &E,
        event_ids: Option<&[i64]>,
    ) -> Result<i32, Error> {
        let own = [(&event_ids as _, Type::INT8_ARRAY)];
        value(&only(self.call(exec, ACK, &own).await?)?)
    }

    /// Marks these events as failed; `None`: all events that the batch still holds. For each order key, an attempt is
    /// counted only for the first of these events. The key's later events leave the batch, too, named or not.
    ///
    /// If an event is [`dead`](Nacked::dead), a compensation can be emitted in the same transaction.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_batch.rs"));
    /// # fn main() { with_batch(async |pool, subscriber, batch| {
    /// use pg_once::NackOptions;
    ///
    /// let refused = NackOptions::new().kind("refused").error("503 Service Unavailable");
    /// for nacked in batch.nack(&pool, None, &refused).await? {
    ///     assert!(!nacked.dead && nacked.next_attempt_at.is_some());
    ///     let failed = subscriber.deliveries(&pool, nacked.event_id).await?;
    ///     assert_eq!(failed[0].kind, "refused");
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON006` if an earlier call has acked or nacked one of the events with this token; `ON001` if the lease is
    /// lost, or the batch does not hold one of the events (any more); `22023` for a bad argument.
    pub async fn nack<E: Executor>(
        &self,
        exec: &E,
        event_ids: Option<&[i64]>,
        options: &NackOptions,
    ) -> Result<Vec<Nacked>, Error> {
        let retry_after = options.retry_after.map(Interval);
        let own = [
            (&event_ids as _, Type::INT8_ARRAY),
            (&options.error as _, Type::TEXT),
            (&options.kind as _, Type::TEXT),
            (&retry_after as _, Type::INTERVAL),
        ];
        let rows = self.call(exec, NACK, &own).await?;
        rows.iter().map(Nacked::of_row).collect()
    }

    /// Renews the lease from now for `lease`. If `lease` is `None`, uses the length that `take` named, or else the
    /// subscriber's. Returns the granted time, which never ends later than `max_lease_life` after the take.
    ///
    /// # Errors
    /// `ON006` if the batch is over, because its last events were acked or nacked; `ON001` if the lease is lost.
    pub async fn extend<E: Executor>(
        &self,
        exec: &E,
        lease: Option<Duration>,
    ) -> Result<Duration, Error> {
        let lease = lease.or(self.length).map(Interval);
        let own = [(&lease as _, Type::INTERVAL)];
        Ok(value::<Interval>(&only(self.call(exec, EXTEND, &own).await?)?)?.0)
    }

    async fn call<E: Executor>(
        &self,
        exec: &E,
        sql: &str,
        own: &Args<'_>,
    ) -> Result<Vec<Row>, Error> {
        let token: &Args<'_> = &[(&self.token, Type::INT8)];
        let args = [token, own].concat();
        self.subscriber.rows(exec, sql, &args).await
    }
}

of_row!(Event: token, event_id, attempt, delivery_key, order_key, payload, headers, emitted_at; shard);
of_row!(Nacked: event_id, attempt, next_attempt_at, dead);

//! Owns the outbox worker: batch after batch, each event to its handler, until it is told to stop.
//!
//! Invariant: an event is acked only after its handler has said that it is done, and whatever dies or
//! is dropped, every event that is not acked comes again. A worker takes more only when nothing that it
//! holds waits for a free handler, so that it does not keep from others what it cannot work on.

mod batch;
mod chain;
mod delivered;
mod handler;
mod settle;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::mpsc;

use super::pace::{Intake, Pace, Shared};
use super::stage::until_told;
use super::tasks::Tasks;
use super::waker::Waker;
use crate::{Backoff, Error, Subscriber};
use batch::Held;
pub use delivered::Delivered;
pub use handler::{Deliver, Undelivered};

/// How many handlers run at a time.
const CONCURRENCY: usize = 8;

/// How many events are taken at a time.
const BATCH: i32 = 10;

/// The most that the server gives at a time.
const LARGEST_BATCH: i32 = 10_000;

/// How long an idle worker waits before it asks again, at most.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Delivers a subscriber's events; made by [`Subscriber::worker`].
#[must_use = "a worker does nothing until `run` is called"]
pub struct OutboxWorker {
    pool: Pool,
    subscriber: Subscriber,
    batch: i32,
    pace: Pace,
}

impl Subscriber {
    /// Prepares to deliver this subscriber's events. The worker takes a pool: its heartbeats need
    /// connections beside its other calls.
    pub fn worker(&self, pool: &Pool) -> OutboxWorker {
        OutboxWorker {
            pool: pool.clone(),
            subscriber: self.clone(),
            batch: BATCH,
            pace: Pace::new(CONCURRENCY, POLL_EVERY),
        }
    }
}

impl OutboxWorker {
    /// How many handlers run at a time (8), at least one. Events of one order key never run at the same
    /// time.
    pub fn concurrency(self, handlers: usize) -> Self {
        Self {
            pace: self.pace.concurrency(handlers),
            ..self
        }
    }

    /// How many events are taken at a time (10), from 1 to 10,000. Larger batches cost the database
    /// less, smaller ones are shared more evenly among workers.
    pub fn batch(self, events: i32) -> Self {
        Self {
            batch: events.clamp(1, LARGEST_BATCH),
            ..self
        }
    }

    /// How long a batch is leased at a time, instead of the subscriber's `lease`; at most its
    /// `max_lease_life`, both as they are when the worker starts. It is extended while the handlers run, so
    /// it says how soon others notice that this process died, not how long a delivery takes.
    pub fn lease(self, lease: Duration) -> Self {
        Self {
            pace: self.pace.lease(lease),
            ..self
        }
    }

    /// How long an idle worker waits before it asks again, at most (1 s; not under 10 ms); it begins with
    /// much less after the last event and doubles it.
    pub fn poll_every(self, time: Duration) -> Self {
        Self {
            pace: self.pace.poll_every(time),
            ..self
        }
    }

    /// How long handlers that are at work when the worker is told to stop may go on (25 s). What is
    /// not done then is stopped and given back. Where the database is away then, that takes until the
    /// lease has run out at the longest.
    pub fn grace(self, time: Duration) -> Self {
        Self {
            pace: self.pace.grace(time),
            ..self
        }
    }

    /// How patiently calls to the database are repeated. A take is repeated until it is answered.
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self {
            pace: self.pace.backoff(backoff),
            ..self
        }
    }

    /// Wakes the worker when it is idle: see [`Waker`].
    pub fn waker(self, waker: &Waker) -> Self {
        Self {
            pace: self.pace.waker(waker),
            ..self
        }
    }

    /// Takes and delivers until `shutdown` completes.
    ///
    /// - Each event goes to `handler` with its [`delivery_key`](crate::Event::delivery_key). Done events
    ///   are acked as soon as they are; a failed one is tried again later, with the subscriber's backoff,
    ///   and the later events of its order key wait behind it. A handler that panics has failed. One that
    ///   never ends keeps its slot and its lease for the subscriber's `max_lease_life`: give what it waits
    ///   for a timeout.
    /// - Events of one order key are handled one after another, all others at the same time, up to
    ///   [`concurrency`](Self::concurrency).
    /// - When an event dies, [`Deliver::dead`] runs in the transaction that says so.
    /// - The lease of a batch is extended at every third of it. When it is lost, or cannot be extended
    ///   before it ends, the handlers of that batch are stopped, [`Deliver::lost`] is told, and the
    ///   worker goes on with other batches.
    /// - When `shutdown` completes, what has not begun is given back at once and what is at work may
    ///   go on for the [`grace`](Self::grace) time.
    ///
    /// A database that is away or overloaded is waited for. Dropping this future stops everything at once;
    /// what was not acked comes again when its lease has run out. Heartbeats and acks need connections as well:
    /// a pool that the handlers use up to the last one lets their leases run out.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_topic.rs"));
    /// # fn main() { with_topic(async |pool, topic| {
    /// use pg_once::{EmitOptions, Event, Json, Undelivered};
    /// use std::time::Duration;
    ///
    /// # async fn post(_key: &str, _body: &str) -> Result<u16, std::io::Error> { Ok(204) }
    /// topic.emit(&pool, &Json::of("hello")?, &EmitOptions::new()).await?;
    /// let shutdown = tokio::time::sleep(Duration::from_millis(300)); // in real life: SIGTERM
    /// let delivered = topic
    ///     .default_subscriber()
    ///     .worker(&pool)
    ///     .run(shutdown, |event: Event| async move {
    ///         match post(&event.delivery_key, event.payload.as_str()).await {
    ///             Ok(200..=299) => Ok(()),
    ///             Ok(410) => Err(Undelivered::never("the receiver is gone")),
    ///             Ok(status) => Err(Undelivered::retry("status", status)),
    ///             Err(error) => Err(Undelivered::retry("transport", error)),
    ///         }
    ///     })
    ///     .await?;
    /// assert_eq!(delivered.delivered, 1);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// What makes asking for events pointless: `42704`, `42501`, `22023`, a closed pool, and whatever else
    /// the first take is refused with (`25006`). What it holds is finished or given back first.
    pub async fn run<H: Deliver>(
        self,
        shutdown: impl Future<Output = ()>,
        handler: H,
    ) -> Result<Delivered, Error> {
        let (stage, shared) = self.pace.share(&self.pool, handler);
        let mut batches = Tasks::default();
        let taking = self.take_until_told(&shared, &mut batches);
        let taken = until_told(&stage, shutdown, taking).await;
        let delivered = batches.end(&stage, self.pace.grace).await;
        taken.map(|()| delivered)
    }

    /// Takes batch after batch; ends when the worker is told to stop, or asking is pointless.
    async fn take_until_told<H: Deliver>(
        &self,
        shared: &Arc<Shared<H>>,
        batches: &mut Tasks<Delivered>,
    ) -> Result<(), Error> {
        // An intake of its own: that a standby tells the lease does not mean that it gives events.
        let asking = self.pace.intake(&self.subscriber, &shared.stage);
        let Some(lease) = self.known_lease(asking).await? else {
            return Ok(());
        };
        let mut intake = self.pace.intake(&self.subscriber, &shared.stage);
        loop {
            let slot = Arc::clone(&shared.slots).acquire_owned();
            let Some(Ok(slot)) = intake.unless_told(slot).await else {
                return Ok(());
            };
            batches.reap();
            let take = || self.subscriber.take(&self.pool, self.batch, Some(lease));
            match intake.ask(take).await? {
                Some((since, Some(batch))) => {
                    intake.found();
                    let held = Held::new(Arc::clone(shared), batch, lease, since);
                    // Ends when all of the batch's events have begun or are over.
                    let (begun, mut waiting) = mpsc::channel(1);
                    batches.begin(held.deliver(slot, begun));
                    // Nothing more is taken while an event of this batch waits for a handler.
                    intake.unless_told(waiting.recv()).await;
                }
                Some((_, None)) => {
                    drop(slot);
                    intake.idle().await;
                }
                None => return Ok(()),
            }
        }
    }

    /// How long a batch is leased; asked once, so that each take can say it and the heartbeat knows.
    async fn known_lease(
        &self,
        mut intake: Intake<'_, Subscriber>,
    ) -> Result<Option<Duration>, Error> {
        let ask = || self.subscriber.granted_lease(&self.pool, self.pace.lease);
        let answer = intake.ask(ask).await?;
        Ok(answer.map(|(_, lease)| lease))
    }
}

impl std::fmt::Debug for OutboxWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboxWorker")
            .field("subscriber", &self.subscriber)
            .field("batch", &self.batch)
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}

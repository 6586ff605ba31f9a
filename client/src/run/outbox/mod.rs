//! Owns the outbox worker: it takes batch after batch and gives each event to the handler, until it is told to stop.
//!
//! Invariant: the worker acks an event only after its handler has succeeded, and every event that is neither acked nor
//! dead is delivered again. While an event of a shard waits for a free handler, the worker takes no more of that
//! shard's events, but leaves them to other workers.

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
use tracing::Instrument;

use super::pace::{Pace, Place, Shared, owned, settings, span_of};
use super::stage::until_told;
use super::tasks::Tasks;
use crate::{Begin, Error, Shards, Subscriber};
use batch::deliver;
pub use delivered::Delivered;
pub use handler::{Deliver, Undelivered};

const CONCURRENCY: usize = 8;

const BATCH: i32 = 10;

/// The server gives at most this many events to one take.
const LARGEST_BATCH: i32 = 10_000;

const POLL_EVERY: Duration = Duration::from_secs(1);
const POLL_SHARDS_EVERY: Duration = Duration::from_secs(5);

/// A worker that delivers a subscriber's events; made by [`Subscriber::worker`].
#[derive(Debug)]
#[must_use = "a worker does nothing until `run` is called"]
pub struct OutboxWorker<P = Pool> {
    places: Vec<Place<P>>,
    subscriber: Subscriber,
    batch: i32,
    pace: Pace,
}

impl Subscriber {
    /// Prepares to deliver this subscriber's events, with 8 handlers at a time, polls at most 1 s apart and 25 s of
    /// grace. A lease is at most the subscriber's `max_lease_life`, which is read when the worker starts. The worker
    /// takes a pool, because its heartbeats run beside its other calls.
    pub fn worker<P: Begin>(&self, pool: &P) -> OutboxWorker<P> {
        self.worker_in(vec![(None, pool)], POLL_EVERY)
    }

    /// A worker over all shards: 8 handlers in all shards together; the polls of a shard without events are at most 5 s
    /// apart. [`Event::shard`](crate::Event::shard) is the number of an event's shard. An unreachable shard does not
    /// stop the others; a shard that refuses the first call ends the worker.
    ///
    /// Before a take the worker reserves a handler for the first event of the batch. After a failed take, other
    /// shards may use this handler. Events of the batch stay leased while they wait for free handlers, which all shards
    /// share. With many shards choose a small [`batch`](OutboxWorker::batch), so that few events wait.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_topic.rs"));
    /// # fn main() { with_topic(async |pool, topic| {
    /// # use pg_once::{EmitOptions, Event, Json, Shards};
    /// # topic.emit(&pool, &Json::of("hello")?, &EmitOptions::new()).await?;
    /// # let shutdown = tokio::time::sleep(std::time::Duration::from_millis(300));
    /// let shards = Shards::new([pool])?; // a pool for each
    /// let worker = topic.default_subscriber().worker_over(&shards);
    /// let handler = |event: Event| async move {
    ///     assert_eq!(event.shard, Some(0));
    ///     Ok(())
    /// };
    /// assert_eq!(worker.run(shutdown, handler).await?.delivered, 1);
    /// # Ok(()) }) }
    /// ```
    pub fn worker_over<P: Begin>(&self, shards: &Shards<P>) -> OutboxWorker<P> {
        self.worker_in(shards.places(), POLL_SHARDS_EVERY)
    }

    fn worker_in<P: Begin>(&self, places: Vec<Place<&P>>, poll_every: Duration) -> OutboxWorker<P> {
        OutboxWorker {
            places: owned(places),
            subscriber: self.clone(),
            batch: BATCH,
            pace: Pace::new(CONCURRENCY, poll_every),
        }
    }
}

impl<P: Begin> OutboxWorker<P> {
    settings!(concurrency lease poll_every grace backoff waker);

    /// How many events are taken at a time: 1 to 10,000, by default 10. Larger batches cost the database less, smaller
    /// batches are shared more evenly among workers.
    pub fn batch(mut self, events: i32) -> Self {
        self.batch = events.clamp(1, LARGEST_BATCH);
        self
    }

    /// Takes and delivers until `shutdown` completes.
    ///
    /// - Each event goes to `handler` with its [`delivery_key`](crate::Event::delivery_key). A delivered event is acked
    ///   at once. A failed event is retried with the subscriber's backoff, and the later events of its order key wait
    ///   for it. A handler that panics has failed. A handler that never ends keeps its slot and its batch's lease for
    ///   the subscriber's `max_lease_life`: set timeouts in the handler.
    /// - Events of one order key are handled one after another, other events at the same time, up to
    ///   [`concurrency`](Self::concurrency).
    /// - When a failure makes an event dead, [`Deliver::dead`] runs in the transaction that records the death.
    /// - When the [lease](Self::lease) of a batch is lost, the handlers of that batch are stopped, [`Deliver::lost`] is
    ///   called, and the worker goes on with other batches.
    /// - When `shutdown` completes, events whose handler has not begun are released at once, and running handlers may
    ///   go on for the [`grace`](Self::grace) time.
    ///
    /// The worker waits for a database that is unreachable or overloaded.
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
    /// A final error of a take (`42704`, `42501`, `22023`, a closed pool), or any other refusal of the first take, such
    /// as `25006` on a standby. Before this returns, the worker finishes or releases the events that it holds.
    pub async fn run<H: Deliver>(
        self,
        shutdown: impl Future<Output = ()>,
        handler: H,
    ) -> Result<Delivered, Error> {
        let (stage, places) = self.pace.share(&self.places, handler);
        let mut batches = Tasks::default();
        let taking = |shared| self.take_until_told(shared, &batches);
        let taken = until_told(&stage, shutdown, places.iter().map(taking)).await;
        let delivered = batches.end(&stage, self.pace.grace).await;
        taken.map(|()| delivered)
    }

    /// Takes batch after batch; ends when the worker is told to stop, or a take fails for good.
    async fn take_until_told<H: Deliver>(
        &self,
        shared: &Arc<Shared<P, H>>,
        batches: &Tasks<Delivered>,
    ) -> Result<(), Error> {
        // The lease's length is read once. A standby answers this read and refuses takes. An intake that was answered
        // before retries a refused take. The takes get a new intake, so a refused first take ends the worker.
        let (pace, subscriber) = (&self.pace, &self.subscriber);
        let intake = || pace.intake(subscriber, shared.shard, &shared.stage);
        let ask = || subscriber.granted_lease(&shared.exec, pace.lease);
        let mut asking = intake();
        let Some((_, _, lease)) = asking.ask(&shared.slots, ask).await? else {
            return Ok(());
        };
        let mut intake = intake();
        let most = if P::ONE_AT_A_TIME { 1 } else { self.batch };
        loop {
            let take = || subscriber.take(&shared.exec, most, Some(lease));
            let found = intake.find(&shared.slots, take, |batch| batch).await?;
            let Some((since, slot, mut batch)) = found else {
                return Ok(());
            };
            for event in &mut batch.events {
                event.shard = shared.shard;
            }
            // The channel closes when each chain of the batch has a slot, or has ended.
            let (begun, mut waiting) = mpsc::channel(1);
            let batch = deliver(Arc::clone(shared), batch, since, slot, begun);
            batches.begin(batch.instrument(span_of(shared.shard)));
            intake.unless_told(waiting.recv()).await;
        }
    }
}

//! Owns the completer: it finishes abandoned requests.
//!
//! Invariant: a completer takes no more keys than it has free handlers, so the work on each key begins at once.
//! Exception: when a shard's take fails, other shards may get its handler. The shard's next key may wait for a handler.
//! A request that fails does not stop the others. Many completers may share a scope: each key goes to one of them.

mod request;
mod words;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use tracing::Instrument;
use uuid::Uuid;

use super::pace::{Pace, Place, Shared, owned, settings, span_of};
use super::stage::until_told;
use super::tasks::Tasks;
use crate::{Abandoned, Autocommit, Error, Scope, Shards};
use request::bring_to_its_end;
pub use words::{Complete, Completed, Completion};

const CONCURRENCY: usize = 4;

/// The server gives at most this many keys to one take.
const LARGEST_TAKE: usize = 10_000;

const POLL_EVERY: Duration = Duration::from_secs(5);

/// A worker that finishes abandoned requests; made by [`Scope::completer`].
#[derive(Debug)]
#[must_use = "a completer does nothing until `run` is called"]
pub struct Completer<E = Pool> {
    places: Vec<Place<E>>,
    scope: Scope,
    pace: Pace,
}

impl Scope {
    /// Prepares to finish this scope's abandoned requests, 4 at a time, with polls at most 5 s apart and 25 s of
    /// grace. Set [`keep_request`](crate::ScopeOptions::keep_request) on the scope, or the handler gets keys without
    /// requests. The completer takes a pool, because its heartbeats run beside its other calls.
    pub fn completer<E: Autocommit + Clone>(&self, pool: &E) -> Completer<E> {
        self.completer_in(vec![(None, pool)])
    }

    /// A completer over all shards: 4 requests at a time in all shards together; see [`Abandoned::shard`].
    pub fn completer_over<E: Autocommit + Clone>(&self, shards: &Shards<E>) -> Completer<E> {
        self.completer_in(shards.places())
    }

    fn completer_in<E: Clone>(&self, places: Vec<Place<&E>>) -> Completer<E> {
        Completer {
            places: owned(places),
            scope: self.clone(),
            pace: Pace::new(CONCURRENCY, POLL_EVERY),
        }
    }
}

impl<E: Autocommit + Clone + Send + 'static> Completer<E> {
    settings!(concurrency lease poll_every grace backoff waker);

    /// Takes abandoned keys and finishes their requests, until `shutdown` completes.
    ///
    /// - A key is abandoned if it was released and is due, or if its lease expired. A key whose first lease expired is
    ///   taken after the next `key_abandon` sweep. `handler` gets the new lease and the stored request, and works like
    ///   the request path: it goes on from [`Lease::recovery_point`](crate::Lease::recovery_point), and the handler's
    ///   result ends the key as in [`Runner::run`](crate::Runner::run).
    /// - After [`Failure::Retry`](crate::Failure), `Failure::Error` or a panic of the handler, the key is released with
    ///   a backoff, unless `Retry` names a longer time. The backoff is half a second to a second after the first
    ///   failure, and doubles each time, up to five minutes. A key that has used up the scope's `max_attempts` is
    ///   parked. Other requests go on meanwhile.
    /// - When the [lease](Self::lease) is lost, the handler is stopped ([`Completion::LeaseLost`]).
    /// - A client that retries meanwhile gets `in_progress`, and later the answer as a replay.
    /// - When `shutdown` completes, running handlers may go on for the [`grace`](Self::grace) time; then they are
    ///   stopped and their keys released, due at once.
    ///
    /// The completer waits for a database that is unreachable or overloaded. A handler that never ends keeps its slot
    /// and its lease for the scope's `max_lease_life`: set timeouts in the handler.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::{Abandoned, Claim, ClaimOptions, Failure, Json, Response, Scope, ScopeOptions};
    /// use std::time::Duration;
    ///
    /// let scope = Scope::new(&format!("doc.{idempotency_key}"));
    /// scope.set(&pool, &ScopeOptions::new().keep_request(true)).await?;
    /// let request = Json::of(&serde_json::json!({"amount": 100}))?;
    /// let claim = scope.key("k-1").claim(&pool, &ClaimOptions::new().request(request)).await?;
    /// # let Claim::Claimed(lease) = claim else { panic!() };
    /// // ... the process dies, or releases the key, and the client never retries ...
    /// # lease.release(&pool, None, None).await?;
    ///
    /// let shutdown = tokio::time::sleep(Duration::from_millis(300)); // in real life: SIGTERM
    /// let completed = scope
    ///     .completer(&pool)
    ///     .run(shutdown, |abandoned: Abandoned| async move {
    ///         let Some(request) = abandoned.request else {
    ///             return Err(Failure::unknown("the request was not kept"));
    ///         };
    ///         let order: serde_json::Value = request.parse()?;
    ///         // ... what the request path does, with abandoned.lease ...
    ///         Ok(Response::new(201).with_body(&order)?.into())
    ///     })
    ///     .await?;
    /// assert_eq!(completed.completed, 1);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// A final error of a take (`42501`, `22023` for a bad lease, a closed pool), or any other refusal of the first
    /// take, such as `25006` on a standby. Before this returns, all running handlers have ended or been stopped.
    pub async fn run<H: Complete>(
        self,
        shutdown: impl Future<Output = ()>,
        handler: H,
    ) -> Result<Completed, Error> {
        let (stage, places) = self.pace.share(&self.places, handler);
        let mut requests = Tasks::default();
        let taking = |shared| self.take_until_told(shared, &requests);
        let taken = until_told(&stage, shutdown, places.iter().map(taking)).await;
        let completed = requests.end(&stage, self.pace.grace).await;
        taken.map(|()| completed)
    }

    /// Takes keys for the handlers that are free; ends when the completer is told to stop, or a take fails for good.
    async fn take_until_told<H: Complete>(
        &self,
        shared: &Arc<Shared<E, H>>,
        requests: &Tasks<Completed>,
    ) -> Result<(), Error> {
        let mut intake = self.pace.intake(&self.scope, shared.shard, &shared.stage);
        loop {
            // One holder for a take and its retries: a retry after a lost answer gets the same keys.
            let holder = Uuid::new_v4().to_string();
            let (exec, lease) = (&shared.exec, self.pace.lease);
            let ask = || {
                // Takes a key for this loop's slot and for each free slot; if shards share the slots, only one key.
                let others = shared.slots.available_permits().min(LARGEST_TAKE - 1);
                let free = 1 + shared.shard.map_or(others, |_| 0);
                let free = i32::try_from(free).unwrap_or(i32::MAX);
                self.scope.take_abandoned(exec, free, lease, Some(&holder))
            };
            let some = |taken: Vec<Abandoned>| (!taken.is_empty()).then_some(taken);
            let Some((since, slot, taken)) = intake.find(&shared.slots, ask, some).await? else {
                return Ok(());
            };
            let more = || Arc::clone(&shared.slots).try_acquire_owned().ok();
            let free = std::iter::once(slot).chain(std::iter::repeat_with(more));
            for (mut abandoned, slot) in taken.into_iter().zip(free) {
                abandoned.shard = shared.shard;
                let request = bring_to_its_end(Arc::clone(shared), abandoned, since, slot);
                requests.begin(request.instrument(span_of(shared.shard)));
            }
        }
    }
}

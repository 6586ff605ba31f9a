//! Owns the teardown worker: it tears down flagged rows that have no lease, one after another.
//!
//! Invariant: no row stops the worker. A row that cannot be torn down is deferred with backoff, and the worker goes on
//! with the other rows. Many workers may run at once, since each step of a teardown may be repeated.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use super::pace::{DEFERRED, Pace, Place, settings, span_of};
use super::panics::caught;
use super::stage::{Stage, reached, until_told};
use crate::error::BoxError;
use crate::{Autocommit, CleanupItem, Error, Machine, MachineRow, PendingCancel, Shards};

const POLL_EVERY: Duration = Duration::from_secs(5);

/// How many rows the worker asks for at a time, not counting deferred rows.
const BATCH: usize = 100;

/// The server lists at most this many rows in one call.
const LONGEST_LIST: usize = 100_000;

/// A worker that tears down pending rows; made by [`Machine::teardown_worker`].
#[derive(Debug)]
#[must_use = "a worker does nothing until `run` is called"]
pub struct TeardownWorker<'e, E> {
    places: Vec<Place<&'e E>>,
    machine: Machine,
    batch: usize,
    pace: Pace,
}

/// The counts of a [`TeardownWorker`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TornDown {
    /// Teardowns that reached the cancelled state.
    pub cancelled: u64,
    /// Teardowns that failed; their rows were deferred.
    pub failed: u64,
}

/// Rows that could not be torn down: how often each failed, and until when it is deferred.
#[derive(Default)]
struct Deferred(HashMap<MachineRow, (u32, Instant)>);

impl Machine {
    /// Prepares to tear down the pending rows: flagged, without a lease, and not in a terminal status. The worker tears
    /// down one row at a time; its polls are at most 5 s apart. When told to stop, it finishes the running teardown,
    /// however long that takes. With a [`grace`](TeardownWorker::grace), it drops the teardown after that time, and the
    /// next worker repeats it from the start. Each call on the executor must commit by itself.
    pub fn teardown_worker<'e, E: Autocommit>(&self, exec: &'e E) -> TeardownWorker<'e, E> {
        self.teardown_worker_in(vec![(None, exec)])
    }

    /// A teardown worker over all shards: one row at a time in all shards together.
    pub fn teardown_worker_over<'e, E: Autocommit>(
        &self,
        shards: &'e Shards<E>,
    ) -> TeardownWorker<'e, E> {
        self.teardown_worker_in(shards.places())
    }

    fn teardown_worker_in<'e, E>(&self, places: Vec<Place<&'e E>>) -> TeardownWorker<'e, E> {
        let mut pace = Pace::new(1, POLL_EVERY);
        pace.grace = Duration::MAX;
        TeardownWorker {
            places,
            machine: self.clone(),
            batch: BATCH,
            pace,
        }
    }
}

impl<E: Autocommit> TeardownWorker<'_, E> {
    settings!(poll_every grace backoff waker);

    /// How many rows the worker lists at a time: 1 to 100,000, by default 100.
    pub fn batch(mut self, rows: usize) -> Self {
        self.batch = rows.clamp(1, LONGEST_LIST);
        self
    }

    /// Works until `shutdown` completes; a running teardown may go on for the [`grace`](Self::grace) time. `clean`
    /// gets a row and some of the row's items and deletes their artifacts: see [`Teardown::run`](crate::Teardown::run).
    ///
    /// If a row's teardown fails or `clean` panics, the row is deferred, and the worker goes on with other rows. The
    /// worker waits for a database that is unreachable or overloaded. Dropping this future stops the teardown at once;
    /// the next worker repeats that teardown from the start.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use std::time::Duration;
    ///
    /// machine.row(job).cancel().request(&pool).await?;
    /// let shutdown = tokio::time::sleep(Duration::from_millis(200)); // in real life: SIGTERM
    /// let done = machine
    ///     .teardown_worker(&pool)
    ///     .run(shutdown, |_row, _items| async {
    ///         // delete their artifacts
    ///         Ok::<(), std::io::Error>(())
    ///     })
    ///     .await?;
    /// assert_eq!((done.cancelled, done.failed), (1, 0));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// A final error of the call that lists rows: `42704`, `42501`, a closed pool; or any other refusal of the worker's
    /// first call.
    pub async fn run<C, F, X>(
        self,
        shutdown: impl Future<Output = ()>,
        clean: C,
    ) -> Result<TornDown, Error>
    where
        C: FnMut(MachineRow, Vec<CleanupItem>) -> F,
        F: Future<Output = Result<(), X>>,
        X: Into<BoxError>,
    {
        let (stage, seen) = watch::channel(Stage::Run);
        let turn = Mutex::new((TornDown::default(), clean));
        let work = self.places.iter().map(|(shard, exec)| {
            let work = self.work((*shard, *exec), seen.clone(), &turn);
            work.instrument(span_of(*shard))
        });
        until_told(&stage, shutdown, work).await?;
        Ok(turn.into_inner().0)
    }

    /// Tears down row after row; ends when the worker is told to stop, or the list of rows fails for good.
    async fn work<C, F, X>(
        &self,
        (shard, exec): Place<&E>,
        mut stage: watch::Receiver<Stage>,
        turn: &Mutex<(TornDown, C)>,
    ) -> Result<(), Error>
    where
        C: FnMut(MachineRow, Vec<CleanupItem>) -> F,
        F: Future<Output = Result<(), X>>,
        X: Into<BoxError>,
    {
        let mut deferred = Deferred::default();
        let mut intake = self.pace.intake(&self.machine, None, &stage);
        let slots = Arc::new(Semaphore::new(1)); // only this loop uses it
        loop {
            // The server lists deferred rows, too, so their number is added to the limit.
            let max = (self.batch + deferred.0.len()).min(LONGEST_LIST);
            let max = i32::try_from(max).unwrap_or(i32::MAX);
            let ask = || self.machine.cancel_pending(exec, max);
            let due = |pending| {
                let rows = deferred.due_among(pending, self.batch);
                (!rows.is_empty()).then_some(rows)
            };
            let Some((_, slot, rows)) = intake.find(&slots, ask, due).await? else {
                return Ok(());
            };
            drop(slot);
            for row in rows {
                let Some(mut turn) = intake.unless_told(turn.lock()).await else {
                    return Ok(());
                };
                let (torn_down, clean) = &mut *turn;
                let teardown = row.cancel().teardown(exec).backoff(self.pace.backoff);
                let clean = |items: Vec<CleanupItem>| {
                    let of_shard = |item| CleanupItem { shard, ..item };
                    clean(row.clone(), items.into_iter().map(of_shard).collect())
                };
                let ended = tokio::select! {
                    biased;
                    ended = caught(teardown.run(clean)) => ended,
                    () = self.grace_is_over(&mut stage) => return Ok(()),
                };
                let is_away = matches!(&ended, Ok(Err(error)) if error.may_pass());
                match ended {
                    Ok(Ok(cancelled)) => {
                        tracing::info!(?row, items = cancelled.items_total, amount = %cancelled.amount_total, "torn down");
                        torn_down.cancelled += 1;
                        deferred.0.remove(&row);
                        continue;
                    }
                    Ok(Err(error)) => deferred.add(row, &error),
                    Err(panic) => deferred.add(row, &format_args!("it panicked: {panic}")),
                }
                torn_down.failed += 1;
                if is_away {
                    break; // `find` waits for this database without `turn`, so other shards go on.
                }
            }
        }
    }

    async fn grace_is_over(&self, stage: &mut watch::Receiver<Stage>) {
        reached(stage, Stage::Finish).await;
        sleep(self.pace.grace).await;
    }
}

impl Deferred {
    fn add(&mut self, row: MachineRow, error: &dyn Display) {
        let failures = self.0.get(&row).map_or(0, |(failures, _)| *failures) + 1;
        let wait = DEFERRED.ceiling(failures);
        tracing::warn!(?row, %error, failures, ?wait, "a teardown failed");
        self.0.insert(row, (failures, Instant::now() + wait));
    }

    /// The pending rows that are not deferred, at most `most`, in random order, so that two workers seldom work on the
    /// same row. Forgets deferred rows that are no longer pending, such as rows torn down by another worker.
    fn due_among(&mut self, pending: Vec<PendingCancel>, most: usize) -> Vec<MachineRow> {
        let pending: Vec<MachineRow> = pending.into_iter().map(|pending| pending.row).collect();
        if !self.0.is_empty() {
            let listed: HashSet<&MachineRow> = pending.iter().collect();
            self.0.retain(|row, _| listed.contains(row));
        }
        let now = Instant::now();
        let is_due = |row: &MachineRow| self.0.get(row).is_none_or(|(_, until)| *until <= now);
        let mut rows: Vec<_> = pending.into_iter().filter(is_due).take(most).collect();
        rows.shuffle(&mut rand::rng());
        rows
    }
}

//! Owns the teardown worker: what is flagged and left behind is torn down, row after row.
//!
//! Invariant: no row stops it. One that cannot be torn down is put off, each time for longer, and
//! the others go on; many workers may run at once, since every step of a teardown converges.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use rand::seq::SliceRandom;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::pace::{PUT_OFF, Pace};
use super::panics::caught;
use super::stage::{Stage, reached, until_told};
use super::waker::Waker;
use crate::error::BoxError;
use crate::{Autocommit, Backoff, CleanupItem, Error, Machine, MachineRow, PendingCancel};

/// How long the worker waits when there is nothing to do, at most.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// How many rows it asks for at a time, beside those that are put off.
const BATCH: usize = 100;

/// The most rows that the server lists.
const LONGEST_LIST: usize = 100_000;

/// Tears down what waits for it; made by [`Machine::teardown_worker`].
#[derive(Debug)]
#[must_use = "a worker does nothing until `run` is called"]
pub struct TeardownWorker<'e, E> {
    exec: &'e E,
    machine: Machine,
    batch: usize,
    pace: Pace,
}

/// What a [`TeardownWorker`] did until it was told to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TornDown {
    /// Teardowns that reached the cancelled state.
    pub cancelled: u64,
    /// Teardowns that failed; their rows were put off and tried again.
    pub failed: u64,
}

/// Rows that could not be torn down, and until when they are left alone.
#[derive(Default)]
struct PutOff(HashMap<MachineRow, (u32, Instant)>);

impl Machine {
    /// Prepares to tear down what waits for it: rows whose flag is set, that nobody is at, and that
    /// are not finished. The executor is one on which each call commits by itself.
    pub fn teardown_worker<'e, E: Autocommit>(&self, exec: &'e E) -> TeardownWorker<'e, E> {
        TeardownWorker {
            exec,
            machine: self.clone(),
            batch: BATCH,
            // One row at a time, and for as long as it takes.
            pace: Pace::new(1, POLL_EVERY).grace(Duration::MAX),
        }
    }
}

impl<E: Autocommit> TeardownWorker<'_, E> {
    /// How long it waits when there is nothing to do, at most (5 s; not under 10 ms); it begins with much
    /// less after the last row and doubles it.
    pub fn poll_every(self, time: Duration) -> Self {
        Self {
            pace: self.pace.poll_every(time),
            ..self
        }
    }

    /// How many rows it takes up at a time (100), from 1 to 100,000.
    pub fn batch(self, rows: usize) -> Self {
        Self {
            batch: rows.clamp(1, LONGEST_LIST),
            ..self
        }
    }

    /// How long a teardown that has begun when the worker is told to stop may go on (as long as it takes,
    /// if nothing is said). What is not done then is dropped; the next worker begins that row from the top.
    pub fn grace(self, time: Duration) -> Self {
        Self {
            pace: self.pace.grace(time),
            ..self
        }
    }

    /// How patiently calls to the database are repeated.
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

    /// Works until `shutdown` completes; a teardown that has begun is brought to its end first.
    /// `clean` deletes the artifacts of a page of a row's items: see
    /// [`Teardown::run`](crate::Teardown::run).
    ///
    /// A row whose teardown fails, or whose callback panics, is put off and the others go on. A database
    /// that is away or overloaded is waited for. Dropping this future stops at once; the next worker begins that row from the top.
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
    /// What makes asking for work pointless: `42704`, `42501`, a closed pool, and whatever else the first
    /// call is refused with.
    pub async fn run<C, F, X>(
        self,
        shutdown: impl Future<Output = ()>,
        mut clean: C,
    ) -> Result<TornDown, Error>
    where
        C: FnMut(MachineRow, Vec<CleanupItem>) -> F,
        F: Future<Output = Result<(), X>>,
        X: Into<BoxError>,
    {
        let (stage, seen) = watch::channel(Stage::Run);
        let mut torn_down = TornDown::default();
        let work = self.work(seen, &mut torn_down, &mut clean);
        until_told(&stage, shutdown, work).await?;
        Ok(torn_down)
    }

    /// Row after row; ends when the worker is told to stop, or asking is pointless.
    async fn work<C, F, X>(
        &self,
        mut stage: watch::Receiver<Stage>,
        torn_down: &mut TornDown,
        clean: &mut C,
    ) -> Result<(), Error>
    where
        C: FnMut(MachineRow, Vec<CleanupItem>) -> F,
        F: Future<Output = Result<(), X>>,
        X: Into<BoxError>,
    {
        let mut put_off = PutOff::default();
        let mut intake = self.pace.intake(&self.machine, &stage);
        loop {
            // Rows that are put off are on top of the server's list, and must not hide the others.
            let max = (self.batch + put_off.0.len()).min(LONGEST_LIST);
            let max = i32::try_from(max).unwrap_or(i32::MAX);
            let ask = || self.machine.cancel_pending(self.exec, max);
            let Some((_, pending)) = intake.ask(ask).await? else {
                return Ok(());
            };
            let rows = put_off.due_among(pending, self.batch);
            if rows.is_empty() {
                intake.idle().await;
                continue;
            }
            intake.found();
            for row in rows {
                if intake.is_told() {
                    return Ok(());
                }
                let ended = tokio::select! {
                    biased;
                    ended = caught(self.tear_down(&row, clean)) => ended,
                    () = self.grace_is_over(&mut stage) => return Ok(()),
                };
                match ended {
                    Ok(Ok(())) => {
                        torn_down.cancelled += 1;
                        put_off.0.remove(&row);
                        continue;
                    }
                    Ok(Err(error)) => put_off.add(row, &error),
                    Err(panic) => put_off.add(row, &format_args!("it panicked: {panic}")),
                }
                torn_down.failed += 1;
            }
        }
    }

    /// The worker was told to stop, and what is at work has had its time.
    async fn grace_is_over(&self, stage: &mut watch::Receiver<Stage>) {
        reached(stage, Stage::Finish).await;
        sleep(self.pace.grace).await;
    }

    async fn tear_down<C, F, X>(&self, row: &MachineRow, clean: &mut C) -> Result<(), Error>
    where
        C: FnMut(MachineRow, Vec<CleanupItem>) -> F,
        F: Future<Output = Result<(), X>>,
        X: Into<BoxError>,
    {
        let teardown = row.cancel().teardown(self.exec).backoff(self.pace.backoff);
        let cancelled = teardown.run(|items| clean(row.clone(), items)).await?;
        tracing::info!(?row, items = cancelled.items_total, amount = %cancelled.amount_total, "torn down");
        Ok(())
    }
}

impl PutOff {
    fn add(&mut self, row: MachineRow, error: &dyn Display) {
        let failures = self.0.get(&row).map_or(0, |(failures, _)| *failures) + 1;
        let wait = PUT_OFF.ceiling(failures);
        tracing::warn!(?row, %error, failures, ?wait, "a teardown failed");
        self.0.insert(row, (failures, Instant::now() + wait));
    }

    /// The rows on the list that are not put off, so many at most, in an order of its own for each worker:
    /// two of them do not go through the same list hand in hand. Rows that are not on the list any more are
    /// forgotten; somebody else has torn them down.
    fn due_among(&mut self, pending: Vec<PendingCancel>, most: usize) -> Vec<MachineRow> {
        let pending: Vec<MachineRow> = pending.into_iter().map(|pending| pending.row).collect();
        if !self.0.is_empty() {
            let listed: HashSet<&MachineRow> = pending.iter().collect();
            self.0.retain(|row, _| listed.contains(row));
        }
        let due = pending.into_iter().filter(|row| self.is_due(row));
        let mut rows: Vec<MachineRow> = due.take(most).collect();
        rows.shuffle(&mut rand::rng());
        rows
    }

    fn is_due(&self, row: &MachineRow) -> bool {
        self.0
            .get(row)
            .is_none_or(|(_, until)| *until <= Instant::now())
    }
}

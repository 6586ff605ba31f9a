//! Owns the teardown worker: what is flagged and left behind is torn down, row after row.
//!
//! Invariant: no row stops it. One that cannot be torn down is put off, each time for longer, and
//! the others go on; many workers may run at once, since every step of a teardown converges.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use rand::seq::SliceRandom;
use tokio::sync::watch;
use tokio::time::Instant;

use super::poll::{PUT_OFF, Poll, Waker};
use super::stage::{Stage, until_answered, until_told};
use crate::error::BoxError;
use crate::{Autocommit, Backoff, CleanupItem, Error, Machine, MachineRow};

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
    poll_every: Duration,
    batch: usize,
    backoff: Backoff,
    waker: Waker,
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
            poll_every: POLL_EVERY,
            batch: BATCH,
            backoff: Backoff::default(),
            waker: Waker::new(),
        }
    }
}

impl<E: Autocommit> TeardownWorker<'_, E> {
    /// How long it waits when there is nothing to do, at most (5 s); it begins with much less after the
    /// last row and doubles it.
    pub fn poll_every(self, time: Duration) -> Self {
        Self {
            poll_every: time,
            ..self
        }
    }

    /// How many rows it takes up at a time.
    pub fn batch(self, rows: usize) -> Self {
        Self {
            batch: rows.clamp(1, LONGEST_LIST),
            ..self
        }
    }

    /// How patiently calls to the database are repeated.
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Wakes the worker when it is idle: see [`Waker`].
    pub fn waker(self, waker: &Waker) -> Self {
        Self {
            waker: waker.clone(),
            ..self
        }
    }

    /// Works until `shutdown` completes; a teardown that has begun is brought to its end first.
    /// `clean` deletes the artifacts of a page of a row's items: see
    /// [`Teardown::run`](crate::Teardown::run).
    ///
    /// A row whose teardown fails is put off and the others go on. A database that is away is waited
    /// for. Dropping this future stops at once; the next worker begins that row from the top.
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
    /// What makes asking for work pointless: `42704`, `42501`, a closed pool.
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
        let mut poll = Poll::new(self.poll_every, &self.waker);
        while let Some(rows) = self.take(&mut put_off, &mut stage).await? {
            if rows.is_empty() {
                if !poll.wait_unless_told(&mut stage).await {
                    return Ok(());
                }
                continue;
            }
            poll.found();
            for row in rows {
                if *stage.borrow() >= Stage::Finish {
                    return Ok(());
                }
                match self.tear_down(&row, clean).await {
                    Ok(()) => {
                        torn_down.cancelled += 1;
                        put_off.0.remove(&row);
                    }
                    Err(error) => {
                        torn_down.failed += 1;
                        put_off.add(row, &error);
                    }
                }
            }
        }
        Ok(())
    }

    /// What can be torn down now, in an order of its own for each worker, so that two do not go
    /// through the same list hand in hand. Waits for a database that is away; `None` if the worker is
    /// told to stop.
    async fn take(
        &self,
        put_off: &mut PutOff,
        stage: &mut watch::Receiver<Stage>,
    ) -> Result<Option<Vec<MachineRow>>, Error> {
        if *stage.borrow() >= Stage::Finish {
            return Ok(None);
        }
        // Rows that are put off are on top of the server's list, and must not hide the others.
        let max = (self.batch + put_off.0.len()).min(LONGEST_LIST);
        let max = i32::try_from(max).unwrap_or(i32::MAX);
        let ask = || self.machine.cancel_pending(self.exec, max);
        let answer = until_answered(&self.machine, &self.backoff, stage, ask).await?;
        let Some((_, pending)) = answer else {
            return Ok(None);
        };
        let pending: Vec<MachineRow> = pending.into_iter().map(|pending| pending.row).collect();
        put_off.keep_only(&pending);
        let mut rows: Vec<MachineRow> = pending
            .into_iter()
            .filter(|row| put_off.is_due(row))
            .take(self.batch)
            .collect();
        rows.shuffle(&mut rand::rng());
        Ok(Some(rows))
    }

    async fn tear_down<C, F, X>(&self, row: &MachineRow, clean: &mut C) -> Result<(), Error>
    where
        C: FnMut(MachineRow, Vec<CleanupItem>) -> F,
        F: Future<Output = Result<(), X>>,
        X: Into<BoxError>,
    {
        let teardown = row.cancel().teardown(self.exec).backoff(self.backoff);
        let cancelled = teardown.run(|items| clean(row.clone(), items)).await?;
        tracing::info!(?row, items = cancelled.items_total, amount = %cancelled.amount_total, "torn down");
        Ok(())
    }
}

impl PutOff {
    fn add(&mut self, row: MachineRow, error: &Error) {
        let failures = self.0.get(&row).map_or(0, |(failures, _)| *failures) + 1;
        let wait = PUT_OFF.ceiling(failures);
        tracing::warn!(?row, %error, failures, ?wait, "a teardown failed");
        self.0.insert(row, (failures, Instant::now() + wait));
    }

    /// Forgets rows that are not on the list any more: somebody else has torn them down.
    fn keep_only(&mut self, listed: &[MachineRow]) {
        if !self.0.is_empty() {
            let listed: std::collections::HashSet<&MachineRow> = listed.iter().collect();
            self.0.retain(|row, _| listed.contains(row));
        }
    }

    fn is_due(&self, row: &MachineRow) -> bool {
        self.0
            .get(row)
            .is_none_or(|(_, until)| *until <= Instant::now())
    }
}

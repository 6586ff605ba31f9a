//! Owns the teardown worker: what is flagged and left behind is torn down, row after row.
//!
//! Invariant: no row stops it. One that cannot be torn down is put off, each time for longer, and
//! the others go on; many workers may run at once, since every step of a teardown converges.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use rand::Rng;
use rand::seq::SliceRandom;
use tokio::time::{Instant, sleep};

use crate::error::BoxError;
use crate::{Autocommit, Backoff, CleanupItem, Error, Machine, MachineRow};

/// How long the worker waits when there is nothing to do, at most.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// How many rows it asks for at a time, beside those that are put off.
const BATCH: usize = 100;

/// The most rows that the server lists.
const LONGEST_LIST: usize = 100_000;

/// How long a row that cannot be torn down is put off.
const PUT_OFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(300),
    tries: u32::MAX,
    call_timeout: Duration::MAX,
};

/// Tears down what waits for it; made by [`Machine::teardown_worker`].
#[derive(Debug)]
#[must_use = "a worker does nothing until `run` is called"]
pub struct TeardownWorker<'e, E> {
    exec: &'e E,
    machine: Machine,
    poll_every: Duration,
    batch: usize,
    backoff: Backoff,
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
        }
    }
}

impl<E: Autocommit> TeardownWorker<'_, E> {
    /// How long it waits when there is nothing to do: a random time up to this, and at least half.
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
        let mut shutdown = pin!(shutdown);
        let (mut put_off, mut torn_down) = (PutOff::default(), TornDown::default());
        loop {
            let rows = tokio::select! {
                biased;
                () = &mut shutdown => return Ok(torn_down),
                rows = self.take(&mut put_off) => rows?,
            };
            let idle = rows.is_empty();
            for row in rows {
                match self.tear_down(&row, &mut clean).await {
                    Ok(()) => {
                        torn_down.cancelled += 1;
                        put_off.0.remove(&row);
                    }
                    Err(error) => {
                        torn_down.failed += 1;
                        put_off.add(row, &error);
                    }
                }
                if is_ready(shutdown.as_mut()).await {
                    return Ok(torn_down);
                }
            }
            if idle {
                let wait = self.poll_every.mul_f64(rand::rng().random_range(0.5..=1.0));
                tokio::select! {
                    biased;
                    () = &mut shutdown => return Ok(torn_down),
                    () = sleep(wait) => {}
                }
            }
        }
    }

    /// What can be torn down now, in an order of its own for each worker, so that two do not go
    /// through the same list hand in hand. Waits for a database that is away.
    async fn take(&self, put_off: &mut PutOff) -> Result<Vec<MachineRow>, Error> {
        // Rows that are put off are on top of the server's list, and must not hide the others.
        let max = (self.batch + put_off.0.len()).min(LONGEST_LIST);
        let max = i32::try_from(max).unwrap_or(i32::MAX);
        let pending = loop {
            let ask = || self.machine.cancel_pending(self.exec, max);
            match self.backoff.retry(ask).await {
                Ok(pending) => break pending,
                Err(error) if error.is_retryable() => {
                    tracing::warn!(machine = self.machine.as_str(), %error, "asking for teardowns failed");
                    sleep(self.poll_every).await;
                }
                Err(error) => return Err(error),
            }
        };
        let pending: Vec<MachineRow> = pending.into_iter().map(|pending| pending.row).collect();
        put_off.keep_only(&pending);
        let mut rows: Vec<MachineRow> = pending
            .into_iter()
            .filter(|row| put_off.is_due(row))
            .take(self.batch)
            .collect();
        rows.shuffle(&mut rand::rng());
        Ok(rows)
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

/// Whether a future has completed, without waiting for it.
async fn is_ready(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
    tokio::select! {
        biased;
        () = future => true,
        () = std::future::ready(()) => false,
    }
}

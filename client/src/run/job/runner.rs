//! Owns running a cancellable job: claim, item by item, and an end in every case.
//!
//! Invariant: an item's writes commit only together with an extension of the lease that did not say
//! `cancelling`; whatever the job and the network do, the row ends in a state from which the next
//! claim, or a teardown, goes on rightly. The runner may be dropped at any await: then the lease runs
//! out by itself and a sweep gives the row back.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::time::Instant;

use super::super::heartbeat::Heartbeat;
use super::super::storable;
use super::watch::Watch;
use super::{Job, JobFailure, JobOutcome};
use crate::{
    Action, ActionClaim, ActionEnd, ActionOptions, Backoff, Error, Json, Kind, MachineRow,
};

/// How long a runner goes without looking for a cancellation before it begins an item.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Runs one row's job as the action of a step; made by [`MachineRow::job`].
#[derive(Debug)]
#[must_use = "a runner does nothing until `run` is called"]
pub struct JobRunner<'p> {
    pool: &'p Pool,
    row: MachineRow,
    step_key: String,
    options: ActionOptions,
    check_every: Duration,
    backoff: Backoff,
}

/// How the work under a lease ended.
enum End {
    Finished(JobOutcome),
    Cancelling,
    LeaseLost,
    Failed(JobFailure),
}

/// How a turn ended, if the work did not.
enum Turn {
    Done,
    End(End),
}

/// The item that is being worked on, for as long as its artifact may be deleted again.
struct AtHand<I>(Option<I>);

impl MachineRow {
    /// Prepares to run this row's job as the action of a step. The runner takes a pool: it opens the
    /// items' transactions, and its heartbeat needs a connection beside them.
    pub fn job<'p>(&self, pool: &'p Pool, step_key: &str) -> JobRunner<'p> {
        JobRunner {
            pool,
            row: self.clone(),
            step_key: step_key.to_owned(),
            options: ActionOptions::new(),
            check_every: CHECK_EVERY,
            backoff: Backoff::default(),
        }
    }
}

impl JobRunner<'_> {
    /// Who asks: whose claim state the row is to wear.
    pub fn requester(self, requester: impl Into<String>) -> Self {
        Self {
            options: self.options.requester(requester),
            ..self
        }
    }

    /// How long the lease lasts at a time, instead of the step's. It is extended while the job runs,
    /// so it says how soon others notice that this process died, not how long the job takes.
    pub fn lease(self, lease: Duration) -> Self {
        Self {
            options: self.options.lease(lease),
            ..self
        }
    }

    /// Before an item begins, the runner looks whether the job is being cancelled, unless it has
    /// heard from the server within this time (1 s, if nothing is said; zero: before each item). An
    /// item that has begun is worked to its end, and its own transaction looks again.
    pub fn check_every(self, time: Duration) -> Self {
        Self {
            check_every: time,
            ..self
        }
    }

    /// How patiently calls to the database are repeated, and how many times in a row it may fail
    /// under the items.
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Claims the row and works the job off; see [`Job`] for the order of things.
    ///
    /// - The claim has a fresh holder and is repeated with it until it is answered.
    /// - The lease is extended at every third of it. When it is lost, or cannot be extended before it
    ///   ends, the work is dropped and [`Job::discard`] deletes what the item at hand has left
    ///   outside ([`JobOutcome::LeaseLost`]).
    /// - When the job is being cancelled, the open transaction is rolled back, the row released and
    ///   torn down with [`Job::clean`] ([`JobOutcome::Cancelled`]). A teardown that fails is an
    ///   error; the row is then listed by
    ///   [`Machine::cancel_pending`](crate::Machine::cancel_pending).
    /// - When the job fails, the row is released: the next claim goes on with what is not done.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use deadpool_postgres::{Pool, Transaction};
    /// use pg_once::{Action, BoxError, CleanupItem, Job, JobFailure, JobOutcome};
    ///
    /// struct Batch(Pool, i64);
    ///
    /// impl Job for Batch {
    ///     type Item = i64;
    ///     type Made = ();
    ///
    ///     async fn next(&mut self, _: &Action) -> Result<Option<i64>, JobFailure> {
    ///         let pending = "SELECT id FROM batch_item WHERE job_id = $1 AND state = 'pending' LIMIT 1";
    ///         let row = self.0.get().await?.query_opt(pending, &[&self.1]).await?;
    ///         Ok(row.map(|row| row.get(0)))
    ///     }
    ///
    ///     async fn work(&mut self, _: &Action, _item: &i64) -> Result<(), JobFailure> {
    ///         Ok(()) // the expensive call
    ///     }
    ///
    ///     async fn save(&mut self, tx: &Transaction<'_>, item: &i64, _: &()) -> Result<(), JobFailure> {
    ///         let done = "UPDATE batch_item SET state = 'succeeded' WHERE id = $1";
    ///         tx.execute(done, &[item]).await?;
    ///         Ok(())
    ///     }
    ///
    ///     async fn discard(&mut self, _: &Action, _item: &i64) {}
    ///
    ///     async fn clean(&self, _items: Vec<CleanupItem>) -> Result<(), BoxError> {
    ///         Ok(()) // delete their artifacts
    ///     }
    /// }
    ///
    /// let mut batch = Batch(pool.clone(), job);
    /// let outcome = machine.row(job).job(&pool, "run").requester("worker").run(&mut batch).await?;
    /// assert!(matches!(outcome, JobOutcome::Finished { status, .. } if status == "done"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// What the database says when it cannot be reached, refuses, or fails for good;
    /// [`Error::Cleanup`] if the job was being cancelled and its artifacts could not be deleted.
    pub async fn run<J: Job>(self, job: &mut J) -> Result<JobOutcome, Error> {
        let (since, claim) = self.claim().await?;
        match claim {
            ActionClaim::Claimed(action) => self.hold(&action, since, job).await,
            ActionClaim::Cancelling => self.tear_down(job).await,
            ActionClaim::Busy { retry_after } => Ok(JobOutcome::Busy { retry_after }),
            ActionClaim::Refused { status, .. } => Ok(JobOutcome::Refused { status }),
            ActionClaim::NotFound => Ok(JobOutcome::NotFound),
            ActionClaim::Unclaimed => Ok(JobOutcome::Unclaimed),
        }
    }

    /// Claims with a fresh holder, repeated until answered. Tells since when the lease counts at the
    /// latest.
    async fn claim(&self) -> Result<(Instant, ActionClaim), Error> {
        let options = self.options.clone().fresh_holder();
        let ask = || async {
            let sent = Instant::now();
            let claim = self.row.claim(self.pool, &self.step_key, &options).await?;
            Ok((sent, claim))
        };
        self.backoff.retry(ask).await
    }

    async fn hold<J: Job>(
        &self,
        action: &Action,
        since: Instant,
        job: &mut J,
    ) -> Result<JobOutcome, Error> {
        let watch = Watch::new(action, since);
        let heartbeat = Heartbeat {
            exec: self.pool,
            backoff: &self.backoff,
            lease: &watch,
            since,
        };
        let mut at_hand = AtHand(None);
        let end = tokio::select! {
            biased;
            end = self.work_off(action, &watch, job, &mut at_hand) => end,
            () = heartbeat.until_lost() => End::LeaseLost,
        };
        match end {
            End::Finished(outcome) => Ok(outcome),
            End::Cancelling => {
                self.give_back(action, None).await?;
                self.tear_down(job).await
            }
            End::LeaseLost => self.lost(action, job, at_hand).await,
            End::Failed(JobFailure::Release(error)) => {
                match self.give_back(action, Some(&error)).await? {
                    true => Ok(JobOutcome::Released { error }),
                    false => self.lost(action, job, at_hand).await,
                }
            }
            End::Failed(JobFailure::Error(error)) => {
                match self.give_back(action, Some(&error.to_string())).await {
                    Ok(true) => Err(error),
                    Ok(false) => self.lost(action, job, at_hand).await,
                    Err(refusal) => {
                        tracing::warn!(row = ?self.row, error = %refusal, "could not be given back");
                        Err(error)
                    }
                }
            }
        }
    }

    /// Item by item, until the job has an end of some kind.
    async fn work_off<J: Job>(
        &self,
        action: &Action,
        watch: &Watch<'_>,
        job: &mut J,
        at_hand: &mut AtHand<J::Item>,
    ) -> End {
        let mut failures = 0;
        loop {
            let error = match self.turn(action, watch, job, at_hand).await {
                Ok(Turn::Done) => {
                    failures = 0;
                    continue;
                }
                Ok(Turn::End(end)) => return end,
                Err(JobFailure::Error(error)) => error,
                Err(failure) => return End::Failed(failure),
            };
            failures += 1;
            if error.kind() == Kind::LeaseLost {
                return End::LeaseLost;
            }
            if failures >= self.backoff.tries || !error.is_retryable() {
                return End::Failed(error.into());
            }
            tracing::info!(row = ?self.row, %error, failures, "the database failed under an item; once more");
            tokio::time::sleep(self.backoff.wait(failures)).await;
        }
    }

    /// One item, or the end of the job.
    async fn turn<J: Job>(
        &self,
        action: &Action,
        watch: &Watch<'_>,
        job: &mut J,
        at_hand: &mut AtHand<J::Item>,
    ) -> Result<Turn, JobFailure> {
        let item = job.next(action).await?;
        if watch.silence() >= self.check_every {
            watch.look(self.pool).await?;
        }
        if watch.is_cancelling() {
            return Ok(Turn::End(End::Cancelling));
        }
        let Some(item) = item else {
            return self.finish(action, job).await.map(Turn::End);
        };
        let item = at_hand.0.insert(item);
        let made = job.work(action, item).await?;
        if watch.is_cancelling() || !self.save(watch, job, at_hand, &made).await? {
            return Ok(Turn::End(End::Cancelling));
        }
        Ok(Turn::Done)
    }

    /// The item's writes, together with the extension that fences them; `false`: the job is being
    /// cancelled and nothing was written.
    async fn save<J: Job>(
        &self,
        watch: &Watch<'_>,
        job: &mut J,
        at_hand: &mut AtHand<J::Item>,
        made: &J::Made,
    ) -> Result<bool, JobFailure> {
        let mut failures = 0;
        loop {
            match self.save_once(watch, job, at_hand, made).await {
                // The transaction was rolled back, for certain: the work need not be done again.
                Err(JobFailure::Error(error))
                    if error.kind() == Kind::Conflict && failures + 1 < self.backoff.tries =>
                {
                    failures += 1;
                    tokio::time::sleep(self.backoff.wait(failures)).await;
                }
                end => return end,
            }
        }
    }

    async fn save_once<J: Job>(
        &self,
        watch: &Watch<'_>,
        job: &mut J,
        at_hand: &mut AtHand<J::Item>,
        made: &J::Made,
    ) -> Result<bool, JobFailure> {
        let Some(item) = at_hand.0.as_ref() else {
            return Ok(true);
        };
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        watch.look(&transaction).await?;
        if watch.is_cancelling() {
            transaction.rollback().await?;
            return Ok(false);
        }
        job.save(&transaction, item, made).await?;
        // From here on nobody knows whether the item is saved until the answer is there: what it has
        // made must not be deleted.
        let item = at_hand.0.take();
        match transaction.commit().await.map_err(Error::from) {
            Ok(()) => Ok(true),
            Err(error) => {
                if error.kind() == Kind::Conflict {
                    at_hand.0 = item;
                }
                Err(error.into())
            }
        }
    }

    /// The end of the action and the job's last writes, together.
    async fn finish<J: Job>(&self, action: &Action, job: &mut J) -> Result<End, JobFailure> {
        let patch = job.result().await?;
        let mut failures = 0;
        loop {
            let error = match self.finish_once(action, job, patch.as_ref()).await {
                Err(JobFailure::Error(error)) => error,
                end => return end,
            };
            failures += 1;
            if failures >= self.backoff.tries || !error.is_retryable() {
                return Err(error.into());
            }
            tokio::time::sleep(self.backoff.wait(failures)).await;
            if error.kind() != Kind::Conflict && self.is_finished(action).await? {
                // A commit whose answer was lost; the same call again tells what it said.
                let ask = || action.finish(self.pool, patch.as_ref());
                return Ok(end_of(self.backoff.retry(ask).await?));
            }
        }
    }

    async fn finish_once<J: Job>(
        &self,
        action: &Action,
        job: &mut J,
        patch: Option<&Json>,
    ) -> Result<End, JobFailure> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        // The row before the items: the order in which everybody locks.
        let end = end_of(action.finish(&transaction, patch).await?);
        if matches!(end, End::Cancelling) {
            transaction.rollback().await?;
            return Ok(end);
        }
        job.finish(&transaction).await?;
        transaction.commit().await?;
        Ok(end)
    }

    async fn is_finished(&self, action: &Action) -> Result<bool, Error> {
        let ask = || action.extend(self.pool, None);
        match self.backoff.retry(ask).await {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == Kind::AlreadyFinished => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Releases the row; `false` if it was taken away.
    async fn give_back(&self, action: &Action, reason: Option<&str>) -> Result<bool, Error> {
        let reason = reason.map(storable);
        let release = || action.release(self.pool, reason.as_deref());
        match self.backoff.retry(release).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::LeaseLost => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Somebody else may be at the row: what this attempt has made goes, and nothing more.
    async fn lost<J: Job>(
        &self,
        action: &Action,
        job: &mut J,
        at_hand: AtHand<J::Item>,
    ) -> Result<JobOutcome, Error> {
        if let AtHand(Some(item)) = at_hand {
            job.discard(action, &item).await;
        }
        Ok(JobOutcome::LeaseLost)
    }

    async fn tear_down<J: Job>(&self, job: &J) -> Result<JobOutcome, Error> {
        let teardown = self.row.cancel().teardown(self.pool).backoff(self.backoff);
        let cancelled = teardown.run(|items| job.clean(items)).await?;
        Ok(JobOutcome::Cancelled(cancelled))
    }
}

fn end_of(end: ActionEnd) -> End {
    match end {
        ActionEnd::Finished { status, version } => {
            End::Finished(JobOutcome::Finished { status, version })
        }
        ActionEnd::Cancelling => End::Cancelling,
    }
}

//! Runs a cancellable job: the claim, the items, and then the finish, a release or a teardown.
//!
//! Invariant: whatever the job and the network do, the next claim or a teardown can go on from the row's state. The
//! runner may be dropped at any await: then the lease expires and a sweep reverts the row.

use std::future::{Future, pending};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::time::Instant;

use super::super::attempt::STOPPED;
use super::super::pace::{Pace, settings};
use super::super::watch::Watch;
use super::items::{End, Items};
use super::{Job, JobFailure, JobOutcome};
use crate::{Action, ActionClaim, ActionOptions, Begin, Error, Kind, MachineRow};

/// The default of [`JobRunner::check_every`].
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The runner of one row's job; made by [`MachineRow::job`].
#[derive(Debug)]
#[must_use = "a runner does nothing until `run` is called"]
pub struct JobRunner<'p, P = Pool> {
    pool: &'p P,
    row: MachineRow,
    step_key: String,
    options: ActionOptions,
    check_every: Duration,
    pace: Pace,
}

impl MachineRow {
    /// Prepares to run this row's job as the action of the machine's step `step_key`. The runner takes a pool, because
    /// it opens the items' transactions and its heartbeat may use another connection.
    pub fn job<'p, P: Begin>(&self, pool: &'p P, step_key: &str) -> JobRunner<'p, P> {
        JobRunner {
            pool,
            row: self.clone(),
            step_key: step_key.to_owned(),
            options: ActionOptions::new(),
            check_every: CHECK_EVERY,
            pace: Pace::new(1, Duration::ZERO),
        }
    }
}

impl<P: Begin> JobRunner<'_, P> {
    settings!(lease backoff);

    /// The requester's name. The step declares a claim state and a successful state for it.
    pub fn requester(mut self, requester: impl Into<String>) -> Self {
        self.options = self.options.requester(requester);
        self
    }

    /// How often the runner asks, between items, whether the job is being cancelled. The claim and each extension of
    /// the lease count as such a question. The default is 1 s; with zero, the runner asks before each item. An item
    /// that has begun is worked on to its end; then the transaction of [`Job::save`] asks again.
    pub fn check_every(mut self, time: Duration) -> Self {
        self.check_every = time;
        self
    }

    /// Claims the row and runs the job; see [`Job`] for the order of its calls.
    ///
    /// - The claim has a fresh holder and is retried with this holder, as often as the [backoff](Self::backoff) allows.
    /// - When the [lease](Self::lease) is lost, the work is dropped and [`Job::discard`] deletes the artifacts of the
    ///   present item ([`JobOutcome::LeaseLost`]).
    /// - When the job is being cancelled, the open transaction is rolled back, the row released and torn down with
    ///   [`Job::clean`] ([`JobOutcome::Cancelled`]). If the teardown fails, its error is returned, and
    ///   [`Machine::cancel_pending`](crate::Machine::cancel_pending) lists the row.
    /// - When the job fails, the row is released: the next claim goes on with the remaining items. A panic of any
    ///   method but [`Job::discard`] also releases the row; then the panic is resumed.
    ///
    /// The job's methods run in the heartbeat's task: if a method blocks its thread for longer than two thirds of the
    /// lease, the lease may be lost. If this future is dropped, a sweep reverts the row after the lease has expired.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use pg_once::{Action, BoxError, CleanupItem, Job, JobFailure, JobOutcome, OpenTransaction};
    ///
    /// struct Batch(i64);
    ///
    /// impl Job for Batch {
    ///     type Item = i64;
    ///     type Made = ();
    ///
    ///     async fn next(&mut self, tx: &OpenTransaction, _: &Action) -> Result<Option<i64>, JobFailure> {
    ///         let pending = "SELECT id FROM batch_item WHERE job_id = $1 AND state = 'pending' LIMIT 1";
    ///         let row = tx.query_opt(pending, &[&self.0]).await?;
    ///         Ok(row.map(|row| row.get(0)))
    ///     }
    ///
    ///     async fn work(&mut self, _: &Action, _item: &i64) -> Result<(), JobFailure> {
    ///         Ok(()) // the expensive call
    ///     }
    ///
    ///     async fn save(&mut self, tx: &OpenTransaction, item: &i64, _: &()) -> Result<(), JobFailure> {
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
    /// let mut batch = Batch(job);
    /// let outcome = machine.row(job).job(&pool, "run").requester("worker").run(&mut batch).await?;
    /// assert!(matches!(outcome, JobOutcome::Finished { status, .. } if status == "done"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The error in the job's [`JobFailure::Error`]; the error of a database that refuses a call or cannot be reached;
    /// [`Error::Other`] if the artifacts of a cancelled job cannot be deleted.
    pub async fn run<J: Job>(self, job: &mut J) -> Result<JobOutcome, Error> {
        self.run_until(pending(), job).await
    }

    /// [`JobRunner::run`], but the job is stopped when `stop` completes: [`Job::discard`] deletes the artifacts of the
    /// present item, and the row is released ([`JobOutcome::Released`]). Any future is a stop signal, such as a
    /// `CancellationToken`'s `cancelled_owned()`.
    ///
    /// # Errors
    /// As [`JobRunner::run`].
    pub async fn run_until<J: Job>(
        self,
        stop: impl Future<Output = ()>,
        job: &mut J,
    ) -> Result<JobOutcome, Error> {
        let mut options = self.options.clone().fresh_holder();
        options.lease = self.pace.lease;
        let ask = || self.row.claim(self.pool, &self.step_key, &options);
        let (since, claim) = self.pace.claim(ask).await?;
        match claim {
            ActionClaim::Claimed(action) => self.hold(&action, since, stop, job).await,
            ActionClaim::Cancelling => self.tear_down(job).await,
            ActionClaim::InProgress { retry_after } => Ok(JobOutcome::InProgress { retry_after }),
            ActionClaim::Refused { status, .. } => Ok(JobOutcome::Refused { status }),
            ActionClaim::NotFound => Ok(JobOutcome::NotFound),
            ActionClaim::Unclaimed => Ok(JobOutcome::Unclaimed),
        }
    }

    async fn hold<J: Job>(
        &self,
        action: &Action,
        since: Instant,
        stop: impl Future<Output = ()>,
        job: &mut J,
    ) -> Result<JobOutcome, Error> {
        let watch = Watch::new(self.pool, &self.pace.backoff, action, since);
        let (mut at_hand, mut finishing) = (None, None);
        let mut items = Items {
            check_every: self.check_every,
            watch: &watch,
            job: &mut *job,
            at_hand: &mut at_hand,
            finishing: &mut finishing,
        };
        let end = tokio::select! {
            biased;
            end = watch.run(items.work_off()) => end.unwrap_or(End::LeaseLost),
            () = stop => End::Stopped,
        };
        if let (End::LeaseLost | End::Stopped, Some(item)) = (&end, &at_hand) {
            job.discard(action, item).await;
            at_hand = None;
        }
        let released = match end {
            End::Finished(outcome) => return Ok(outcome),
            End::Cancelling => {
                watch.give_back(None).await?;
                return self.tear_down(job).await;
            }
            End::LeaseLost => None,
            End::Stopped => match (watch.fail(JobFailure::release(STOPPED)).await, finishing) {
                // The stop came during the last commit, which succeeded.
                (Err(error), Some(end)) if error.kind() == Kind::AlreadyDone => return Ok(end),
                (released, _) => released?,
            },
            End::Failed(failure) => watch.fail(failure).await?,
        };
        if let Some(error) = released {
            return Ok(JobOutcome::Released { error });
        }
        if let Some(item) = at_hand {
            job.discard(action, &item).await;
        }
        Ok(JobOutcome::LeaseLost)
    }

    async fn tear_down<J: Job>(&self, job: &J) -> Result<JobOutcome, Error> {
        let teardown = self.row.cancel().teardown(self.pool);
        let teardown = teardown.backoff(self.pace.backoff);
        let cancelled = teardown.run(|items| job.clean(items)).await?;
        Ok(JobOutcome::Cancelled(cancelled))
    }
}

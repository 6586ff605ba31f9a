//! Runs one action: the claim, the work in the transaction that finishes the action, and the release.
//!
//! Invariant: the work's writes commit at most once. With a claim state, their transaction also finishes the action
//! under its lease. Without a claim state there is no lease, and their transaction moves the row. If the runner is
//! dropped, the lease expires and a sweep reverts the row.

use std::future::Future;
use std::time::Duration;

use super::job::JobFailure;
use super::pace::{Pace, settings};
use super::test_mode::{Begin, OpenTransaction};
use super::watch::Watch;
use crate::{
    Action, ActionClaim, ActionEnd, ActionOptions, Error, Json, MachineRow, Reason, Transition,
    Transitioned,
};

/// The runner of one row's action; made by [`MachineRow::action`].
#[derive(Debug)]
#[must_use = "a runner does nothing until `run` is called"]
pub struct ActionRunner {
    row: MachineRow,
    step_key: String,
    options: ActionOptions,
    to: Option<String>,
    pace: Pace,
}

/// The outcome of an action. A `match` must handle each case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acted {
    /// The work's writes are committed together with the row's move.
    Finished {
        /// The row's new status: the step's successful state, or the one given with [`to`](ActionRunner::to).
        status: String,
        /// The row's version, where the machine has one.
        version: Option<i64>,
    },
    /// Another attempt has the row, a sweep must still revert it, or the row or its machine is locked. Retry later.
    InProgress {
        /// The time to wait before asking again.
        retry_after: Duration,
    },
    /// The row's cancel flag is set, and no write of the work was committed: tear the row down.
    Cancelling,
    /// The row's status or version does not fit, or the step lacks this requester. The move that
    /// [`to`](ActionRunner::to) asks for is also refused while the move's `when` condition is not true.
    Refused {
        /// The status that the row has.
        status: Option<String>,
        /// The row's version, where the machine has one.
        version: Option<i64>,
    },
    /// There is no such row.
    NotFound,
    /// The step declares no claim state for this requester, and [`ActionRunner::to`] was not called.
    Unclaimed,
    /// The work asked for the release of the row; nothing was written.
    Released {
        /// The reason that the work gave.
        error: String,
    },
    /// Another holder has the lease, or the lease could not be kept alive. Nothing was written, unless the commit was
    /// on its way when the lease ended. So look at the row: if the action is not finished, delete what the work made
    /// outside the database.
    LeaseLost,
}

impl MachineRow {
    /// Prepares to run the action of a machine's step on this row: work that must not run twice and can die half-way.
    pub fn action(&self, step_key: &str) -> ActionRunner {
        ActionRunner {
            row: self.clone(),
            step_key: step_key.to_owned(),
            options: ActionOptions::new(),
            to: None,
            pace: Pace::new(1, Duration::ZERO),
        }
    }
}

impl ActionRunner {
    settings!(lease backoff);

    /// The requester, which decides the claim state of the row.
    pub fn requester(mut self, requester: impl Into<String>) -> Self {
        self.options = self.options.requester(requester);
        self
    }

    /// Claims the row only at this version.
    pub fn version(mut self, version: i64) -> Self {
        self.options = self.options.version(version);
        self
    }

    /// The status that a requester without a claim state moves the row to, in the transaction of the work.
    pub fn to(mut self, status: impl Into<String>) -> Self {
        self.to = Some(status.into());
        self
    }

    /// Claims the row, runs the work, and finishes the action in the work's transaction.
    ///
    /// - The claim commits before the work begins. It has a fresh holder, and is retried as the backoff allows.
    /// - The work gets the lease and an open transaction. It writes in this transaction, also with calls of this crate
    ///   (`topic.emit(&transaction, …)`), and returns values for columns of the row. The runner finishes the action in
    ///   the same transaction and commits.
    /// - Make foreign calls before the first write, while the transaction locks no row. Each call must take less than
    ///   the server's `idle_in_transaction_session_timeout`, as the transaction is open. Send an idempotency key that
    ///   stays the same until the action has finished. For example, join the row's id and a count of its finished
    ///   actions. Do not use the row's version, because each claim and each revert change it.
    /// - When the [lease](Self::lease) is lost, the work is stopped ([`Acted::LeaseLost`]).
    /// - After a lost race or connection the work runs again in a new transaction under the same lease, up to
    ///   [`Backoff::tries`](crate::Backoff::tries) times in all. If only the answer of the commit was lost, the work
    ///   does not run again.
    /// - When the work fails or panics, the transaction is rolled back and the row released.
    /// - For a requester without a claim state there is no lease: the work gets `None`, and its transaction moves
    ///   the row [`to`](Self::to) the given status.
    ///
    /// The work's writes lock their rows first, and the finish locks this row last. Another transaction of yours may
    /// lock the same rows in the other order. Then the two may deadlock. To prevent that, lock this row at the start of
    /// the work with `FOR NO KEY UPDATE`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use pg_once::{Acted, Json};
    ///
    /// # use pg_once::{EmitOptions, Topic, TopicOptions};
    /// # let topic = Topic::new(machine.as_str());
    /// # topic.set(&pool, &TopicOptions::new()).await?;
    /// let (run, topic) = (machine.row(job).action("run").requester("worker"), &topic);
    /// let acted = run.run(&pool, |_lease, transaction| async move {
    ///     transaction.execute("UPDATE batch_item SET state = 'succeeded' WHERE job_id = $1", &[&job]).await?;
    ///     topic.emit(&transaction, &Json::from_text("\"done\""), &EmitOptions::new()).await?;
    ///     Ok(Some(Json::of(&serde_json::json!({"result": "3 of 3"}))?))
    /// });
    /// assert!(matches!(acted.await?, Acted::Finished { status, .. } if status == "done"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Any error of the work, or of a database that refuses a call or cannot be reached. Then the row is released, or a
    /// sweep reverts it after the lease has expired. If the commit had no answer, such as in a failover, the action may
    /// be finished: look at the row. If there is no claim state, a lost answer of the commit is always an error.
    pub async fn run<P, W, F>(self, pool: &P, mut work: W) -> Result<Acted, Error>
    where
        P: Begin,
        W: FnMut(Option<Action>, OpenTransaction) -> F,
        F: Future<Output = Result<Option<Json>, JobFailure>>,
    {
        let mut options = self.options.clone().fresh_holder();
        options.lease = self.pace.lease;
        let ask = || self.row.claim(pool, &self.step_key, &options);
        let (since, claim) = self.pace.claim(ask).await?;
        let action = match claim {
            ActionClaim::Claimed(action) => action,
            ActionClaim::InProgress { retry_after } => {
                return Ok(Acted::InProgress { retry_after });
            }
            ActionClaim::Cancelling => return Ok(Acted::Cancelling),
            ActionClaim::Refused { status, version } => {
                let status = Some(status);
                return Ok(Acted::Refused { status, version });
            }
            ActionClaim::NotFound => return Ok(Acted::NotFound),
            ActionClaim::Unclaimed => return self.unclaimed(pool, &mut work).await,
        };
        let watch = Watch::new(pool, &self.pace.backoff, &action, since);
        let released = match watch.run(self.under_lease(&watch, &mut work)).await {
            Some(Ok(ActionEnd::Finished { status, version })) => {
                return Ok(Acted::Finished { status, version });
            }
            Some(Ok(ActionEnd::Cancelling)) => {
                watch.give_back(None).await?;
                return Ok(Acted::Cancelling);
            }
            Some(Err(failure)) => watch.fail(failure).await?,
            None => None,
        };
        Ok(released.map_or(Acted::LeaseLost, |error| Acted::Released { error }))
    }

    /// Runs the work and the finish in one transaction; repeats both after a retryable error.
    async fn under_lease<P, W, F>(
        &self,
        watch: &Watch<'_, P>,
        work: &mut W,
    ) -> Result<ActionEnd, JobFailure>
    where
        P: Begin,
        W: FnMut(Option<Action>, OpenTransaction) -> F,
        F: Future<Output = Result<Option<Json>, JobFailure>>,
    {
        let mut failures = self.pace.backoff.failures();
        loop {
            let attempt = async {
                if watch.is_cancelling() {
                    return Ok(ActionEnd::Cancelling);
                }
                let transaction = watch.begin().await?;
                let patch = work(Some(watch.action.clone()), transaction.clone()).await?;
                let end = watch.finish(&transaction, patch.as_ref()).await?;
                if end != ActionEnd::Cancelling {
                    watch.commit(transaction).await?;
                }
                Ok(end)
            };
            let error = match attempt.await {
                Err(JobFailure::Error(error)) => error,
                end => return end,
            };
            tracing::info!(row = ?self.row, %error, "the database failed during an action");
            failures.wait(error, Error::is_retryable).await?;
        }
    }

    /// Runs the work and the move in one transaction; repeats both after a lost race.
    async fn unclaimed<P, W, F>(&self, pool: &P, work: &mut W) -> Result<Acted, Error>
    where
        P: Begin,
        W: FnMut(Option<Action>, OpenTransaction) -> F,
        F: Future<Output = Result<Option<Json>, JobFailure>>,
    {
        let Some(to) = &self.to else {
            return Ok(Acted::Unclaimed);
        };
        let mut step = Transition::to(to);
        step.requester.clone_from(&self.options.requester);
        step.version = self.options.version;
        let backoff = &self.pace.backoff;
        let mut failures = backoff.failures();
        loop {
            let attempt = async {
                let transaction = backoff.in_time(pool.begin()).await?;
                step.patch = work(None, transaction.clone()).await?;
                let moved = backoff
                    .in_time(self.row.transition(&transaction, &step))
                    .await?;
                if matches!(moved, Transitioned::Moved { .. }) {
                    backoff.in_time(transaction.end()).await?;
                }
                Ok(moved)
            };
            match attempt.await {
                Ok(moved) => return Ok(Acted::of(moved)),
                Err(JobFailure::Release(error)) => return Ok(Acted::Released { error }),
                Err(JobFailure::Error(error)) => failures.wait(error, Error::rolled_back).await?,
            }
        }
    }
}

impl Acted {
    fn of(moved: Transitioned) -> Self {
        match moved {
            Transitioned::Moved { status, version } => Self::Finished { status, version },
            Transitioned::NotMoved {
                reason,
                status,
                version,
            } => match reason {
                Reason::NotFound => Self::NotFound,
                Reason::Cancelling => Self::Cancelling,
                _ => Self::Refused { status, version },
            },
        }
    }
}

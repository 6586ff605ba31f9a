//! Owns the work under a lease: item after item, each saved under the fence, and the end of the job.
//!
//! Invariant: a transaction with an item's writes also extends the lease, and commits only if the extension did not
//! answer `cancelling`. An item is discarded only if it is certainly not saved.

use std::time::Duration;

use super::super::watch::Watch;
use super::{Job, JobFailure, JobOutcome};
use crate::{ActionEnd, Begin, Error, Json};

pub(super) enum End {
    Finished(JobOutcome),
    Cancelling,
    LeaseLost,
    Stopped,
    Failed(JobFailure),
}

pub(super) struct Items<'a, P, J: Job> {
    pub(super) check_every: Duration,
    pub(super) watch: &'a Watch<'a, P>,
    pub(super) job: &'a mut J,
    /// The item whose work may be discarded.
    pub(super) at_hand: &'a mut Option<J::Item>,
    /// The job's outcome if its last commit succeeds; set before that commit is sent.
    pub(super) finishing: &'a mut Option<JobOutcome>,
}

impl<P: Begin, J: Job> Items<'_, P, J> {
    pub(super) async fn work_off(&mut self) -> End {
        let mut failures = self.watch.backoff.failures();
        loop {
            let error = match self.turn().await {
                Ok(None) => {
                    failures.count = 0;
                    continue;
                }
                Ok(Some(end)) => return end,
                Err(JobFailure::Error(error)) => error,
                Err(failure) => return End::Failed(failure),
            };
            let row = self.watch.action.row();
            tracing::info!(?row, %error, "the database failed during an item");
            if let Err(error) = failures.wait(error, Error::is_retryable).await {
                return End::Failed(error.into());
            }
        }
    }

    /// Works on the next item and saves it; without a next item, finishes the job. `None`: the item is saved.
    async fn turn(&mut self) -> Result<Option<End>, JobFailure> {
        let action = self.watch.action;
        let transaction = self.watch.begin().await?;
        let item = self.job.next(&transaction, action).await?;
        self.watch.backoff.in_time(transaction.end()).await?;
        if self.watch.silence() >= self.check_every {
            self.watch.look(self.watch.pool).await?;
        }
        if self.watch.is_cancelling() {
            return Ok(Some(End::Cancelling));
        }
        let Some(item) = item else {
            return self.finish().await.map(Some);
        };
        let item = self.at_hand.insert(item);
        let made = self.job.work(action, item).await?;
        let cancelling = self.watch.is_cancelling() || !self.save(&made).await?;
        Ok(cancelling.then_some(End::Cancelling))
    }

    /// Saves the item in one transaction with an extension of the lease, which fences the item's writes. `false`: the
    /// job is being cancelled and nothing was written.
    async fn save(&mut self, made: &J::Made) -> Result<bool, JobFailure> {
        let mut failures = self.watch.backoff.failures();
        loop {
            match self.save_once(made).await {
                // After a lost race only the save is repeated, not the work.
                Err(JobFailure::Error(error)) => failures.wait(error, Error::rolled_back).await?,
                end => return end,
            }
        }
    }

    async fn save_once(&mut self, made: &J::Made) -> Result<bool, JobFailure> {
        let Some(item) = self.at_hand.as_ref() else {
            return Ok(true);
        };
        let transaction = self.watch.begin().await?;
        self.watch.look(&transaction).await?;
        if self.watch.is_cancelling() {
            return Ok(false);
        }
        self.job.save(&transaction, item, made).await?;
        // Before the commit is answered, the item may already be saved, so its artifact must not be deleted.
        let item = self.at_hand.take();
        let saved = self.watch.commit(transaction).await;
        if matches!(&saved, Err(error) if error.rolled_back()) {
            *self.at_hand = item;
        }
        Ok(saved.map(|()| true)?)
    }

    /// Ends the action and makes the job's last writes, in one transaction.
    async fn finish(&mut self) -> Result<End, JobFailure> {
        let patch = self.job.result().await?;
        let mut failures = self.watch.backoff.failures();
        loop {
            match self.finish_once(patch.as_ref()).await {
                Err(JobFailure::Error(error)) => failures.wait(error, Error::is_retryable).await?,
                end => return end,
            }
        }
    }

    async fn finish_once(&mut self, patch: Option<&Json>) -> Result<End, JobFailure> {
        let transaction = self.watch.begin().await?;
        // The lock order: the row before its items.
        let ActionEnd::Finished { status, version } =
            self.watch.finish(&transaction, patch).await?
        else {
            return Ok(End::Cancelling);
        };
        self.job.finish(&transaction).await?;
        let outcome = JobOutcome::Finished { status, version };
        *self.finishing = Some(outcome.clone());
        self.watch.commit(transaction).await?;
        Ok(End::Finished(outcome))
    }
}

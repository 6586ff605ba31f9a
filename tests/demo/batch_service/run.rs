//! A job as pg_once runs it: the client's job runner holds the lease, fences each item's writes and
//! tears the job down when its user has cancelled; here is only what a job is.
//!
//! Invariant: an item's row is committed before its artifact is made. So whoever comes after a
//! worker that died, or that was cancelled, finds everything that it made.

use std::time::Duration;

use deadpool_postgres::Pool;
use pg_once::{
    Action, Backoff, BoxError, CleanupItem, Error, Job, JobFailure, JobOutcome, Machine,
    OpenTransaction,
};
use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::store::Store;
use crate::teardown::AMID_WORKER;
use crate::{Answer, Item, Message, crash, items};

const IS_CANCELLED: &str = "select cancel_requested from batch_job where id = $1";

#[derive(Clone)]
pub struct PgOnce {
    pub pool: Pool,
    pub store: Store,
    pub machine: Machine,
    pub lease: Duration,
}

/// One attempt at a job.
struct Batch<'a> {
    job: i64,
    items: &'a [Item],
    service: &'a PgOnce,
    /// Nothing has been asked of it yet.
    fresh: bool,
}

impl PgOnce {
    /// One delivery of the queue.
    pub async fn run(&self, job: i64, message: &Message) -> Result<Answer, Error> {
        let mut batch = Batch {
            job,
            items: &message.items,
            service: self,
            fresh: true,
        };
        let runner = self.machine.row(job).job(&self.pool, "run");
        let runner = runner.requester("worker").lease(self.lease);
        match runner.run(&mut batch).await? {
            JobOutcome::Finished { status, .. } => {
                crash::point("after_finish");
                Ok(Answer::Ended(status))
            }
            JobOutcome::Cancelled(end) => Ok(Answer::Ended(end.status)),
            // Done or cancelled: the queue has delivered it before.
            JobOutcome::Refused { status } => Ok(Answer::Ended(status)),
            JobOutcome::InProgress { retry_after } => Ok(Answer::Later(retry_after)),
            JobOutcome::LeaseLost => Ok(Answer::Later(self.lease)),
            JobOutcome::Released { error } => Err(Error::Answer(error)),
            JobOutcome::NotFound | JobOutcome::Unclaimed => {
                Err(Error::Answer(format!("job {job} cannot be run")))
            }
        }
    }
}

impl Job for Batch<'_> {
    type Item = usize;
    type Made = ();

    async fn next(
        &mut self,
        transaction: &OpenTransaction,
        action: &Action,
    ) -> Result<Option<usize>, JobFailure> {
        if std::mem::take(&mut self.fresh) {
            crash::point("after_claim");
        }
        // Under the lease: two attempts must not begin the same item.
        if action.extend(transaction, None).await?.cancelling {
            // The runner hears it, too, before it ends the action.
            return Ok(None);
        }
        let db: &Client = transaction;
        let decided = items::decided(db, self.job).await?;
        let open = |item: &Item| !decided.contains(&item.input);
        let Some(at) = self.items.iter().position(open) else {
            return Ok(None);
        };
        if let Some(item) = self.items.get(at) {
            items::begin(db, self.job, item).await?;
        }
        Ok(Some(at))
    }

    async fn work(&mut self, _: &Action, at: &usize) -> Result<(), JobFailure> {
        crash::point("after_item_begun");
        if let Some(item) = self.items.get(*at).filter(|item| !item.fails) {
            let name = Store::name(self.job, &item.input);
            let made = self.service.store.make(&name).await;
            made.map_err(JobFailure::release)?;
            crash::point("after_artifact");
        }
        Ok(())
    }

    async fn save(
        &mut self,
        transaction: &OpenTransaction,
        at: &usize,
        (): &(),
    ) -> Result<(), JobFailure> {
        if let Some(item) = self.items.get(*at) {
            let db: &Client = transaction;
            items::end(db, self.job, item).await?;
        }
        crash::point("before_item_commit");
        Ok(())
    }

    async fn finish(&mut self, transaction: &OpenTransaction) -> Result<(), JobFailure> {
        let db: &Client = transaction;
        items::keep(db, self.job).await?;
        crash::point("before_finish_commit");
        Ok(())
    }

    /// An artifact's name follows from its item alone, so this one may be the next worker's by now.
    /// But if the job is cancelled, the teardown may have missed it, so it is deleted.
    async fn discard(&mut self, _: &Action, at: &usize) {
        let Some(item) = self.items.get(*at) else {
            return;
        };
        let deleted = match Backoff::default().retry(|| self.is_cancelled()).await {
            Ok(true) => self
                .service
                .store
                .delete(&Store::name(self.job, &item.input)),
            Ok(false) => Ok(()),
            Err(error) => Err(std::io::Error::other(error)),
        };
        if let Err(error) = deleted {
            eprintln!("job {}, {}: {error}", self.job, item.input);
        }
    }

    async fn clean(&self, items: Vec<CleanupItem>) -> Result<(), BoxError> {
        delete(&self.service.store, &items, AMID_WORKER)
    }
}

impl Batch<'_> {
    async fn is_cancelled(&self) -> Result<bool, Error> {
        let client = self.service.pool.get().await?;
        let rows = client
            .query_typed(IS_CANCELLED, &[(&self.job, Type::INT8)])
            .await?;
        Ok(rows.iter().any(|row| row.get(0)))
    }
}

/// Deletes the artifacts of a page of items; `amid` is where its caller may die after each.
pub fn delete(store: &Store, items: &[CleanupItem], amid: &str) -> Result<(), BoxError> {
    #[derive(Deserialize)]
    struct Row {
        artifact: String,
    }
    for item in items {
        let Row { artifact } = item.item.parse()?;
        store.delete(&artifact)?;
        crash::point(amid);
    }
    Ok(())
}

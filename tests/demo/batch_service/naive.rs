//! The same service as people write it by hand: a status column that is read and then written, and
//! a refund of three statements.
//!
//! It is the demo's measuring stick, so it is honest: it looks before it acts, skips what is done,
//! puts a failed job back into the queue, burns an item's points in the transaction that says it
//! succeeded, and finishes a job and its items in one transaction. A cancellation that is asked for
//! again goes on where the marks say. What it lacks is what this demo is about: between looking and
//! writing, anything can happen.

use deadpool_postgres::Pool;
use pg_once::Error;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::store::Store;
use crate::{Answer, Item, Message, crash, items};

const STATUS: &str = "select status from batch_job where id = $1";
const SET_STATUS: &str = "update batch_job set status = $2 where id = $1";
const SUM: &str = "select coalesce(sum(points), 0)::bigint from batch_item \
                   where job_id = $1 and state = 'succeeded' and settled is null";
const MARK: &str =
    "update batch_item set settled = 'returned' where job_id = $1 and settled is null";
const ARTIFACTS: &str = "select artifact from batch_item where job_id = $1";

/// The comment tells the demo's log of the wallets whose it was: no item is written beside it.
fn credit(job: i64) -> String {
    format!(
        "update wallet w set points = w.points + $2 from batch_job j \
         where j.id = $1 and w.customer = j.customer /* job={job} */"
    )
}

pub struct Naive {
    pub pool: Pool,
    pub store: Store,
}

impl Naive {
    /// One delivery of the queue.
    pub async fn run(&self, job: i64, message: &Message) -> Result<Answer, Error> {
        let status = self.status(job).await?;
        if status != "queued" {
            // Somebody runs it, or it is done or cancelled.
            return Ok(Answer::Ended(status));
        }
        self.set_status(job, "running").await?;
        crash::point("after_claim");
        match self.work(job, message).await {
            Ok(status) => Ok(Answer::Ended(status)),
            Err(error) => {
                // The queue delivers it again; somebody must be able to run it then.
                let _ = self.set_status(job, "queued").await;
                Err(error)
            }
        }
    }

    async fn work(&self, job: i64, message: &Message) -> Result<String, Error> {
        for item in &message.items {
            let status = self.status(job).await?;
            if status == "cancelling" || status == "cancelled" {
                return Ok(status);
            }
            self.make_item(job, item).await?;
        }
        crash::point("before_finish");
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        items::keep(&*transaction, job).await?;
        let done = [(&job as _, Type::INT8), (&"done" as _, Type::TEXT)];
        transaction.query_typed(SET_STATUS, &done).await?;
        transaction.commit().await?;
        crash::point("after_finish");
        Ok("done".to_owned())
    }

    async fn make_item(&self, job: i64, item: &Item) -> Result<(), Error> {
        let name = Store::name(job, &item.input);
        let mut client = self.pool.get().await?;
        if items::decided(&**client, job).await?.contains(&item.input) {
            return Ok(());
        }
        items::begin(&**client, job, item).await?;
        crash::point("after_item_begun");
        if !item.fails {
            self.store.make(&name).await.map_err(disk)?;
            crash::point("after_artifact");
        }
        let transaction = client.transaction().await?;
        items::end(&*transaction, job, item).await?;
        crash::point("before_item_commit");
        transaction.commit().await?;
        Ok(())
    }

    /// A user's wish.
    pub async fn cancel(&self, job: i64) -> Result<Answer, Error> {
        let status = self.status(job).await?;
        if status == "done" || status == "cancelled" {
            return Ok(Answer::Ended(status));
        }
        self.set_status(job, "cancelling").await?;
        crash::point("after_cancel_request");
        let client = self.pool.get().await?;
        self.refund(&client, job).await?;
        crash::point("after_refund");
        for row in client.query_typed(ARTIFACTS, &[(&job, Type::INT8)]).await? {
            self.store.delete(row.get(0)).map_err(disk)?;
            crash::point("amid_cleanup");
        }
        crash::point("before_cancel_finish");
        self.set_status(job, "cancelled").await?;
        crash::point("after_cancel_finish");
        Ok(Answer::Ended("cancelled".to_owned()))
    }

    async fn refund(&self, client: &Client, job: i64) -> Result<(), Error> {
        let id = [(&job as _, Type::INT8)];
        let sum: i64 = client.query_typed_one(SUM, &id).await?.get(0);
        crash::point("after_sum");
        if sum > 0 {
            let amount = [(&job as _, Type::INT8), (&sum as _, Type::INT8)];
            client.query_typed(&credit(job), &amount).await?;
        }
        crash::point("after_credit");
        client.query_typed(MARK, &id).await?;
        Ok(())
    }

    async fn status(&self, job: i64) -> Result<String, Error> {
        let client = self.pool.get().await?;
        let row = client
            .query_typed_one(STATUS, &[(&job, Type::INT8)])
            .await?;
        Ok(row.get(0))
    }

    async fn set_status(&self, job: i64, status: &str) -> Result<(), Error> {
        let client = self.pool.get().await?;
        let row = [(&job as _, Type::INT8), (&status as _, Type::TEXT)];
        client.query_typed(SET_STATUS, &row).await?;
        Ok(())
    }
}

/// The disk's trouble as the database's: both end the attempt.
fn disk(error: std::io::Error) -> Error {
    Error::Answer(format!("the artifact store: {error}"))
}

//! Owns one batch job: how an item is found, worked on and saved, and how its artifacts are deleted.

use std::time::Duration;

use pg_once::{Action, BoxError, CleanupItem, Job, JobFailure, Json, OpenTransaction};
use serde::Deserialize;
use serde_json::json;

use crate::store::Store;

/// Takes the first unsettled item that is `pending`, or that an earlier run left `working`.
const NEXT: &str = "UPDATE batch_item AS item SET state = 'working' \
    FROM (SELECT id FROM batch_item WHERE job_id = $1 AND state IN ('pending', 'working') \
          AND settled IS NULL ORDER BY id LIMIT 1 FOR UPDATE) AS next \
    WHERE item.id = next.id RETURNING item.id, item.input, item.points, item.artifact";
const SUCCEEDED: &str =
    "UPDATE batch_item SET state = 'succeeded' WHERE id = $1 AND state = 'working'";
const BURN: &str = "UPDATE wallet SET points = wallet.points - $1 FROM batch_job \
    WHERE batch_job.id = $2 AND wallet.customer = batch_job.customer";
const KEEP: &str = "UPDATE batch_item SET settled = 'kept' WHERE job_id = $1 AND settled IS NULL";

pub struct Item {
    id: i64,
    input: String,
    points: i64,
    artifact: String,
}

pub struct Batch {
    pub store: Store,
    pub job: i64,
    /// How long the simulated expensive service takes for an item.
    pub takes: Duration,
    /// The number of artifacts after which the job prints `stalled` and hangs, so that main.rs can kill the process.
    pub stall_after: Option<usize>,
    pub made: usize,
}

impl Job for Batch {
    type Item = Item;
    type Made = ();

    async fn next(
        &mut self,
        transaction: &OpenTransaction,
        _: &Action,
    ) -> Result<Option<Item>, JobFailure> {
        let row = transaction.query_opt(NEXT, &[&self.job]).await?;
        Ok(row.map(|row| Item {
            id: row.get(0),
            input: row.get(1),
            points: row.get(2),
            artifact: row.get(3),
        }))
    }

    async fn work(&mut self, action: &Action, item: &Item) -> Result<(), JobFailure> {
        tokio::time::sleep(self.takes).await; // the expensive service
        let page = format!("rendered: {}", item.input);
        self.store
            .write(&item.artifact, action.token(), &page)
            .map_err(JobFailure::release)?;
        self.made += 1;
        if self.stall_after == Some(self.made) {
            println!("stalled");
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn save(
        &mut self,
        transaction: &OpenTransaction,
        item: &Item,
        _: &(),
    ) -> Result<(), JobFailure> {
        if transaction.execute(SUCCEEDED, &[&item.id]).await? == 1 {
            transaction
                .execute(BURN, &[&item.points, &self.job])
                .await?;
        }
        Ok(())
    }

    async fn result(&mut self) -> Result<Option<Json>, JobFailure> {
        let result = format!("{} items rendered here", self.made);
        Ok(Some(Json::of(&json!({"result": result}))?))
    }

    async fn finish(&mut self, transaction: &OpenTransaction) -> Result<(), JobFailure> {
        transaction.execute(KEEP, &[&self.job]).await?;
        Ok(())
    }

    async fn discard(&mut self, action: &Action, item: &Item) {
        if let Err(error) = self.store.delete_attempt(&item.artifact, action.token()) {
            tracing::error!(%error, artifact = item.artifact, "an artifact is left behind");
        }
    }

    async fn clean(&self, items: Vec<CleanupItem>) -> Result<(), BoxError> {
        clean(&self.store, &items)
    }
}

/// Deletes the artifacts of a cancelled job's items. The job itself calls this, and so does main.rs's teardown worker.
pub fn clean(store: &Store, items: &[CleanupItem]) -> Result<(), BoxError> {
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow)]
        artifact: std::borrow::Cow<'a, str>,
    }
    for item in items {
        store.delete(&item.item.parse::<Row<'_>>()?.artifact)?;
    }
    Ok(())
}

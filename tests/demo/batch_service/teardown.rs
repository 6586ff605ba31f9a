//! A cancellation as pg_once carries it out: by the endpoint that was asked, by the worker that saw
//! it, or by the janitor when both have died; by all of them at once, too.
//!
//! Invariant: every step may be repeated by anybody, and the job is `cancelled` only when its points
//! are back and its artifacts are gone. A failed step ends the attempt; the next begins from the top.

use std::time::Duration;

use pg_once::Error;
use tokio_postgres::types::Type;

use crate::Answer;
use crate::crash;
use crate::run::{MACHINE, PgOnce, disk};

const REQUEST: &str = "select outcome, status from once.cancel_request(machine => $1, id => $2)";
const CLEANUP: &str = "select item_id, item->>'artifact' \
                       from once.cleanup_items(machine => $1, id => $2, after_id => $3, max => $4)";
const CONFIRM: &str =
    "select confirmed from once.cleanup_confirm(machine => $1, id => $2, pass => $3)";
const FINISH: &str = "select status from once.cancel_finish(machine => $1, id => $2)";
const SWEEP: &str = "select task, done, failed from once.sweep()";
const PENDING: &str = "select id::bigint from once.cancel_pending(machine => $1)";

/// Items a page: few, so that a teardown has several.
const PAGE: i32 = 4;
/// Between two rounds of the janitor.
const NAP: Duration = Duration::from_millis(700);
/// How soon a user may look again whether a running job has stopped.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The refund of all that is undecided; the comment tells the demo's log of the wallets whose it was.
fn refund(job: i64) -> String {
    format!("select pass from once.refund(machine => $1, id => $2) /* job={job} */")
}

impl PgOnce {
    /// A user's wish.
    pub async fn cancel(&self, job: i64) -> Result<Answer, Error> {
        let client = self.pool.get().await?;
        let row = [
            (&MACHINE as _, Type::TEXT),
            (&job.to_string() as _, Type::TEXT),
        ];
        let row = client.query_typed_one(REQUEST, &row).await?;
        crash::point("after_cancel_request");
        match row.get("outcome") {
            "teardown" => self.tear_down(job).await,
            // Its worker stops at the next item and tears down, or the janitor does.
            "accepted" => Ok(Answer::Later(LOOK_AGAIN)),
            // It is cancelled, or too late.
            _ => Ok(Answer::Ended(row.get("status"))),
        }
    }

    /// Points back, artifacts away, and only then `cancelled`.
    pub async fn tear_down(&self, job: i64) -> Result<Answer, Error> {
        loop {
            match self.tear_down_once(job).await {
                Ok(true) => return Ok(Answer::Ended("cancelled".to_owned())),
                // Another item was marked after the pass that we cleaned up after: once more.
                Ok(false) => {}
                Err(error) if error.code() == Some("ON005") => {}
                // A worker still has it.
                Err(error) if error.code() == Some("ON002") => {
                    return Ok(Answer::Later(LOOK_AGAIN));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// False: there was more to delete than was listed.
    async fn tear_down_once(&self, job: i64) -> Result<bool, Error> {
        let mut client = self.pool.get().await?;
        let id = job.to_string();
        let row = [(&MACHINE as _, Type::TEXT), (&id as _, Type::TEXT)];
        let pass: i64 = client.query_typed_one(&refund(job), &row).await?.get(0);
        crash::point("after_refund");
        self.delete_artifacts(&client, &id).await?;
        let [machine, key] = row.clone();
        let confirm = [machine, key, (&pass as _, Type::INT8)];
        let confirmed = client.query_typed_one(CONFIRM, &confirm).await?;
        if !confirmed.get::<_, bool>(0) {
            return Ok(false);
        }
        crash::point("after_cleanup_confirm");
        let transaction = client.transaction().await?;
        transaction.query_typed_one(FINISH, &row).await?;
        crash::point("before_cancel_finish_commit");
        transaction.commit().await?;
        crash::point("after_cancel_finish");
        Ok(true)
    }

    async fn delete_artifacts(
        &self,
        client: &tokio_postgres::Client,
        id: &str,
    ) -> Result<(), Error> {
        let mut after: Option<String> = None;
        loop {
            let arguments = [
                (&MACHINE as _, Type::TEXT),
                (&id as _, Type::TEXT),
                (&after as _, Type::TEXT),
                (&PAGE as _, Type::INT4),
            ];
            let page = client.query_typed(CLEANUP, &arguments).await?;
            for item in &page {
                self.store.delete(item.get(1)).map_err(disk)?;
                crash::point("amid_cleanup");
            }
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = Some(last.get(0));
        }
    }

    /// The janitor's work: gives back the jobs of dead workers, and tears down what nobody else does.
    pub async fn keep_house(self) {
        loop {
            tokio::time::sleep(NAP).await;
            if let Err(error) = self.one_round().await {
                // Its connection was cut, or a job moved under it: the next round sees to it.
                eprintln!("janitor: {error}");
            }
        }
    }

    async fn one_round(&self) -> Result<(), Error> {
        self.sweep().await?;
        let pending = self
            .pool
            .get()
            .await?
            .query_typed(PENDING, &[(&MACHINE, Type::TEXT)])
            .await?;
        for row in pending {
            self.tear_down(row.get(0)).await?;
        }
        Ok(())
    }

    /// One bounded pass of every sweep.
    pub async fn sweep(&self) -> Result<(), Error> {
        for row in self.pool.get().await?.query_typed(SWEEP, &[]).await? {
            if row.get::<_, i64>("failed") > 0 {
                return Err(Error::Answer(format!(
                    "the sweep {} has failed",
                    row.get::<_, &str>("task")
                )));
            }
        }
        Ok(())
    }
}

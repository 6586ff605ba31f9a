//! A job as pg_once runs it: claimed under a lease, item by item, each item's row written in a
//! transaction that the lease fences.
//!
//! Invariant: an item's row is committed before its artifact is made, and its points are burned in
//! the transaction that says it succeeded, under `action_extend`. So whoever comes after a worker
//! that died, or that was cancelled, finds everything that it made.

use std::time::Duration;

use deadpool_postgres::Pool;
use pg_once::Error;
use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::crash;
use crate::store::Store;
use crate::{Answer, Item, Message};

pub const MACHINE: &str = "batch_job";

const CLAIM: &str = "select outcome, token, status, extract(epoch from retry_after)::float8 \
                     from once.action_claim(machine => $1, id => $2, step_key => 'run', requester => 'worker', \
                                            lease => make_interval(secs => $3), holder => $4)";
const EXTEND: &str = "select cancelling \
                      from once.action_extend(machine => $1, id => $2, token => $3, lease => make_interval(secs => $4))";
const FINISH: &str = "select outcome from once.action_finish(machine => $1, id => $2, token => $3)";
const RELEASE: &str =
    "select status from once.action_release(machine => $1, id => $2, token => $3, error => $4)";
const ASSERT: &str = "select once.machine_assert()";

const KNOWN_ITEM: &str = "select state from batch_item where job_id = $1 and input = $2";
const BEGIN_ITEM: &str = "insert into batch_item (job_id, input, state, points, artifact) values ($1, $2, 'working', $3, $4)";
const END_ITEM: &str = "update batch_item set state = $3 where job_id = $1 and input = $2";
const KEEP_ITEMS: &str = "update batch_item set settled = 'kept' where job_id = $1";
const IS_CANCELLED: &str = "select cancel_requested from batch_job where id = $1";

/// What a success costs. The comment tells the demo's log of the wallets whose it was.
pub fn burn(job: i64) -> String {
    format!(
        "update wallet w set points = w.points - $2 from batch_job j \
         where j.id = $1 and w.customer = j.customer /* job={job} */"
    )
}

type Argument<'a> = (&'a (dyn ToSql + Sync), Type);

#[derive(Clone)]
pub struct PgOnce {
    pub pool: Pool,
    pub store: Store,
    pub lease: Duration,
}

/// A job that we hold.
struct Held {
    job: i64,
    /// The same as text, as the calls want it.
    id: String,
    token: i64,
}

impl Held {
    /// What each call for the lease begins with.
    fn arguments(&self) -> [Argument<'_>; 3] {
        [
            (&MACHINE, Type::TEXT),
            (&self.id, Type::TEXT),
            (&self.token, Type::INT8),
        ]
    }
}

enum Worked {
    Finished,
    /// Its user has cancelled it; nothing of the open transaction was kept.
    Cancelling,
}

impl PgOnce {
    /// Fails where nobody would give back the jobs of a worker that died.
    pub async fn assert_swept(&self) -> Result<(), Error> {
        self.pool.get().await?.query_typed(ASSERT, &[]).await?;
        Ok(())
    }

    /// One delivery of the queue.
    pub async fn run(&self, job: i64, message: &Message) -> Result<Answer, Error> {
        let holder = Uuid::new_v4().to_string();
        let row = self
            .pool
            .get()
            .await?
            .query_typed_one(
                CLAIM,
                &[
                    (&MACHINE, Type::TEXT),
                    (&job.to_string(), Type::TEXT),
                    (&self.lease.as_secs_f64(), Type::FLOAT8),
                    (&holder, Type::TEXT),
                ],
            )
            .await?;
        let token = match row.get("outcome") {
            "claimed" => row.get("token"),
            "busy" => {
                let seconds: Option<f64> = row.get(3);
                return Ok(Answer::Later(Duration::from_secs_f64(
                    seconds.unwrap_or(1.0),
                )));
            }
            "cancelling" => return self.tear_down(job).await,
            // Done or cancelled: the queue has delivered it before.
            _ => return Ok(Answer::Ended(row.get("status"))),
        };
        crash::point("after_claim");
        let id = job.to_string();
        let held = Held { job, id, token };
        match self.work(&held, message).await {
            Ok(Worked::Finished) => Ok(Answer::Ended("done".to_owned())),
            Ok(Worked::Cancelling) => {
                self.release(&held, "cancelled").await?;
                self.tear_down(job).await
            }
            Err(error) => {
                // As good as it goes: if this fails too, the lease runs out.
                let _ = self.release(&held, &error.to_string()).await;
                Err(error)
            }
        }
    }

    async fn work(&self, held: &Held, message: &Message) -> Result<Worked, Error> {
        for item in &message.items {
            if let Worked::Cancelling = self.make_item(held, item).await? {
                return Ok(Worked::Cancelling);
            }
        }
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let row = transaction
            .query_typed_one(FINISH, &held.arguments())
            .await?;
        if row.get::<_, &str>(0) == "cancelling" {
            return Ok(Worked::Cancelling);
        }
        transaction
            .query_typed(KEEP_ITEMS, &[(&held.job, Type::INT8)])
            .await?;
        crash::point("before_finish_commit");
        transaction.commit().await?;
        crash::point("after_finish");
        Ok(Worked::Finished)
    }

    async fn make_item(&self, held: &Held, item: &Item) -> Result<Worked, Error> {
        let name = Store::name(held.job, &item.input);
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        if self.extend(&transaction, held).await? {
            return Ok(Worked::Cancelling);
        }
        let key = [(&held.job as _, Type::INT8), (&item.input as _, Type::TEXT)];
        let known = transaction.query_typed_opt(KNOWN_ITEM, &key).await?;
        match known.as_ref().map(|row| row.get(0)) {
            Some("succeeded" | "failed") => return Ok(Worked::Finished),
            // Begun by a worker that died.
            Some(_) => {}
            None => {
                let row = [
                    (&held.job as _, Type::INT8),
                    (&item.input as _, Type::TEXT),
                    (&item.points as _, Type::INT8),
                    (&name as _, Type::TEXT),
                ];
                transaction.query_typed(BEGIN_ITEM, &row).await?;
            }
        }
        transaction.commit().await?;
        crash::point("after_item_begun");
        if !item.fails {
            self.store.make(&name).await.map_err(disk)?;
            crash::point("after_artifact");
        }
        let ended = self.end_item(&mut client, held, item).await;
        if ended.is_err() {
            self.take_back(held.job, &name).await?;
        }
        ended
    }

    /// The item's commit: its success and what that costs.
    async fn end_item(
        &self,
        client: &mut deadpool_postgres::Client,
        held: &Held,
        item: &Item,
    ) -> Result<Worked, Error> {
        let transaction = client.transaction().await?;
        if self.extend(&transaction, held).await? {
            return Ok(Worked::Cancelling);
        }
        let state = if item.fails { "failed" } else { "succeeded" };
        let row = [
            (&held.job as _, Type::INT8),
            (&item.input as _, Type::TEXT),
            (&state as _, Type::TEXT),
        ];
        transaction.query_typed(END_ITEM, &row).await?;
        if !item.fails {
            let cost = [
                (&held.job as _, Type::INT8),
                (&item.points as _, Type::INT8),
            ];
            transaction.query_typed(&burn(held.job), &cost).await?;
        }
        transaction.commit().await?;
        Ok(Worked::Finished)
    }

    /// The lease may be somebody else's, and the artifact may have come too late for a teardown: then
    /// it goes. While the job is not cancelled it may be the next worker's, and a later teardown
    /// lists it.
    async fn take_back(&self, job: i64, name: &str) -> Result<(), Error> {
        let client = self.pool.get().await?;
        let row = client
            .query_typed_one(IS_CANCELLED, &[(&job, Type::INT8)])
            .await?;
        if row.get(0) {
            self.store.delete(name).map_err(disk)?;
        }
        Ok(())
    }

    /// A heartbeat in the transaction that it fences; true: the user has cancelled.
    async fn extend(&self, transaction: &Transaction<'_>, held: &Held) -> Result<bool, Error> {
        let [machine, id, token] = held.arguments();
        let lease = (&self.lease.as_secs_f64() as _, Type::FLOAT8);
        let row = transaction
            .query_typed_one(EXTEND, &[machine, id, token, lease])
            .await?;
        Ok(row.get(0))
    }

    async fn release(&self, held: &Held, why: &str) -> Result<(), Error> {
        let [machine, id, token] = held.arguments();
        let arguments = [machine, id, token, (&why as _, Type::TEXT)];
        let client = self.pool.get().await?;
        client.query_typed(RELEASE, &arguments).await?;
        Ok(())
    }
}

/// The disk's trouble as the database's: both end the attempt, and the queue delivers again.
pub fn disk(error: std::io::Error) -> Error {
    Error::Answer(format!("the artifact store: {error}"))
}

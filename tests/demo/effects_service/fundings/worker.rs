//! Carries a funding out with pg_once: one key, whose steps name their own compensation before they
//! begin; the end of the funding, of its key and of its event is one transaction.
//!
//! Invariant: whoever has the key's lease goes on from what the steps say. When the event has used up
//! its attempts, the nack says so, and the key is aborted in the nack's transaction: the abort emits
//! the compensations of every step that was begun, newest first.

use anyhow::{Result, bail};
use pg_once::{
    Batch, Claim, ClaimOptions, Error, Event, Executor, Json, Lease, NackOptions, Response, Scope,
    Topic,
};
use serde_json::json;
use tokio_postgres::types::Type;

use super::undo::Undo;
use super::{Funding, Leg, SCOPE, TOPIC, end};
use crate::mortal::{Mortal, Point};
use crate::relay::{self, Handler};
use crate::{Service, crash};

const AFTER: &[Point] = &[("once.outbox_take", "after_take")];

const STEP: &str =
    "SELECT * FROM once.key_step(scope => $1, key => $2, token => $3, step => $4, on_abort => $5)";
const STEP_DONE: &str = "SELECT * FROM once.key_step_done(scope => $1, key => $2, token => $3, step => $4, \
                         result => $5)";

pub struct Worker<'a>(pub &'a Service);

pub async fn run(service: &Service) {
    let exec = Mortal {
        pool: &service.pool,
        before: &[],
        after: AFTER,
    };
    let fundings = Topic::new(TOPIC).default_subscriber();
    relay::run(&exec, &fundings, service.lease, &Worker(service)).await;
}

impl Handler for Worker<'_> {
    async fn handle(&self, batch: &Batch, event: &Event) -> Result<bool> {
        let funding: Funding = event.payload.parse()?;
        let lease = match claim(self.0, &funding.funding).await? {
            Claim::Claimed(lease) | Claim::Resumed(lease) => lease,
            // It has ended: only the ack is missing.
            Claim::Replayed(_) => return Ok(false),
            Claim::InProgress { retry_after } => {
                let later = NackOptions::released().retry_after(retry_after);
                let ids = [event.event_id];
                batch.nack(&self.0.pool, Some(&ids), &later).await?;
                return Ok(true);
            }
            other => bail!("the key is {other:?}"),
        };
        crash::point("after_claim");
        match self.move_money(&lease, &funding).await {
            Ok(()) => self.post(batch, event, &lease, &funding).await?,
            Err(error) => {
                let error = format!("{error:#}");
                self.give_back(batch, event, &lease, &error).await?;
            }
        }
        Ok(true)
    }

    /// Before it had the key.
    async fn failed(&self, batch: &Batch, event: &Event, error: &str) -> Result<()> {
        let options = NackOptions::released().error(error);
        batch
            .nack(&self.0.pool, Some(&[event.event_id]), &options)
            .await?;
        Ok(())
    }
}

/// The key of a funding, for this attempt.
pub async fn claim(service: &Service, funding: &str) -> Result<Claim, Error> {
    let options = ClaimOptions::new().lease(service.lease).fresh_holder();
    Scope::new(SCOPE)
        .key(funding)
        .claim(&service.pool, &options)
        .await
}

impl Worker<'_> {
    /// The entries are there; both transfers are made, or it is an error and nobody knows.
    async fn move_money(&self, lease: &Lease, funding: &Funding) -> Result<()> {
        if self
            .begin(lease, "entries", &Undo::entries(funding))
            .await?
            .is_some()
        {
            self.done(lease, "entries", None).await?;
        }
        for leg in Leg::BOTH {
            let undo = Undo::leg(funding, leg);
            let Some(derived_key) = self.begin(lease, leg.name(), &undo).await? else {
                continue;
            };
            crash::point("after_step_begin");
            let body = funding.transfer(leg).to_string();
            let outside = &self.0.outside;
            let made = outside.post("/charges", Some(&derived_key), body).await?;
            crash::point("after_transfer");
            self.done(lease, leg.name(), Some(&Json::of(&made)?))
                .await?;
            crash::point("after_step_done");
            // The lease begins anew.
            lease.advance(&self.0.pool, leg.name(), None, None).await?;
        }
        Ok(())
    }

    /// The key for the other side; none where the step is done.
    async fn begin(&self, lease: &Lease, step: &str, undo: &Undo) -> Result<Option<String>> {
        let (key, on_abort) = (lease.key(), undo.event()?);
        let args = [
            (&key.scope() as _, Type::TEXT),
            (&key.as_str() as _, Type::TEXT),
            (&lease.token() as _, Type::INT8),
            (&step as _, Type::TEXT),
            (&on_abort as _, Type::JSON),
        ];
        let rows = self.0.pool.query(STEP, &args).await?;
        let row = rows.first().filter(|row| !row.get::<_, bool>("done"));
        Ok(row.map(|row| row.get("derived_key")))
    }

    async fn done(&self, lease: &Lease, step: &str, result: Option<&Json>) -> Result<()> {
        let key = lease.key();
        let args = [
            (&key.scope() as _, Type::TEXT),
            (&key.as_str() as _, Type::TEXT),
            (&lease.token() as _, Type::INT8),
            (&step as _, Type::TEXT),
            (&result as _, Type::JSON),
        ];
        self.0.pool.query(STEP_DONE, &args).await?;
        Ok(())
    }

    /// The funding's end, the key's and the event's: all or nothing.
    async fn post(
        &self,
        batch: &Batch,
        event: &Event,
        lease: &Lease,
        funding: &Funding,
    ) -> Result<()> {
        let mut client = self.0.pool.get().await?;
        let transaction = client.transaction().await?;
        let answer = Response::new(200).with_body(&json!({ "status": "posted" }))?;
        lease.complete(&transaction, &answer).await?;
        end(&transaction, &funding.funding, "posted").await?;
        batch.ack(&transaction, Some(&[event.event_id])).await?;
        crash::point("before_post_commit");
        transaction.commit().await?;
        crash::point("after_post");
        Ok(())
    }

    /// The attempt has failed. The last one: the key is aborted, in the same transaction.
    async fn give_back(
        &self,
        batch: &Batch,
        event: &Event,
        lease: &Lease,
        error: &str,
    ) -> Result<()> {
        let mut client = self.0.pool.get().await?;
        let transaction = client.transaction().await?;
        // Keys are locked before events.
        lease.extend(&transaction, None).await?;
        let options = NackOptions::new().error(error);
        let nacked = batch
            .nack(&transaction, Some(&[event.event_id]), &options)
            .await?;
        let dead = nacked.iter().any(|nacked| nacked.dead);
        if dead {
            lease.abort(&transaction, &given_up()?).await?;
            crash::point("before_abort_commit");
        } else {
            lease.release(&transaction, Some(error), None).await?;
        }
        transaction.commit().await?;
        crash::point(if dead { "after_abort" } else { "after_nack" });
        Ok(())
    }
}

/// The answer of a funding that is not carried out.
pub fn given_up() -> Result<Response, Error> {
    Response::new(409).with_body(&json!({ "status": "archived" }))
}

//! Carries a funding out with pg_once: one key, whose steps name their own compensation before they
//! begin. The outbox worker brings the funding's event; the key says how far it has come.
//!
//! Invariant: whoever runs the key goes on from what its steps say. When the event has used up its
//! attempts, the key is aborted in the transaction that says so: the abort emits the compensations of
//! every step that was begun, newest first, whether its end was recorded or not.

use pg_once::{
    Acked, Claim, ClaimOptions, Deliver, Done, Error, Event, Executor, Failure, Json, Key, Lease,
    OpenTransaction, Outcome, Response, Scope, Step, Topic, Undelivered,
};
use serde_json::json;

use super::undo::Undo;
use super::{Funding, Leg, SCOPE, TOPIC, end};
use crate::{Service, crash};

#[derive(Clone)]
struct Worker(Service);

/// For ever.
pub async fn run(service: &Service) {
    let fundings = Topic::new(TOPIC).default_subscriber();
    service.work_off(&fundings, Worker(service.clone())).await;
}

impl Deliver for Worker {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        let funding: Funding = event.payload.parse()?;
        let runner = key(&funding).run(&self.0.pool).lease(self.0.lease);
        let outcome = runner
            .run(|lease| self.clone().carry_out(lease, funding.clone()))
            .await?;
        match outcome {
            // Now, or by somebody who died before the event was acked.
            Outcome::Ran(_) | Outcome::Replayed(_) => Ok(Acked::ByWorker),
            Outcome::Released { error, .. } => Err(Undelivered::retry("transfer", error)),
            // The lease of somebody who died: that is no failed attempt.
            Outcome::InProgress { retry_after } => {
                Err(Undelivered::later("the key is held", retry_after))
            }
            other => Err(Undelivered::retry("key", format!("{other:?}"))),
        }
    }

    async fn dead(
        &self,
        transaction: &OpenTransaction,
        event: &Event,
        _: &Undelivered,
    ) -> Result<(), Error> {
        give_up(transaction, &event.payload.parse()?).await?;
        crash::point("before_abort_commit");
        Ok(())
    }
}

/// The key of a funding.
fn key(funding: &Funding) -> Key {
    Scope::new(SCOPE).key(&funding.funding)
}

/// Aborts the key of a funding that is not carried out: its compensations are emitted. Claim and abort
/// are one transaction. An error while somebody has the key, nothing where it has ended.
pub async fn give_up(transaction: &impl Executor, funding: &Funding) -> Result<(), Error> {
    let options = ClaimOptions::new();
    let claim = key(funding).claim(transaction, &options).await?;
    match claim {
        Claim::Claimed(lease) | Claim::Resumed(lease) => {
            let answer = Response::new(409).with_body(&json!({ "status": "archived" }))?;
            lease.abort(transaction, &answer).await
        }
        Claim::Replayed(_) => Ok(()),
        other => Err(Error::Answer(format!("the key of a dead event: {other:?}"))),
    }
}

impl Worker {
    async fn carry_out(self, lease: Lease, funding: Funding) -> Result<Done, Failure> {
        crash::point("after_claim");
        self.note_entries(&lease, &funding).await?;
        for leg in Leg::BOTH {
            self.transfer(&lease, &funding, leg).await?;
        }
        self.post(&lease, &funding).await
    }

    /// The entries are there already; as the key's first step they are undone last.
    async fn note_entries(&self, lease: &Lease, funding: &Funding) -> Result<(), Failure> {
        let (pool, undo) = (&self.0.pool, Undo::entries(funding).event()?);
        if !matches!(
            lease.step_with(pool, "entries", &undo).await?,
            Step::Done(_)
        ) {
            lease.step_done(pool, "entries", None).await?;
        }
        Ok(())
    }

    /// The account outside dedupes by the derived key, so that calling again is right whatever became
    /// of the call before.
    async fn transfer(&self, lease: &Lease, funding: &Funding, leg: Leg) -> Result<(), Failure> {
        let (pool, undo) = (&self.0.pool, Undo::leg(funding, leg).event()?);
        let derived_key = match lease.step_with(pool, leg.name(), &undo).await? {
            Step::Done(_) => return Ok(()),
            Step::First { derived_key } | Step::Again { derived_key, .. } => derived_key,
        };
        crash::point("after_step_begin");
        let body = funding.transfer(leg).to_string();
        let made = self.0.outside.post("/charges", Some(&derived_key), body);
        let made = made
            .await
            .map_err(|error| Failure::retry(format!("{error:#}")))?;
        crash::point("after_transfer");
        lease
            .step_done(pool, leg.name(), Some(&Json::of(&made)?))
            .await?;
        crash::point("after_step_done");
        Ok(())
    }

    /// The end of the funding, of its entries and of its key: all or nothing.
    async fn post(&self, lease: &Lease, funding: &Funding) -> Result<Done, Failure> {
        let answer = Response::new(200).with_body(&json!({ "status": "posted" }))?;
        let mut client = self.0.pool.get().await?;
        let transaction = client.transaction().await?;
        lease.complete(&transaction, &answer).await?;
        end(&transaction, &funding.funding, "posted").await?;
        crash::point("before_post_commit");
        transaction.commit().await?;
        crash::point("after_post");
        Ok(Done::Stored(answer))
    }
}

//! Compensates: carries out what the aborted key of a funding has emitted, in that order.
//!
//! Invariant: a compensation is sent until it is answered, with its delivery key, so the account
//! outside does it once. It does not matter whether the transfer ever arrived there: reversed, it
//! cannot arrive later.

use anyhow::Result;
use pg_once::{Batch, Event, Json, Topic};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Funding, Leg, end};
use crate::mortal::{Mortal, Point};
use crate::relay::{self, Handler};
use crate::{Service, crash};

/// The topic of compensations.
pub const TOPIC: &str = "compensations";

const AFTER: &[Point] = &[
    ("once.outbox_take", "after_undo_take"),
    ("once.outbox_ack", "after_undo_ack"),
];

/// What is to be undone, as it stands in the event.
#[derive(Deserialize, Serialize)]
pub struct Undo {
    funding: String,
    /// The transfer to reverse; none: the entries of our own ledger.
    reverse: Option<serde_json::Value>,
}

impl Undo {
    pub fn entries(funding: &Funding) -> Self {
        Self {
            funding: funding.funding.clone(),
            reverse: None,
        }
    }

    pub fn leg(funding: &Funding, leg: Leg) -> Self {
        Self {
            funding: funding.funding.clone(),
            reverse: Some(funding.transfer(leg)),
        }
    }

    /// The event that a step registers.
    pub fn event(&self) -> Result<Json> {
        Ok(Json::of(
            &json!({ "topic": TOPIC, "payload": self, "order_key": self.funding }),
        )?)
    }
}

struct Undoing<'a> {
    service: &'a Service,
    exec: Mortal<'a>,
}

pub async fn run(service: &Service) {
    let exec = Mortal {
        pool: &service.pool,
        before: &[],
        after: AFTER,
    };
    let compensations = Topic::new(TOPIC).default_subscriber();
    let undoing = Undoing { service, exec };
    relay::run(&exec, &compensations, service.lease, &undoing).await;
}

impl Handler for Undoing<'_> {
    async fn handle(&self, batch: &Batch, event: &Event) -> Result<bool> {
        let undo: Undo = event.payload.parse()?;
        if let Some(transfer) = undo.reverse {
            let (outside, key) = (&self.service.outside, &event.delivery_key);
            let reversed = outside
                .post("/reversals", Some(key), transfer.to_string())
                .await;
            crash::point("after_reversal");
            return reversed.map(|_| false);
        }
        // Our own ledger comes last: it says archived when the money is back.
        let mut client = self.service.pool.get().await?;
        let transaction = client.transaction().await?;
        end(&transaction, &undo.funding, "archived").await?;
        batch.ack(&transaction, Some(&[event.event_id])).await?;
        crash::point("before_archive_commit");
        transaction.commit().await?;
        Ok(true)
    }

    async fn failed(&self, batch: &Batch, event: &Event, error: &str) -> Result<()> {
        relay::nack(&self.exec, batch, event, error).await
    }
}

//! Compensates: carries out what the aborted key of a funding has emitted, in that order.
//!
//! Invariant: a compensation is sent until it is answered, with its delivery key, so the account
//! outside does it once. It does not matter whether the transfer ever arrived there: reversed, it
//! cannot arrive later.

use deadpool_postgres::Pool;
use pg_once::{Acked, Deliver, Error, Event, Json, StepEvent, Topic, Undelivered};
use serde::{Deserialize, Serialize};

use super::{Funding, Leg, end};
use crate::caller::Caller;
use crate::{Service, crash};

/// The topic of compensations.
const TOPIC: &str = "compensations";

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
    pub fn event(&self) -> Result<StepEvent, Error> {
        let event = StepEvent::new(&Topic::new(TOPIC), Json::of(self)?);
        Ok(event.order_key(&self.funding))
    }
}

struct Undoer {
    pool: Pool,
    outside: Caller,
}

/// For ever.
pub async fn run(service: &Service) {
    let compensations = Topic::new(TOPIC).default_subscriber();
    let undoer = Undoer {
        pool: service.pool.clone(),
        outside: service.outside.clone(),
    };
    service.work_off(&compensations, undoer).await;
}

impl Deliver for Undoer {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        let undo: Undo = event.payload.parse()?;
        let Some(transfer) = undo.reverse else {
            self.archive(&undo.funding).await?;
            return Ok(Acked::ByWorker);
        };
        crash::point("before_reversal");
        let (key, body) = (&event.delivery_key, transfer.to_string());
        let reversed = self.outside.post("/reversals", Some(key), body).await;
        crash::point("after_reversal");
        reversed
            .map(|_| Acked::ByWorker)
            .map_err(|error| Undelivered::retry("reversal", format!("{error:#}")))
    }
}

impl Undoer {
    /// Our own ledger comes last, after each reversal is made or dead. Doing it again does nothing.
    async fn archive(&self, funding: &str) -> Result<(), Undelivered> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        end(&transaction, funding, "archived").await?;
        crash::point("before_archive_commit");
        transaction.commit().await?;
        crash::point("after_archive");
        Ok(())
    }
}

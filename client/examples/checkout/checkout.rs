//! Owns a checkout: a charge and a shipment with their compensations, and the order.
//!
//! 1. The key is claimed with the order as its request.
//! 2. Each foreign call is a step. Its compensation is registered before the call. When the charge's result is
//!    recorded, the event that sends a receipt to the customer is registered, too.
//! 3. The order's row and the answer commit together, and with them the receipt's event. If a call is
//!    refused for good, the key is aborted instead, and the abort emits the compensations, newest
//!    first.
//!
//! Invariant: a charge that may have been made has a compensation in the database, from before the
//! request to the bank until the order is complete.

use std::time::Duration;

use deadpool_postgres::Pool;
use pg_once::{
    Backoff, Done, Error, Failure, Json, Key, Lease, Outcome, Response, Scope, Step, StepEvent,
    StepEvents, Topic,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::common::http::Http;
use crate::common::worker::die;

pub const TABLES: &str = "CREATE TABLE orders (key text PRIMARY KEY, charge text NOT NULL, shipment text NOT NULL); \
    CREATE TABLE undone (n bigint GENERATED ALWAYS AS IDENTITY, key text, step text, what text, PRIMARY KEY (key, step))";
const INSERT: &str = "INSERT INTO orders (key, charge, shipment) VALUES ($1, $2, $3)";

/// An attempt makes each foreign call at most twice, and only once if the answer's `Retry-After` is more than `cap`.
const TRIES: Backoff = Backoff {
    tries: 2,
    base: Duration::from_millis(50),
    cap: Duration::from_secs(2),
    call_timeout: Duration::from_secs(2),
};

pub const CHARGES: &str = "/charges";
pub const SHIPMENTS: &str = "/shipments";

#[derive(Clone, Deserialize, Serialize)]
pub struct Order {
    pub card: String,
    pub address: String,
    pub amount_cents: i64,
}

/// The payload of a compensation: the order, the step, and the derived key of the call to undo.
#[derive(Deserialize, Serialize)]
pub struct Undo {
    pub order: String,
    pub step: String,
    pub made_with: String,
}

#[derive(Clone)]
pub struct Checkout {
    pub pool: Pool,
    pub http: Http,
    pub scope: Scope,
    pub receipts: Topic,
    pub undos: Topic,
    /// Whether the process dies between the charge and its record (for a test in main.rs).
    pub dies: bool,
}

impl Checkout {
    /// Does the work of `POST /checkout`. In a service, `http::key_of_header` makes `key`.
    pub async fn check_out(&self, key: &str, order: &Order) -> Result<Outcome, Error> {
        self.scope
            .key(key)
            .run(&self.pool)
            .request(Json::of(order)?)
            .lease(crate::common::LEASE)
            .run(|lease| self.make(lease, order))
            .await
    }

    async fn make(&self, lease: Lease, order: &Order) -> Result<Done, Failure> {
        let receipt = Json::of(&json!({"order": lease.key().as_str()}))?;
        let receipt = StepEvent::new(&self.receipts, receipt);
        let charge = self
            .call(&lease, "charge", CHARGES, order, Some(receipt))
            .await?;
        let shipment = self.call(&lease, "ship", SHIPMENTS, order, None).await?;

        let answer = json!({"order": lease.key().as_str(), "charge": charge, "shipment": shipment});
        let answer = Response::new(201).with_body(&answer)?;
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let key = lease.key().as_str();
        transaction
            .execute(INSERT, &[&key, &charge, &shipment])
            .await?;
        lease.complete(&transaction, &answer).await?;
        transaction.commit().await?;
        Ok(Done::Stored(answer))
    }

    /// Makes one foreign call as a step; returns the id of the charge or shipment.
    async fn call(
        &self,
        lease: &Lease,
        step: &str,
        path: &str,
        order: &Order,
        on_complete: Option<StepEvent>,
    ) -> Result<String, Failure> {
        let undo = self.undo(lease.key(), step).await?;
        let derived_key = match lease.step_with(&self.pool, step, &undo).await? {
            Step::Done(Some(result)) => return Ok(result.parse()?),
            Step::Done(None) => return Err(Failure::unknown("a step is done without its id")),
            // Bank and carrier dedupe by the derived key: they answer a repeated call like the first one.
            Step::First { derived_key } | Step::Again { derived_key, .. } => derived_key,
        };
        let body = &Json::of(order)?.into_string();
        let ask = || async {
            let ended = self.http.post(path, &derived_key, body).await;
            ended.of_step(step)
        };
        let made: Made = serde_json::from_str(&TRIES.foreign(ask).await?)?;
        if self.dies {
            die();
        }
        let events = on_complete.map_or_else(StepEvents::new, |event| {
            StepEvents::new().on_complete(event)
        });
        let result = Json::of(&made.id)?;
        lease
            .step_done_with(&self.pool, step, Some(&result), &events)
            .await?;
        Ok(made.id)
    }

    /// Makes the compensation of a step. The compensation names the call by the derived key, which is known before
    /// the answer. The compensations of a checkout share an order key, so they run one after another.
    async fn undo(&self, key: &Key, step: &str) -> Result<StepEvent, Error> {
        let undo = Undo {
            order: key.as_str().to_owned(),
            step: step.to_owned(),
            made_with: key.derive(&self.pool, step).await?,
        };
        Ok(StepEvent::new(&self.undos, Json::of(&undo)?).order_key(key.as_str()))
    }
}

#[derive(Deserialize)]
struct Made {
    id: String,
}

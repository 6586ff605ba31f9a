//! Makes one order in three phases, each of which commits.
//!
//! 1. The key is claimed (by the runner) with the order as its request.
//! 2. The step `charge` is begun and committed, then the bank is asked, then the step's end and the
//!    recovery point `charged` are committed.
//! 3. The order's row and the answer commit together.
//!
//! Invariant: wherever a process dies, [`Shop::make`] can go on in another process, and needs only the lease and the
//! request. It runs for a client's request or retry, and for the completer with the stored request.

use std::time::Duration;

use deadpool_postgres::Pool;
use pg_once::{Abandoned, Done, Failure, Json, Lease, Response, Step};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::sleep;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::bank::{Bank, Charge, Ended};
use crate::crash;

/// No unique constraint on the key, so that a wrong second order would be visible.
const TABLE: &str = "CREATE TABLE orders (order_id text PRIMARY KEY, idempotency_key text NOT NULL, \
    customer text NOT NULL, item text, amount_cents bigint NOT NULL, charge_id text NOT NULL, \
    made_by text NOT NULL DEFAULT 'request', created_at timestamptz NOT NULL DEFAULT clock_timestamp())";
const INSERT: &str = "INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents, charge_id, \
    made_by) VALUES ($1, $2, $3, $4, $5, $6, $7)";

/// How long after an unanswered request the bank may still book the charge. A lookup of an earlier
/// charge first waits for this time.
const BOOKS_LATE: Duration = Duration::from_secs(1);

/// The body of a `POST /orders`.
#[derive(Deserialize)]
pub struct Order {
    pub customer: String,
    pub item: String,
    pub amount_cents: i64,
}

/// The part of the stored HTTP request that this file reads.
#[derive(Deserialize)]
struct Kept {
    body: Order,
}

/// The caller that makes an order; stored with the order.
#[derive(Clone, Copy)]
pub enum By {
    /// The handler of a client's request.
    Request,
    /// The completer, because the client did not retry.
    Completer,
}

impl By {
    const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Completer => "completer",
        }
    }
}

/// The state stored at the recovery point `charged`. Phase 3 reads this state.
#[derive(Deserialize, Serialize)]
struct Charged {
    charge_id: String,
}

#[derive(Clone)]
pub struct Shop {
    pub pool: Pool,
    pub bank: Bank,
}

impl Shop {
    /// Makes the table if it is missing. `CREATE TABLE IF NOT EXISTS` would need the right to create
    /// even if the table exists, so this looks for the table first.
    pub async fn prepare(&self) -> anyhow::Result<()> {
        let client = self.pool.get().await?;
        let there: bool = client
            .query_typed_one("SELECT to_regclass('orders') IS NOT NULL", &[])
            .await?
            .try_get(0)?;
        if !there {
            client.batch_execute(TABLE).await?;
        }
        Ok(())
    }

    /// Makes the order of a client that did not retry, from the stored request.
    pub async fn make_abandoned(self, abandoned: Abandoned) -> Result<Done, Failure> {
        let Some(request) = abandoned.request else {
            return Err(Failure::unknown("the request was not kept"));
        };
        let Kept { body } = request.parse()?;
        self.make(abandoned.lease, body, By::Completer).await
    }

    /// Makes the order, from the recovery point that the last attempt reached.
    pub async fn make(self, lease: Lease, order: Order, by: By) -> Result<Done, Failure> {
        crash::point("after_claim");
        let charged = match (lease.recovery_point(), lease.state()) {
            ("charged", Some(state)) => state.parse()?,
            _ => self.charge(&lease, &order).await?,
        };
        self.save(&lease, &order, charged, by).await
    }

    async fn charge(&self, lease: &Lease, order: &Order) -> Result<Charged, Failure> {
        let (derived_key, look_first) = match lease.step(&self.pool, "charge").await? {
            Step::Done(Some(result)) => return self.charged(lease, result.parse()?).await,
            Step::Done(None) => {
                return Err(Failure::unknown("the charge is recorded without its id"));
            }
            Step::First { derived_key } => (derived_key, false),
            // A bank that does not dedupe would charge again, so an earlier charge is looked for first.
            Step::Again { derived_key, .. } => (derived_key, !self.bank.dedupes),
        };
        crash::point("after_step_begin");
        let charge_id = match look_first {
            true => self.look_then_ask(lease, &derived_key, order).await?,
            false => self.ask(lease, &derived_key, order).await?,
        };
        crash::point("after_charge");
        let charged = Charged { charge_id };
        lease
            .step_done(&self.pool, "charge", Some(&Json::of(&charged)?))
            .await?;
        crash::point("after_step_done");
        self.charged(lease, charged).await
    }

    /// Ends phase 2: commits the recovery point `charged`.
    async fn charged(&self, lease: &Lease, charged: Charged) -> Result<Charged, Failure> {
        lease
            .advance(&self.pool, "charged", Some(&Json::of(&charged)?), None)
            .await?;
        crash::point("after_advance");
        Ok(charged)
    }

    async fn look_then_ask(
        &self,
        lease: &Lease,
        derived_key: &str,
        order: &Order,
    ) -> Result<String, Failure> {
        if !self.bank.can_be_asked {
            return Err(Failure::unknown(
                "an earlier attempt may have charged, and the bank cannot be asked",
            ));
        }
        // The earlier attempt has ended. After this wait, the bank no longer books a charge of that attempt.
        sleep(BOOKS_LATE).await;
        match self.bank.find(lease.key().as_str()).await {
            Ok(Some(charge_id)) => Ok(charge_id),
            Ok(None) => self.ask(lease, derived_key, order).await,
            Err(error) => Err(Failure::retry(format!(
                "the bank could not be asked for its charges: {error}"
            ))),
        }
    }

    async fn ask(
        &self,
        lease: &Lease,
        derived_key: &str,
        order: &Order,
    ) -> Result<String, Failure> {
        let reference = lease.key().as_str();
        let charge = Charge {
            amount_cents: order.amount_cents,
            customer: &order.customer,
            reference,
        };
        match self.bank.charge(derived_key, &charge).await {
            Ended::Charged(charge_id) => Ok(charge_id),
            Ended::Refused(status) => {
                let problem =
                    json!({"title": "the bank refused the charge", "bank_status": status.as_u16()});
                Err(Failure::Abort(Response::new(402).with_body(&problem)?))
            }
            // The next attempt can learn the outcome from a bank that dedupes or can be asked, but from no other bank.
            Ended::NoAnswer(error, retry_after) if self.bank.dedupes || self.bank.can_be_asked => {
                Err(Failure::Retry { error, retry_after })
            }
            Ended::NoAnswer(error, _) => Err(Failure::unknown(error)),
        }
    }

    /// Phase 3: commits the order and the answer together.
    async fn save(
        &self,
        lease: &Lease,
        order: &Order,
        charged: Charged,
        by: By,
    ) -> Result<Done, Failure> {
        let order_id = Uuid::new_v4().to_string();
        let answer = Response::new(201).with_body(&json!({
            "order_id": order_id,
            "charge_id": charged.charge_id,
            "customer": order.customer,
            "amount_cents": order.amount_cents,
        }))?;
        let mut connection = self.pool.get().await?;
        let transaction = connection.transaction().await?;
        let key = lease.key().as_str();
        // An unnamed statement: it works through a pooler in transaction mode.
        transaction
            .execute_typed(
                INSERT,
                &[
                    (&order_id, Type::TEXT),
                    (&key, Type::TEXT),
                    (&order.customer, Type::TEXT),
                    (&order.item, Type::TEXT),
                    (&order.amount_cents, Type::INT8),
                    (&charged.charge_id, Type::TEXT),
                    (&by.name(), Type::TEXT),
                ],
            )
            .await?;
        lease.complete(&transaction, &answer).await?;
        crash::point("before_complete_commit");
        transaction.commit().await?;
        crash::point("after_complete");
        Ok(Done::Stored(answer))
    }
}

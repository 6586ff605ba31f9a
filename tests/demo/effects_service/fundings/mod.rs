//! A funding: money is pulled from a customer's account outside and pushed to the custody account
//! there, and two entries of our own ledger, pending at first, are posted in the end, or archived.

pub mod naive;
pub mod undertaker;
pub mod undo;
pub mod worker;

use anyhow::Result;
use deadpool_postgres::Transaction;
use pg_once::{EmitOptions, Json, Topic};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::types::Type;

use crate::{Ended, How, Service, crash};

/// The topic of fundings that are to be carried out.
pub const TOPIC: &str = "fundings";
/// The scope of their keys.
pub const SCOPE: &str = "fundings";

const MAKE: &str = "insert into funding (funding, customer, custody, amount_cents) values ($1, $2, $3, $4) \
                    on conflict (funding) do nothing returning true";
const ENTRIES: &str =
    "insert into entry (funding, account, amount_cents) values ($1, $2, -$4), ($1, $3, $4)";
const END: &str = "with ended as (update funding set status = $2, ended_at = clock_timestamp() \
                   where funding = $1 and status = 'pending' returning funding) \
                   update entry e set status = $2 from ended where e.funding = ended.funding";

/// What a client asks for.
#[derive(Clone, Deserialize, Serialize)]
pub struct Funding {
    pub funding: String,
    pub customer: String,
    pub custody: String,
    pub amount_cents: i64,
}

/// One of the two transfers.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Leg {
    Pull,
    Push,
}

impl Leg {
    pub const BOTH: [Self; 2] = [Self::Pull, Self::Push];

    /// The step's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
        }
    }
}

impl Funding {
    /// The transfer as the account outside is asked for it; its reversal is asked for in the same words.
    pub fn transfer(&self, leg: Leg) -> serde_json::Value {
        let (account, amount) = match leg {
            Leg::Pull => (&self.customer, -self.amount_cents),
            Leg::Push => (&self.custody, self.amount_cents),
        };
        let reference = format!("{}/{}", self.funding, leg.name());
        json!({ "customer": account, "amount_cents": amount, "reference": reference })
    }
}

/// Takes a wish: the funding and its entries, pending; with pg_once also the event that gets it carried
/// out. By hand a worker looks for what is pending.
pub async fn accept(service: &Service, key: &str, body: &str) -> Result<Ended> {
    let funding: Funding = serde_json::from_str(body)?;
    anyhow::ensure!(funding.funding == key, "the key is not the funding's");
    let mut client = service.pool.get().await?;
    let transaction = client.transaction().await?;
    let args = [
        (&funding.funding as _, Type::TEXT),
        (&funding.customer as _, Type::TEXT),
        (&funding.custody as _, Type::TEXT),
        (&funding.amount_cents as _, Type::INT8),
    ];
    let answer = json!({ "funding": key }).to_string();
    if transaction.query_typed(MAKE, &args).await?.is_empty() {
        return Ok(Ended::Before(answer));
    }
    transaction.query_typed(ENTRIES, &args).await?;
    if service.how == How::PgOnce {
        Topic::new(TOPIC)
            .emit(&transaction, &Json::of(&funding)?, &EmitOptions::new())
            .await?;
    }
    crash::point("before_accept_commit");
    transaction.commit().await?;
    crash::point("after_accept");
    Ok(Ended::Now(answer))
}

/// `posted` or `archived`, the funding and its entries.
async fn end(
    transaction: &Transaction<'_>,
    funding: &str,
    status: &str,
) -> Result<(), tokio_postgres::Error> {
    let args = [(&funding as _, Type::TEXT), (&status as _, Type::TEXT)];
    transaction.query_typed(END, &args).await?;
    Ok(())
}

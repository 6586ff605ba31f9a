//! The shop as it is with pg_once: the order, its receipt as an event and the answer to the request
//! are one transaction. There is nothing between them where a process could die.

use anyhow::Result;
use pg_once::http::Answer;
use pg_once::{Claim, ClaimOptions, EmitOptions, Json, Response, Scope, Topic};

use super::{Order, answer, save};
use crate::{Ended, Service, crash};

/// The scope of the orders' keys.
const SCOPE: &str = "shop.orders";
/// The topic of their receipts.
pub const TOPIC: &str = "receipts";

pub async fn order(service: &Service, key: &str, body: String) -> Result<Ended> {
    let order: Order = serde_json::from_str(&body)?;
    let mut client = service.pool.get().await?;
    let transaction = client.transaction().await?;
    let request = ClaimOptions::new().request(Json::from_text(body));
    let claim = Scope::new(SCOPE)
        .key(key)
        .claim(&transaction, &request)
        .await?;
    let lease = match (Answer::of_claim(&claim), claim) {
        (None, Claim::Claimed(lease) | Claim::Resumed(lease)) => lease,
        (Some(answer), _) => return Ok(Ended::Answered(answer)),
        (None, other) => anyhow::bail!("unanswered: {other:?}"),
    };
    let receipt = save(&transaction, key, &order).await?;
    let in_order = EmitOptions::new().order_key(receipt.customer);
    Topic::new(TOPIC)
        .emit(&transaction, &Json::of(&receipt)?, &in_order)
        .await?;
    let body = answer(key, order.amount_cents);
    lease
        .complete(&transaction, &Response::new(201).with_body(&body)?)
        .await?;
    crash::point("before_order_commit");
    transaction.commit().await?;
    crash::point("after_order_commit");
    Ok(Ended::Now(body.to_string()))
}

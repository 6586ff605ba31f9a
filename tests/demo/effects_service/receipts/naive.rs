//! The shop as people write it by hand, in two ways: the order is committed and then its receipt is
//! sent, or the receipt is sent and then the order is committed.
//!
//! It is the demo's measuring stick, so it is honest: an order is made once by a unique key and in one
//! transaction, and the first way tries a receipt three times. What it lacks is a memory of what is
//! still to be sent, and a name by which the receiver could know a receipt again.

use std::time::Duration;

use anyhow::Result;
use tokio_postgres::types::Type;

use super::{Order, RECEIPTS, answer, save};
use crate::{Ended, How, Service, crash};

const FIND: &str = "select amount_cents from orders where idempotency_key = $1";
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

pub async fn order(service: &Service, key: &str, body: &str) -> Result<Ended> {
    let order: Order = serde_json::from_str(body)?;
    let mut client = service.pool.get().await?;
    let found = client.query_typed(FIND, &[(&key, Type::TEXT)]).await?;
    if let Some(row) = found.first() {
        return Ok(Ended::Before(answer(key, row.get(0)).to_string()));
    }
    let transaction = client.transaction().await?;
    let receipt = save(&transaction, key, &order).await?;
    let webhook = serde_json::to_string(&receipt)?;
    if service.how == How::SendFirst {
        service.outside.post(RECEIPTS, None, webhook).await?;
        crash::point("after_send");
        transaction.commit().await?;
        crash::point("after_order_commit");
    } else {
        transaction.commit().await?;
        drop(client);
        crash::point("after_order_commit");
        send(service, webhook).await;
        crash::point("after_send");
    }
    Ok(Ended::Now(answer(key, order.amount_cents).to_string()))
}

/// The order is made, so its client is told so whatever becomes of the receipt.
async fn send(service: &Service, webhook: String) {
    for _ in 0..TRIES {
        match service.outside.post(RECEIPTS, None, webhook.clone()).await {
            Ok(_) => return,
            Err(error) => eprintln!("a receipt was not answered: {error:#}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

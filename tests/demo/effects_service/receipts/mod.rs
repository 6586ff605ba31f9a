//! An order and its receipt: the webhook that the customer's own system gets for each order.
//!
//! Invariant: the orders of a customer are numbered in the order of their commits, because the
//! number is taken under the customer's row lock; receipts must come in that order.

pub mod naive;
pub mod relay;
pub mod shop;

use anyhow::Result;
use deadpool_postgres::Transaction;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::types::Type;

/// The path of the receiver.
const RECEIPTS: &str = "/receipts";

const NUMBER: &str = "insert into customer (customer, orders) values ($1, 1) \
                      on conflict (customer) do update set orders = customer.orders + 1 returning orders";
const SAVE: &str =
    "insert into orders (idempotency_key, customer, number, amount_cents) values ($1, $2, $3, $4)";

/// What a client asks for.
#[derive(Deserialize)]
struct Order {
    customer: String,
    amount_cents: i64,
}

/// What the receiver gets.
#[derive(Serialize)]
struct Receipt<'a> {
    reference: &'a str,
    customer: &'a str,
    number: i64,
    amount_cents: i64,
}

/// Writes the order; tells its receipt.
async fn save<'a>(
    transaction: &Transaction<'_>,
    key: &'a str,
    order: &'a Order,
) -> Result<Receipt<'a>> {
    let Order {
        customer,
        amount_cents,
    } = order;
    let number = [(customer as _, Type::TEXT)];
    let number: i64 = transaction.query_typed_one(NUMBER, &number).await?.get(0);
    let row = [
        (&key as _, Type::TEXT),
        (customer as _, Type::TEXT),
        (&number as _, Type::INT8),
        (amount_cents as _, Type::INT8),
    ];
    transaction.query_typed(SAVE, &row).await?;
    Ok(Receipt {
        reference: key,
        customer,
        number,
        amount_cents: *amount_cents,
    })
}

/// What the client is told.
fn answer(key: &str, amount_cents: i64) -> serde_json::Value {
    json!({ "order": key, "amount_cents": amount_cents })
}

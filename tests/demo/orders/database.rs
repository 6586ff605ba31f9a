//! The order service's table, and the evidence that is loaded beside it after a run.

use anyhow::Result;
use tokio_postgres::Client;

use super::plan::Order;
use crate::database::{copy, load_saw};
use crate::journal::Attempt;
use crate::outside;
use crate::outside::line::Line;

/// The services' table.
pub const ORDERS: &str = "\
create table orders (
    order_id text primary key,
    idempotency_key text not null,
    customer text not null,
    item text,
    amount_cents bigint not null,
    charge_id text not null,
    made_by text not null default 'request',
    created_at timestamptz not null default clock_timestamp()
);
create index on orders (idempotency_key);
grant select, insert on orders to shop;";

const PROOF: &str = "\
create view bank_ledger as select * from outside_ledger where kind = 'made';
create table asked (key text primary key, customer text, amount_cents bigint, leaves boolean);
create index on orders (charge_id);";

/// What is not at its end: keys that somebody or the completer still has to work on, and how far they are.
pub const PENDING: &str =
    "select count(*) filter (where status in ('r', 'l')), coalesce(sum(attempt), 0) from once.key";

/// Puts the bank's ledger, the plan and the clients' journal beside the orders.
pub async fn load_evidence(
    client: &Client,
    ledger: &[Line],
    plan: &[Order],
    attempts: &[Attempt],
) -> Result<()> {
    outside::load(client, ledger).await?;
    client.batch_execute(PROOF).await?;
    let orders = plan.iter().map(|order| {
        [
            Some(order.key.clone()),
            Some(order.customer.clone()),
            Some(order.amount_cents.to_string()),
            Some(order.manner.leaves().to_string()),
        ]
    });
    copy(client, "asked", orders).await?;
    load_saw(client, attempts).await?;
    client.batch_execute("analyze asked, saw, orders").await?;
    Ok(())
}

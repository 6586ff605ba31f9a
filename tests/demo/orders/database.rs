//! The order service's table, and the evidence that is loaded beside it after a run.

use anyhow::Result;
use tokio_postgres::Client;

use super::bank_process::Charge;
use super::plan::Order;
use crate::database::{copy, load_saw};
use crate::journal::Attempt;

/// The services' table.
pub const ORDERS: &str = "\
create table orders (
    order_id text primary key,
    idempotency_key text not null,
    customer text not null,
    item text,
    amount_cents bigint not null,
    charge_id text not null,
    created_at timestamptz not null default clock_timestamp()
);
create index on orders (idempotency_key);
grant select, insert on orders to shop;";

const PROOF_TABLES: &str = "\
create table bank_ledger (charge_id text, idempotency_key text, reference text, customer text, amount_cents bigint);
create table asked (key text primary key, customer text, amount_cents bigint);
create index on bank_ledger (charge_id);
create index on bank_ledger (reference);
create index on orders (charge_id);";

/// Puts the bank's ledger, the plan and the clients' journal beside the orders.
pub async fn load_evidence(
    client: &Client,
    ledger: &[Charge],
    plan: &[Order],
    attempts: &[Attempt],
) -> Result<()> {
    client.batch_execute(PROOF_TABLES).await?;
    let charges = ledger.iter().map(|charge| {
        [
            Some(charge.charge_id.clone()),
            charge.idempotency_key.clone(),
            Some(charge.reference.clone()),
            Some(charge.customer.clone()),
            Some(charge.amount_cents.to_string()),
        ]
    });
    copy(client, "bank_ledger", charges).await?;
    let orders = plan.iter().map(|order| {
        [
            Some(order.key.clone()),
            Some(order.customer.clone()),
            Some(order.amount_cents.to_string()),
        ]
    });
    copy(client, "asked", orders).await?;
    load_saw(client, attempts).await?;
    client
        .batch_execute("analyze bank_ledger, asked, saw, orders")
        .await?;
    Ok(())
}

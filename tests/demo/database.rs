//! The databases of the demo: one for each run, all in one private cluster.
//!
//! Invariant: the services connect as a role that may use `once` and write orders, and nothing
//! else; what the proof needs is loaded beside it by the owner, after the run.

use anyhow::Result;
use futures_util::SinkExt;
use hyper::body::Bytes;
use pg_once_tests::Cluster;
use tokio_postgres::Client;

use crate::bank_process::Charge;
use crate::journal::Attempt;
use crate::plan::Order;

/// The role of the services.
pub const SERVICE_ROLE: &str = "shop";

const ORDERS: &str = "\
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
create table saw (key text, client text, asked_cents bigint, sent_s float8, answered_s float8,
                  outcome text, status int, final boolean, body text);
create index on bank_ledger (charge_id);
create index on bank_ledger (reference);
create index on saw (key);
create index on orders (charge_id);";

/// Makes the role that services use in every database.
pub async fn create_role(cluster: &Cluster) -> Result<()> {
    let admin = cluster.connect("postgres").await?;
    admin
        .batch_execute(&format!("create role {SERVICE_ROLE} login"))
        .await?;
    Ok(())
}

/// A database with the table `orders`, and the extension if the service needs it.
pub async fn create(cluster: &Cluster, name: &str, extension: bool) -> Result<Client> {
    let client = if extension {
        let client = cluster.create_database_with_extension(name).await?;
        client
            .execute(
                "select once.grant_role($1::text::regrole, 'use')",
                &[&SERVICE_ROLE],
            )
            .await?;
        client
    } else {
        let admin = cluster.connect("postgres").await?;
        admin
            .batch_execute(&format!("create database {name}"))
            .await?;
        cluster.connect(name).await?
    };
    client.batch_execute(ORDERS).await?;
    Ok(client)
}

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
    let attempts = attempts.iter().map(|attempt| {
        [
            Some(attempt.key.clone()),
            Some(attempt.client.to_owned()),
            Some(attempt.asked_cents.to_string()),
            Some((attempt.sent_ms / 1000.0).to_string()),
            Some((attempt.answered_ms / 1000.0).to_string()),
            Some(attempt.outcome.name().to_owned()),
            attempt.status.map(|status| status.to_string()),
            Some(attempt.outcome.is_final().to_string()),
            attempt.body.clone(),
        ]
    });
    copy(client, "saw", attempts).await?;
    client
        .batch_execute("analyze bank_ledger, asked, saw, orders")
        .await?;
    Ok(())
}

/// COPY in CSV: unquoted and empty is NULL, everything else is quoted.
async fn copy<const N: usize>(
    client: &Client,
    table: &str,
    rows: impl Iterator<Item = [Option<String>; N]>,
) -> Result<()> {
    let mut text = String::new();
    for row in rows {
        for (at, field) in row.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            if let Some(field) = field {
                text.push('"');
                text.push_str(&field.replace('"', "\"\""));
                text.push('"');
            }
        }
        text.push('\n');
    }
    let sink = client
        .copy_in(&format!("copy {table} from stdin (format csv)"))
        .await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(Bytes::from(text)).await?;
    sink.finish().await?;
    Ok(())
}

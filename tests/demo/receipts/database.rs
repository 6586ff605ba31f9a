//! The shop's tables, and the evidence that is loaded beside them after a run.

use std::collections::HashSet;

use anyhow::Result;
use tokio_postgres::Client;

use crate::database::load_saw;
use crate::journal::Attempt;
use crate::outside;
use crate::outside::line::{Kind, Line};

const TABLES: &str = "\
create table customer (customer text primary key, orders bigint not null);
create table orders (
    idempotency_key text primary key,
    customer text not null,
    number bigint not null,
    amount_cents bigint not null,
    made_at timestamptz not null default clock_timestamp()
);
grant select, insert, update on customer, orders to shop;";

/// A receiver that is away for a while must not make a receipt die.
const TOPIC: &str = "\
select once.topic_set('receipts', '{}');
select once.subscriber_set('receipts', 'default',
    '{\"max_attempts\": 1000, \"backoff_base\": \"50 ms\", \"backoff_cap\": \"500 ms\"}');";

/// What the receiver took in, the first of each order.
const EVIDENCE: &str = "\
create view receipt as
    select distinct on (reference) * from outside_ledger where kind = 'made' order by reference, line;
analyze;";

pub const COUNT: &str = "select count(*) from orders";

pub async fn prepare(owner: &Client, pg_once: bool) -> Result<()> {
    owner.batch_execute(TABLES).await?;
    if pg_once {
        owner.batch_execute(TOPIC).await?;
    }
    Ok(())
}

/// How many orders' receipts have arrived.
pub fn arrived(ledger: &[Line]) -> usize {
    let made = ledger.iter().filter(|line| line.kind == Kind::Made);
    let references: HashSet<_> = made.map(|line| &line.request.reference).collect();
    references.len()
}

/// Puts the receiver's ledger and the clients' journal beside the orders.
pub async fn load_evidence(owner: &Client, ledger: &[Line], attempts: &[Attempt]) -> Result<()> {
    outside::load(owner, ledger).await?;
    load_saw(owner, attempts).await?;
    owner.batch_execute(EVIDENCE).await?;
    Ok(())
}

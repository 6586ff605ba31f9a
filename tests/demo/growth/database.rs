//! What is found on the servers after a run, beside the evidence of the orders.

use std::collections::HashMap;

use anyhow::Result;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::database::copy;
use crate::orders::plan::Order;

/// Rows of every server, and what the shards have stored of each key.
pub const FOUND: &str = "\
create table found (server int, order_id text, idempotency_key text, customer text, item text, amount_cents bigint,
                    charge_id text);
create table stored (server int, key text, status text, body text);";

/// A row that was copied is one order.
pub const ORDERS_OF_FOUND: &str = "\
insert into orders (order_id, idempotency_key, customer, item, amount_cents, charge_id)
select distinct on (order_id) order_id, idempotency_key, customer, item, amount_cents, charge_id from found";

const ROWS: &str =
    "select order_id, idempotency_key, customer, item, amount_cents::text, charge_id from orders";
const KEYS: &str = "\
select k.key, g.status, g.response_body::text
from unnest($1::text[]) as k (key), lateral once.key_get('orders.create', k.key) g
where once.shard_of(split_part(k.key, '/', 1), $2) = $3";

/// The shard of each customer.
pub async fn shards(
    owner: &Client,
    shards: usize,
    orders: &[Order],
) -> Result<HashMap<String, usize>> {
    let customers: Vec<&str> = orders.iter().map(|order| &*order.customer).collect();
    let query =
        "select customer, once.shard_of(customer, $2) from unnest($1::text[]) as c (customer)";
    let rows = owner
        .query(query, &[&customers, &i32::try_from(shards)?])
        .await?;
    let shard =
        |row: &Row| -> Result<_> { Ok((row.get(0), usize::try_from(row.get::<_, i32>(1))?)) };
    rows.iter().map(shard).collect()
}

/// The orders of a server; no statement has a name, because a pooler may stand between.
pub async fn found(owner: &Client, server: usize, from: &Client) -> Result<()> {
    let rows = from.query_typed(ROWS, &[]).await?;
    let rows = rows.iter().map(|row| {
        let mut fields: [Option<String>; 7] = Default::default();
        fields[0] = Some(server.to_string());
        for (at, field) in fields.iter_mut().skip(1).enumerate() {
            *field = row.get(at);
        }
        fields
    });
    copy(owner, "found", rows).await
}

/// What a shard has stored of those of the keys that are its own.
pub async fn stored(
    owner: &Client,
    (shard, shards): (usize, usize),
    from: &Client,
    keys: &[String],
) -> Result<()> {
    let (number, all) = (i32::try_from(shard)?, i32::try_from(shards)?);
    let arguments: [(&(dyn ToSql + Sync), Type); 3] = [
        (&keys, Type::TEXT_ARRAY),
        (&all, Type::INT4),
        (&number, Type::INT4),
    ];
    let rows = from.query_typed(KEYS, &arguments).await?;
    let rows = rows
        .iter()
        .map(|row| [Some(shard.to_string()), row.get(0), row.get(1), row.get(2)]);
    copy(owner, "stored", rows).await
}

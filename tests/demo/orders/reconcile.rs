//! Settling what nobody knows from the bank's own ledger, by the recipe of `sql/examples/reconcile.md`.
//!
//! Invariant: the ledger is read before anything is decided, and again after what was sent; a refund is
//! sent once for each time that it was read, since this bank would pay a repeated one twice.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tokio_postgres::{Client, Row};

use super::bank_process::Bank;
use super::caller::Caller;
use super::plan::Order;
use crate::database::{JANITOR_ROLE, copy};
use crate::ground::Ground;
use crate::outside::Outside;
use crate::outside::line::{Kind, Line};
use crate::settings::SCOPE;

const RECIPE: &str = include_str!("../../../sql/examples/reconcile.sql");
const RIGHTS: &str = "grant select, insert on orders to janitor;
    grant select, insert, delete on reconcile_ledger to janitor";
const DIFFERENCES: &str =
    "select finding, key, attempt, refund_key, moved_cents - wanted_cents, lines[1]
    from reconcile($1, now() - interval '1 day', now() + interval '1 hour')";
const COUNT: &str = "create table differences as
    select finding, count(*) from reconcile('orders.create', now() - interval '1 day', now() + interval '1 hour')
    group by finding";
const ACCEPT: &str = "select reconcile_accept($1, $2, $3, $4)";
const REFUSE: &str = "select reconcile_refuse($1, $2, $3)";

/// How often the ledger is read, at most: refunds whose answer is lost are seen in the next one.
const LEDGERS: usize = 8;
const BANK_TIMEOUT: Duration = Duration::from_millis(1000);

/// What was settled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settled {
    pub differences: usize,
    /// Parked keys that became orders, since the bank had charged.
    pub accepted: usize,
    /// Parked keys that did not.
    pub refused: usize,
    pub refunds_sent: usize,
    pub ledgers_read: usize,
}

/// Reads ledger after ledger and settles what differs, until nothing does. Of an order that the bank has
/// charged its client gets the order if it still wants it; one whose client has left gets the money back.
pub async fn settle_from_ledger(
    ground: &Ground<'_>,
    database: &str,
    owner: &Client,
    (outside, bank): (&Outside, &Bank),
    orders: &[Order],
) -> Result<Settled> {
    owner.batch_execute(RECIPE).await?;
    owner.batch_execute(RIGHTS).await?;
    // A person with the right to operate, and with rights on the tables; nothing more.
    let person = ground.cluster.connect_as(JANITOR_ROLE, database).await?;
    let bank = Caller::new(&bank.url(), BANK_TIMEOUT);
    let left: HashSet<&str> = orders
        .iter()
        .filter(|order| order.manner.leaves())
        .map(|order| order.key.as_str())
        .collect();
    let mut settled = Settled::default();
    while settled.ledgers_read < LEDGERS {
        load_ledger(&person, &outside.lines()?).await?;
        settled.ledgers_read += 1;
        if settled.ledgers_read == 1 {
            owner.batch_execute(COUNT).await?;
        }
        let differences = person.query(DIFFERENCES, &[&SCOPE]).await?;
        if settled.ledgers_read == 1 {
            settled.differences = differences.len();
        }
        if differences.is_empty() {
            break;
        }
        for row in &differences {
            settled.end(&person, &bank, row, &left).await?;
        }
    }
    Ok(settled)
}

impl Settled {
    /// Does what is to be done about one difference.
    async fn end(
        &mut self,
        person: &Client,
        bank: &Caller,
        row: &Row,
        left: &HashSet<&str>,
    ) -> Result<()> {
        let finding: &str = row.get("finding");
        let key: &str = row.get("key");
        let attempt: Option<i32> = row.get("attempt");
        match finding {
            "parked, and they did it" if !left.contains(key) => {
                let charge: &str = row.get("lines");
                let verdict: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
                    &[&SCOPE, &key, &attempt, &charge];
                person.query(ACCEPT, verdict).await?;
                self.accepted += 1;
            }
            "parked, and they did it" | "parked, and they did not" => {
                person.query(REFUSE, &[&SCOPE, &key, &attempt]).await?;
                self.refused += 1;
            }
            "they have too much" => {
                let refund_key: &str = row.get("refund_key");
                let body =
                    json!({ "reference": key, "amount_cents": 0, "customer": "" }).to_string();
                // An answer that is lost is no reason to send it again: the next ledger tells.
                if let Err(error) = bank.post("/reversals", Some(refund_key), body).await {
                    eprintln!("  a refund was not answered: {error:#}");
                }
                self.refunds_sent += 1;
            }
            // Nothing that we could end; the questions to the tables tell of it.
            other => eprintln!("  {other}: {key}"),
        }
        Ok(())
    }
}

/// The bank's statement of today, as it stands: charges, and what went back.
async fn load_ledger(person: &Client, lines: &[Line]) -> Result<()> {
    person
        .batch_execute("delete from reconcile_ledger")
        .await
        .context("the recipe's table")?;
    let moved = lines
        .iter()
        .filter(|line| matches!(line.kind, Kind::Made | Kind::Reversed));
    let rows = moved.map(|line| {
        [
            Some(line.charge_id.clone()),
            line.idempotency_key.clone(),
            Some(line.request.reference.clone()),
            Some(line.request.amount_cents.to_string()),
            Some(line.at_micros.to_string()),
        ]
    });
    person
        .batch_execute(
            "create temp table if not exists statement (line text, idempotency_key text, reference text, \
             amount_cents bigint, at_micros bigint); truncate statement",
        )
        .await?;
    copy(person, "statement", rows).await?;
    person
        .batch_execute(
            "insert into reconcile_ledger select line, idempotency_key, reference, amount_cents, \
             to_timestamp(at_micros / 1000000.0) from statement",
        )
        .await?;
    Ok(())
}

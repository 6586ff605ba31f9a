//! Settling what nobody knows from the bank's own ledger, by the recipe of `docs/how-to/reconcile.md`.
//!
//! Invariant: the ledger is read before anything is decided, and again after what was sent. A refund is an
//! event of the outbox; one whose delivery has died is sent again only when the next ledger does not have it.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio_postgres::{Client, Row};

use super::bank_process::Bank;
use super::plan::Order;
use super::refunds::{self, Carrier};
use crate::database::{JANITOR_ROLE, copy};
use crate::ground::Ground;
use crate::outside::Outside;
use crate::outside::line::{Kind, Line};
use crate::settings::SCOPE;

const RECIPE: &str = include_str!("../../../sql/examples/reconcile.sql");
const RIGHTS: &str = "grant select, insert on orders to janitor;
    grant select, insert, delete on reconcile_ledger to janitor;
    create table dead_refund (finding text, event_id bigint, primary key (event_id, finding));
    grant select, insert on dead_refund to janitor";
const DIFFERENCES: &str =
    "select finding, key, attempt, refund_key, moved_cents - wanted_cents, lines[1]
    from reconcile($1, now() - interval '1 day', now() + interval '1 hour')";
const COUNT: &str = "create table differences as
    select finding, count(*) from reconcile('orders.create', now() - interval '1 day', now() + interval '1 hour')
    group by finding";
const ACCEPT: &str = "select reconcile_accept($1, $2, $3, $4)";
const REFUSE: &str = "select reconcile_refuse($1, $2, $3)";
/// Once, however often it is listed: an event of this dedupe_key is made only the first time.
const SEND_BACK: &str = "select emitted from once.outbox_emit('refunds',
    json_build_object('reference', $1::text, 'order', $2::text), dedupe_key => $1)";
/// Deliveries that died, beside the ledger; what is found is kept for the proof.
const DEAD: &str =
    "with found as (select finding, event_id from reconcile_dead('refunds', 'default')),
    noted as (insert into dead_refund table found on conflict do nothing)
    select event_id from found where finding = 'dead, and they do not have it'";
const REDRIVE: &str =
    "select redriven from once.outbox_redrive('refunds', 'default', event_ids => $1)";

/// How often the ledger is read, at most: refunds whose answer is lost are seen in the next one.
const LEDGERS: usize = 8;
/// Until the next ledger comes.
const A_DAY: Duration = Duration::from_millis(200);

/// What was settled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settled {
    /// Parked keys that became orders, since the bank had charged.
    pub accepted: usize,
    /// Parked keys that did not.
    pub refused: usize,
    /// Of these, charges that go back.
    pub sent_back: usize,
    pub refunds_sent: usize,
    pub ledgers_read: usize,
}

/// Reads ledger after ledger and settles what differs, until nothing does. A parked order that the bank has
/// charged is accepted if its client is still there; if not, the money goes back. The first such order is refunded
/// in any case, so that there is a refund.
pub async fn settle_from_ledger(
    ground: &Ground<'_>,
    database: &str,
    owner: &Client,
    (outside, bank): (&Outside, &Bank),
    orders: &[Order],
) -> Result<Settled> {
    owner.batch_execute(RECIPE).await?;
    owner.batch_execute(RIGHTS).await?;
    owner.batch_execute(refunds::TOPIC).await?;
    // A person with the right to operate, and with rights on the tables; nothing more.
    let person = ground.cluster.connect_as(JANITOR_ROLE, database).await?;
    let mut carrier = Carrier::new(bank);
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
        let lost = person.query(DEAD, &[]).await?;
        let differences = person.query(DIFFERENCES, &[&SCOPE]).await?;
        if differences.is_empty() {
            break;
        }
        for row in &differences {
            settled.end(&person, row, &left).await?;
        }
        if !lost.is_empty() {
            let lost: Vec<i64> = lost.iter().map(|row| row.get(0)).collect();
            person.query(REDRIVE, &[&lost]).await?;
        }
        carrier.carry(&person).await?;
        tokio::time::sleep(A_DAY).await;
    }
    settled.refunds_sent = carrier.sent;
    Ok(settled)
}

impl Settled {
    /// Does what is to be done about one difference.
    async fn end(&mut self, person: &Client, row: &Row, left: &HashSet<&str>) -> Result<()> {
        let finding: &str = row.get("finding");
        let key: &str = row.get("key");
        let attempt: Option<i32> = row.get("attempt");
        match finding {
            "parked, and they did it" if self.sent_back > 0 && !left.contains(key) => {
                let charge: &str = row.get("lines");
                let verdict: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
                    &[&SCOPE, &key, &attempt, &charge];
                person.query(ACCEPT, verdict).await?;
                self.accepted += 1;
            }
            "parked, and they did it" | "parked, and they did not" => {
                self.sent_back += usize::from(finding == "parked, and they did it");
                person.query(REFUSE, &[&SCOPE, &key, &attempt]).await?;
                self.refused += 1;
            }
            "they have too much" => {
                let refund_key: &str = row.get("refund_key");
                person.query(SEND_BACK, &[&refund_key, &key]).await?;
            }
            // Nothing that we could end; the questions to the tables tell of it.
            other => eprintln!("  {other}: {key}"),
        }
        Ok(())
    }
}

/// The bank's statement of today, as it stands: charges, and what went back. A charge names our order, a
/// refund the message that asked for it.
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
            match line.kind {
                Kind::Reversed => line.idempotency_key.clone(),
                _ => Some(line.request.reference.clone()),
            },
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

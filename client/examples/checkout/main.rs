//! A checkout that charges a card and creates a shipment, and undoes them if it is aborted.
//!
//! `cargo run -p pg-once --example checkout -- --database-url postgres://localhost/mydb`, in a database
//! where `CREATE EXTENSION pg_once` was done. The program runs these cases: bought; the card is refused;
//! charged and the shipment refused; the bank answers errors, then nothing; killed with -9 between the charge
//! and its record, then finished; cancelled before the charge arrives. It fails unless each charge has
//! one shipment or one refund. `checkout.rs` and `undo.rs` are the parts to read.

mod checkout;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each story uses a part of it")]
mod common;
mod undo;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use axum::http::StatusCode;
use clap::Parser;
use pg_once::{Claim, ClaimOptions, Event, Outcome, Response, Scope, Topic, Undelivered};

use checkout::{CHARGES, Checkout, Order, SHIPMENTS, TABLES};
use common::foreign::{Foreign, Trouble};
use common::http::Http;
use common::worker::{Args, run_until_killed};
use common::{Story, expect, log, until};
use undo::{CANCELLATIONS, REFUNDS, Undoer};

/// The key of the order that the killed process was making.
const KILLED: &str = "ada/order 5";

struct Shop {
    story: Story,
    checkout: Checkout,
    receipts: Topic,
    undos: Topic,
    /// The bank and the carrier.
    foreign: Foreign,
}

#[tokio::main]
async fn main() -> Result<()> {
    log();
    let args = Args::parse();
    if let Some(name) = &args.work_for {
        let story = Story::open(&args.database_url, name)?;
        let checkout = checkout_of(&story, &args.foreign, true)?;
        let outcome = checkout.check_out(KILLED, &order("4242")).await?;
        bail!("not killed, but {outcome:?}");
    }
    let story = Story::begin(&args.database_url, "checkout", TABLES).await?;
    let foreign = Foreign::start_with(|path, body| match path {
        CHARGES => (body["card"] == "stolen").then_some(StatusCode::PAYMENT_REQUIRED),
        SHIPMENTS => (body["address"] == "nowhere").then_some(StatusCode::UNPROCESSABLE_ENTITY),
        _ => None,
    })
    .await?;
    let shop = Shop {
        receipts: story.declare("receipts").await?,
        undos: story.declare("undos").await?,
        checkout: checkout_of(&story, &foreign.url, false)?,
        foreign,
        story,
    };
    shop.bought().await?;
    shop.card_refused().await?;
    shop.charged_and_not_shipped().await?;
    shop.bank_in_trouble().await?;
    shop.killed_and_finished().await?;
    shop.killed_and_given_up().await?;
    shop.receipts().await?;
    shop.balance().await?;
    shop.story.end(&[shop.receipts, shop.undos]).await
}

fn checkout_of(story: &Story, foreign: &str, dies: bool) -> Result<Checkout> {
    Ok(Checkout {
        pool: story.pool.clone(),
        http: Http::new(foreign)?,
        scope: Scope::new(&story.name),
        receipts: story.topic("receipts"),
        undos: story.topic("undos"),
        dies,
    })
}

fn order(card: &str) -> Order {
    Order {
        card: card.to_owned(),
        address: "High Street 1".to_owned(),
        amount_cents: 1200,
    }
}

impl Shop {
    /// Counts the charges, shipments, refunds and cancellations.
    fn made(&self) -> [usize; 4] {
        [CHARGES, SHIPMENTS, REFUNDS, CANCELLATIONS].map(|path| self.foreign.effects(path).len())
    }

    /// Delivers compensations until `steps` steps are undone.
    async fn undo_until(&self, steps: usize) -> Result<()> {
        let undoer = Undoer {
            pool: self.story.pool.clone(),
            http: Http::new(&self.foreign.url)?,
        };
        let enough = format!("SELECT count(*) = {steps} FROM undone");
        let enough = self.story.until(&enough);
        self.story.work(&self.undos, undoer, enough).await?;
        Ok(())
    }

    /// Three requests with one key make one order.
    async fn bought(&self) -> Result<()> {
        let order = order("4242");
        let first = self.checkout.check_out("ada/order 1", &order).await?;
        ensure!(matches!(first, Outcome::Ran(_)), "{first:?}");
        for _ in 0..2 {
            let again = self.checkout.check_out("ada/order 1", &order).await?;
            ensure!(matches!(again, Outcome::Replayed(_)), "{again:?}");
        }
        expect("bought", self.made(), [1, 1, 0, 0])
    }

    /// The charge's compensation, registered before the call to the bank, finds no charge to undo.
    async fn card_refused(&self) -> Result<()> {
        let outcome = self
            .checkout
            .check_out("ada/order 2", &order("stolen"))
            .await?;
        ensure!(matches!(outcome, Outcome::Aborted(_)), "{outcome:?}");
        self.undo_until(1).await?;
        expect("a card that is refused", self.made(), [1, 1, 0, 0])
    }

    /// The card is charged and the shipment refused: one refund is made, although its first answer is lost.
    async fn charged_and_not_shipped(&self) -> Result<()> {
        let nowhere = Order {
            address: "nowhere".to_owned(),
            ..order("4242")
        };
        let outcome = self.checkout.check_out("ada/order 3", &nowhere).await?;
        ensure!(matches!(outcome, Outcome::Aborted(_)), "{outcome:?}");
        expect("charged and not shipped", self.made(), [2, 1, 0, 0])?;
        self.foreign.trouble(REFUNDS, &[Trouble::NoAnswer]);
        self.undo_until(3).await?;
        expect("and refunded", self.made(), [2, 1, 1, 0])?;
        let order = "SELECT string_agg(step, ', ' ORDER BY n) = 'ship, charge' FROM undone WHERE key = 'ada/order 3'";
        self.story.until(order).await?;
        let again = self.checkout.check_out("ada/order 3", &nowhere).await?;
        ensure!(matches!(again, Outcome::Replayed(_)), "{again:?}");
        Ok(())
    }

    /// The bank answers 503, then 429, which ends the first attempt. In the second attempt the bank charges, sends
    /// no answer, and is called again with the same key.
    async fn bank_in_trouble(&self) -> Result<()> {
        let trouble = [
            Trouble::Refuse(503),
            Trouble::Refuse(429),
            Trouble::NoAnswer,
        ];
        self.foreign.trouble(CHARGES, &trouble);
        let (key, order) = ("ada/order 4", order("4242"));
        let outcome = self.checkout.check_out(key, &order).await?;
        ensure!(matches!(outcome, Outcome::Released { .. }), "{outcome:?}");
        let outcome = self.checkout.check_out(key, &order).await?;
        ensure!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
        expect("a bank in trouble", self.made(), [3, 2, 1, 0])
    }

    /// The process is killed between the charge and its record: the next attempt calls with the same key and gets the
    /// same charge.
    async fn killed_and_finished(&self) -> Result<()> {
        run_until_killed(&self.story, &self.foreign.url).await?;
        expect("killed", self.made(), [4, 2, 1, 0])?;
        let outcome = self.until_it_is_ours(KILLED).await?;
        ensure!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
        expect("killed, then finished", self.made(), [4, 3, 1, 0])
    }

    async fn until_it_is_ours(&self, key: &str) -> Result<Outcome> {
        loop {
            match self.checkout.check_out(key, &order("4242")).await? {
                Outcome::InProgress { retry_after } => tokio::time::sleep(retry_after).await,
                outcome => return Ok(outcome),
            }
        }
    }

    /// The first request to the bank gets no answer, the second gets 503, and the customer cancels. After that the
    /// first request arrives at the bank and makes a charge. This charge is refunded.
    async fn killed_and_given_up(&self) -> Result<()> {
        let late = Trouble::Late(Duration::from_secs(4));
        self.foreign.trouble(CHARGES, &[late, Trouble::Refuse(503)]);
        let order = order("4242");
        let outcome = self.checkout.check_out("ada/order 6", &order).await?;
        ensure!(matches!(outcome, Outcome::Released { .. }), "{outcome:?}");
        expect("not charged yet", self.made(), [4, 3, 1, 0])?;

        let key = self.checkout.scope.key("ada/order 6");
        let options = ClaimOptions::new()
            .request(pg_once::Json::of(&order)?)
            .fresh_holder();
        let Claim::Resumed(lease) = key.claim(&self.story.pool, &options).await? else {
            bail!("the released key was not resumed");
        };
        let gone = Response::new(409).with_body("cancelled by the customer")?;
        lease.abort(&self.story.pool, &gone).await?;
        self.undo_until(4).await?;
        expect("given up, and refunded", self.made(), [5, 3, 2, 0])
    }

    /// Receipts are emitted by completed keys only.
    async fn receipts(&self) -> Result<()> {
        let sent = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sent);
        let receipt = move |event: Event| {
            let counted = Arc::clone(&counted);
            async move {
                // ... the mail, as in the signup's example ...
                tracing::info!(payload = %event.payload, "receipt");
                counted.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Undelivered>(())
            }
        };
        let enough = until(|| sent.load(Ordering::SeqCst) == 3);
        self.story.work(&self.receipts, receipt, enough).await?;
        expect("receipts", sent.load(Ordering::SeqCst), 3)
    }

    /// Each charge was shipped or refunded.
    async fn balance(&self) -> Result<()> {
        let [charges, shipments, refunds, _] = self.made();
        let orders = self.story.count("SELECT count(*) FROM orders").await?;
        expect("orders", orders, 3)?;
        expect("charges", charges, shipments + refunds)
    }
}

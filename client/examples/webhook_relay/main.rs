//! A relay that posts events as HTTP webhooks; a receiver that dedupes by `Idempotency-Key` handles each
//! once. See `docs/how-to/webhooks.md`.
//!
//! `cargo run -p pg-once --example webhook_relay -- --database-url postgres://localhost/mydb`, in a
//! database where `CREATE EXTENSION pg_once` was done. The program runs these cases: delivered in order;
//! rolled back; an answer lost; a receiver that answers 503, 429 with a Retry-After, or 410; a relay killed with
//! -9. It fails unless the receiver's ledger is as expected. `relay.rs` is the part to read.

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each story uses a part of it")]
mod common;
mod relay;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use clap::Parser;
use pg_once::{EmitOptions, Json, Topic};
use serde_json::json;

use common::foreign::{Foreign, Trouble};
use common::http::Http;
use common::worker::{Args, run_until_killed};
use common::{Story, expect, log};
use relay::{Relay, TABLES};

const PATH: &str = "/hooks";

struct Shop {
    story: Story,
    topic: Topic,
    receiver: Foreign,
}

#[tokio::main]
async fn main() -> Result<()> {
    log();
    let args = Args::parse();
    if let Some(name) = &args.work_for {
        return work_until_killed(Story::open(&args.database_url, name)?, &args.foreign).await;
    }
    let story = Story::begin(&args.database_url, "webhook_relay", TABLES).await?;
    let shop = Shop {
        topic: story.declare("orders").await?,
        receiver: Foreign::start().await?,
        story,
    };
    shop.delivered_in_order().await?;
    shop.rolled_back().await?;
    shop.answer_lost().await?;
    shop.receiver_away().await?;
    shop.receiver_busy().await?;
    shop.receiver_gone().await?;
    shop.relay_killed().await?;
    shop.story.end(&[shop.topic]).await
}

impl Shop {
    /// Emits an order's event, in the transaction in which a shop would write the order.
    async fn order(&self, customer: &str, n: usize, commit: bool) -> Result<()> {
        let mut client = self.story.pool.get().await?;
        let transaction = client.transaction().await?;
        // ... INSERT INTO orders ...
        let payload = Json::of(&json!({"customer": customer, "order": n}))?;
        // A customer's orders are to arrive in order; different customers need not wait for each other.
        let options = EmitOptions::new().order_key(customer);
        self.topic.emit(&transaction, &payload, &options).await?;
        match commit {
            true => transaction.commit().await?,
            false => transaction.rollback().await?,
        }
        Ok(())
    }

    fn relay(&self) -> Result<Relay> {
        Ok(Relay {
            pool: self.story.pool.clone(),
            http: Http::new(&self.receiver.url)?,
            path: PATH,
            dies: false,
        })
    }

    /// Relays events until there is this number of receipts.
    async fn until_received(&self, receipts: usize) -> Result<()> {
        let enough = format!("SELECT count(*) = {receipts} FROM receipt");
        let enough = self.story.until(&enough);
        let delivered = self.story.work(&self.topic, self.relay()?, enough).await?;
        ensure!(delivered.lost == 0, "{delivered:?}");
        Ok(())
    }

    /// The orders of a customer, in the sequence in which the receiver got them.
    fn received(&self, customer: &str) -> Vec<u64> {
        let effects = self.receiver.effects(PATH).into_iter();
        effects
            .filter(|effect| effect.body["customer"] == customer)
            .filter_map(|effect| effect.body["order"].as_u64())
            .collect()
    }

    async fn delivered_in_order(&self) -> Result<()> {
        for n in 0..5 {
            for customer in ["ada", "bob", "cyd"] {
                self.order(customer, n, true).await?;
            }
        }
        self.until_received(15).await?;
        for customer in ["ada", "bob", "cyd"] {
            expect(customer, self.received(customer), (0..5).collect())?;
        }
        Ok(())
    }

    /// A rolled back order sends no webhook.
    async fn rolled_back(&self) -> Result<()> {
        self.order("dan", 0, false).await?;
        self.order("dan", 1, true).await?;
        self.until_received(16).await?;
        expect("rolled back, then committed", self.received("dan"), vec![1])
    }

    /// The receiver has the event, but its answer is lost: the event is sent again, and the receiver dedupes it.
    async fn answer_lost(&self) -> Result<()> {
        let before = self.receiver.requests();
        self.receiver.trouble(PATH, &[Trouble::NoAnswer]);
        self.order("eve", 0, true).await?;
        self.until_received(17).await?;
        let sent = self.receiver.requests() - before;
        ensure!(sent >= 2, "sent {sent} times");
        println!("an answer lost: sent {sent} times");
        expect("an answer lost: received", self.received("eve"), vec![0])
    }

    /// The customer's later events wait for the refused event, so all arrive in order.
    async fn receiver_away(&self) -> Result<()> {
        let away = [Trouble::Refuse(503), Trouble::Refuse(503)];
        self.receiver.trouble(PATH, &away);
        for n in 0..3 {
            self.order("fay", n, true).await?;
        }
        self.until_received(20).await?;
        let in_order = (0..3).collect();
        expect("the receiver was away", self.received("fay"), in_order)
    }

    /// The receiver's Retry-After is an HTTP date. The subscriber's own backoff would end much sooner.
    async fn receiver_busy(&self) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let due = UNIX_EPOCH + Duration::from_secs(now + 3);
        self.receiver.trouble(PATH, &[Trouble::NotBefore(due)]);
        self.order("ida", 0, true).await?;
        self.until_received(21).await?;
        let after = SystemTime::now().duration_since(due)?;
        println!("the receiver was busy: received {after:?} after it was due");
        expect("the receiver was busy", self.received("ida"), vec![0])
    }

    /// An event that is answered 410 is dead at once. Here the 410 was a mistake, so the event is redriven.
    async fn receiver_gone(&self) -> Result<()> {
        self.receiver.trouble(PATH, &[Trouble::Refuse(410)]);
        self.order("gus", 0, true).await?;
        let subscriber = self.topic.default_subscriber();
        let gone = self.story.until_dead(&self.topic, 1);
        self.story.work(&self.topic, self.relay()?, gone).await?;
        let dead = subscriber.dead(&self.story.pool, 10).await?;
        let why: Vec<_> = dead.iter().map(|letter| letter.kind.as_str()).collect();
        expect("the receiver is gone", why, vec!["never"])?;

        let ids: Vec<i64> = dead.iter().map(|letter| letter.event_id).collect();
        let redriven = subscriber.redrive(&self.story.pool, 10, Some(&ids)).await?;
        expect("redriven", redriven, 1)?;
        self.until_received(22).await?;
        expect("and received", self.received("gus"), vec![0])
    }

    /// A relay is killed between the receiver's answer and the receipt's record: the next relay sends the event again.
    async fn relay_killed(&self) -> Result<()> {
        self.order("hal", 0, true).await?;
        run_until_killed(&self.story, &self.receiver.url).await?;
        expect("killed: received", self.received("hal"), vec![0])?;
        let receipts = self.story.count("SELECT count(*) FROM receipt").await?;
        expect("killed: receipts, before and after", receipts, 22)?;
        self.until_received(23).await?;
        expect("killed, then sent again", self.received("hal"), vec![0])
    }
}

async fn work_until_killed(story: Story, receiver: &str) -> Result<()> {
    let relay = Relay {
        pool: story.pool.clone(),
        http: Http::new(receiver)?,
        path: PATH,
        dies: true,
    };
    story.work_until_killed("orders", relay).await
}

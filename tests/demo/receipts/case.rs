//! One run of the shop: a receiver, the load, the trouble, and the proof.
//!
//! Invariant: every run has its own database, receiver and processes, and the same trouble by the same
//! seed; what differs is the service.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::{database, proof, verdict};
use crate::client::Clients;
use crate::crashes::Crashes;
use crate::database::{SERVICE_ROLE, create, effects_program};
use crate::ground::Ground;
use crate::journal::Journal;
use crate::orders::{load, plan};
use crate::outside::{Outside, Trouble};
use crate::progress::Progress;
use crate::proof::ask;
use crate::settle::settle;
use crate::stage::Cast;
use crate::story::{self, Card, Damage, Run};

/// So few that each has orders at the same time.
const CUSTOMERS: u32 = 25;
const SHOPS: usize = 2;
/// Longer than anything takes that is still to happen: a lease, some waits, a call.
const QUIET_FOR: Duration = Duration::from_secs(6);

/// Where the receiver dies: before and after it has a receipt.
const RECEIVER: &[&str] = &["before_ledger", "after_ledger"];
const SHOP: &[&str] = &["before_order_commit", "after_order_commit"];
const RELAY: &[&str] = &["before_send", "after_send", "between_calls"];
/// The hand-written shop sends by itself.
const NAIVE_SHOP: &[&str] = &["after_order_commit", "after_send"];

const TROUBLE: Trouble = Trouble {
    slow: 0.03,
    slow_ms: 900,
    cut: 0.06,
};

/// What is run.
pub struct Case {
    pub card: Card,
    /// How the services are told.
    pub how: &'static str,
    pub window: Duration,
    /// How often a process dies at each of its points.
    pub rounds: usize,
}

impl story::Case for Case {
    fn card(&self) -> Card {
        self.card
    }

    async fn run(self, ground: &Ground<'_>) -> Result<Run> {
        let (card, seed) = (self.card, ground.settings.seed);
        let journal = Arc::new(Journal::new());
        let owner = create(ground.cluster, card.name, card.pg_once).await?;
        database::prepare(&owner, card.pg_once).await?;
        let outside = Outside::new(ground, card.name, true, &TROUBLE);
        let orders = plan::plan(card.asked, self.window, CUSTOMERS, seed);

        let crashes =
            |points, lanes| Arc::new(Crashes::new(points, self.rounds, lanes, card.asked));
        let at_shop = if card.pg_once { SHOP } else { NAIVE_SHOP };
        let relays = match card.pg_once {
            true => usize::from(ground.settings.services),
            false => 0,
        };
        let (of_receiver, of_shop) = (crashes(RECEIVER, 1), crashes(at_shop, SHOPS));
        let of_relay = crashes(RELAY, relays);
        let mut cast = Cast::new(ground, &journal);
        let receiver = cast
            .add("receiver", 1, &outside.program, &of_receiver)
            .await?;
        let program =
            |role| effects_program(ground, card.name, SERVICE_ROLE, role, self.how, &receiver);
        let shops = cast.add("shop", SHOPS, &program("shop"), &of_shop).await?;
        cast.add("relay", relays, &program("relay"), &of_relay)
            .await?;
        let stage = cast.start().await?;
        let clients = Clients::new(&shops, load::WAITS, Arc::clone(&journal));

        let began = journal.now_ms();
        let progress = Progress::new(card.title, (card.asked, "orders"), Arc::clone(&journal));
        let mortal = [&*of_receiver, &*of_shop, &*of_relay];
        let load = load::run(&clients, &orders, &mortal, &progress);
        stage
            .under_fire(ground, card.name, 700..2200, (&journal, &progress), load)
            .await?;
        settle(QUIET_FOR, async || {
            let made: i64 = owner.query_one(database::COUNT, &[]).await?.get(0);
            let lines = outside.lines()?;
            let over = card.pg_once && database::arrived(&lines) == usize::try_from(made)?;
            Ok((over, (made, lines.len())))
        })
        .await?;
        progress.finish();
        let seconds = (journal.now_ms() - began) / 1000.0;
        let lanes = stage.stop().await?;

        let lines = outside.lines()?;
        database::load_evidence(&owner, &lines, &journal.attempts()).await?;
        let mut points = [RECEIVER, at_shop].concat();
        if card.pg_once {
            points.extend(RELAY);
        }
        let mut run = Run::of(card, points, lanes, &journal);
        run.seconds = seconds;
        run.proven = ask(&owner, proof::questions(card.pg_once)).await?;
        run.went_through = verdict::went_through(&run, &lines);
        run.damage = Damage::of(&owner, "receipts twice", proof::DAMAGE, &journal).await?;
        run.faults = verdict::faults(&run, &lines);
        Ok(run)
    }
}

//! One run of the growth: a bank, the load, the servers that are added meanwhile, and the proof.
//!
//! Invariant: both runs have the same load and the same lossy network; services are not killed, so that what goes wrong
//! comes of the growth.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio_postgres::Client;

use super::by_hand::ByHand;
use super::by_shards::ByShards;
use super::{database, load, proof, verdict};
use crate::client::Clients;
use crate::crashes::Crashes;
use crate::database::create;
use crate::ground::Ground;
use crate::journal::{Journal, What};
use crate::orders::bank_process::Bank;
use crate::orders::database::{ORDERS, load_evidence};
use crate::outside::{Outside, Trouble};
use crate::progress::Progress;
use crate::proof::ask;
use crate::stage::Cast;
use crate::story::{self, Card, Damage, Run};
use crate::supervisor::Program;

/// It forgets keys, so nobody but the service prevents a second charge.
const BANK: Trouble = Trouble {
    slow: 0.0,
    slow_ms: 0,
    cut: 0.0,
};

/// The services' with the bank: a busy machine must not make a service by hand charge twice.
pub const PATIENCE: &str = "--bank-timeout-ms=10000";

/// What is run.
pub struct Case {
    pub card: Card,
    pub window: Duration,
}

/// Servers that become more.
pub trait Servers: Sized {
    /// How many shards have services of their own; 1: each service finds the server itself.
    const SHARDS: usize;
    /// What is drawn below the services: the servers, then the changes.
    const LANES: &[&'static str];

    /// The services' processes with their names, as many for each shard.
    fn programs(&self, ground: &Ground<'_>, bank: &Bank) -> Result<Vec<(String, Program)>>;

    /// The changes, within the time; `lanes` tells the journal about them.
    async fn grow(self, lanes: Lanes, window: Duration) -> Result<Self>;

    /// Copies what every server has into the database of the proof.
    async fn collect(&self, owner: &Client, keys: &[String]) -> Result<()>;
}

/// The lanes of the servers and the changes.
pub struct Lanes {
    pub journal: Arc<Journal>,
    first: usize,
}

impl Lanes {
    pub fn up(&self, lane: usize) {
        let lane = self.first + lane;
        self.journal.event(What::Up { lane });
    }

    pub fn killed(&self, lane: usize) {
        let lane = self.first + lane;
        self.journal.event(What::Killed { lane });
    }

    pub fn ended(&self, lane: usize) {
        let lane = self.first + lane;
        self.journal.event(What::Ended { lane });
    }
}

impl story::Case for Case {
    fn card(&self) -> Card {
        self.card
    }

    async fn run(self, ground: &Ground<'_>) -> Result<Run> {
        match self.card.pg_once {
            false => {
                let servers = ByHand::build(ground, self.card.name).await?;
                self.run_on(servers, ground).await
            }
            true => {
                let servers = ByShards::build().await?;
                self.run_on(servers, ground).await
            }
        }
    }
}

impl Case {
    async fn run_on<S: Servers>(self, servers: S, ground: &Ground<'_>) -> Result<Run> {
        let card = self.card;
        let journal = Arc::new(Journal::new());
        let owner = create(ground.cluster, card.name, card.pg_once).await?;
        owner.batch_execute(ORDERS).await?;
        owner.batch_execute(database::FOUND).await?;
        let outside = Outside::new(ground, card.name, false, &BANK);
        let bank = Bank::start(&outside.program).await?;
        let orders = load::orders(card.asked, self.window, ground.settings.seed);
        let nobody_dies = Arc::new(Crashes::none());
        let mut cast = Cast::new(ground, &journal);
        let mut fronts = Vec::new();
        for (name, program) in servers.programs(ground, &bank)? {
            fronts.extend(cast.add(&name, 1, &program, &nobody_dies).await?);
        }
        let stage = cast.start().await?;
        let ways = fronts.chunks(fronts.len() / S::SHARDS);
        let ways = ways.map(|fronts| Clients::new(fronts, load::WAITS, Arc::clone(&journal)));
        let ways: Vec<Clients> = ways.collect();
        let shards = match S::SHARDS {
            1 => HashMap::new(),
            _ => database::shards(&owner, S::SHARDS, &orders).await?,
        };

        let began = journal.now_ms();
        let progress = Progress::new(card.title, (card.asked, "orders"), Arc::clone(&journal));
        let lanes = Lanes {
            journal: Arc::clone(&journal),
            first: stage.lanes.len(),
        };
        let load = async {
            tokio::select! {
                () = load::run(&ways, &shards, &orders, &progress) => {}
                () = progress.tell() => {}
            }
            journal.event(What::LoadOver);
        };
        let (servers, ()) = tokio::join!(servers.grow(lanes, self.window), load);
        let servers = servers?;
        progress.finish();
        let seconds = (journal.now_ms() - began) / 1000.0;
        let mut lanes = stage.stop().await?;
        lanes.extend(S::LANES.iter().map(|name| (*name).to_owned()));
        bank.stop().await?;

        let keys: Vec<String> = orders.iter().map(|order| order.key.clone()).collect();
        servers.collect(&owner, &keys).await?;
        owner.batch_execute(database::ORDERS_OF_FOUND).await?;
        load_evidence(&owner, &outside.lines()?, &orders, &journal.attempts()).await?;
        let mut run = Run::of(card, vec![], lanes, &journal);
        run.seconds = seconds;
        run.proven = ask(&owner, proof::questions(card.pg_once)).await?;
        run.went_through = verdict::went_through(&run);
        run.damage = Damage::of(&owner, "double charges", proof::DAMAGE, &journal).await?;
        run.faults = verdict::faults(&run);
        Ok(run)
    }
}

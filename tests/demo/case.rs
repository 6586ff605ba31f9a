//! One run: a service, a bank, the load, the trouble, and the proof.
//!
//! Invariant: every run has its own database, bank and processes, and the same trouble by the
//! same seed; what differs is the service and whether the bank remembers keys.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pg_once_tests::Cluster;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::bank_process::{Bank, BankTrouble, Charge};
use crate::client::Clients;
use crate::crashes::Crashes;
use crate::database::{self, SERVICE_ROLE};
use crate::journal::{Attempt, Event, Journal, What};
use crate::load;
use crate::plan;
use crate::progress::Progress;
use crate::proof::{self, Proven};
use crate::proxy::Proxy;
use crate::settings::{Paths, SCOPE, Settings};
use crate::supervisor::{Program, Supervisor};

/// The recovery points of the service that uses pg_once: every place between two effects.
pub const KEYED_POINTS: &[&str] = &[
    "after_claim",
    "after_step_begin",
    "after_charge",
    "after_step_done",
    "after_advance",
    "before_complete_commit",
    "after_complete",
];
/// The places between the effects of the hand-written one.
pub const NAIVE_POINTS: &[&str] = &["after_lookup", "after_charge", "after_save"];

/// What is run.
pub struct Case {
    /// The database's name, and the name in results.json.
    pub name: &'static str,
    pub title: &'static str,
    pub keyed: bool,
    pub bank_dedupes: bool,
    pub orders: usize,
    pub window: Duration,
    /// How often a process dies at each of its points.
    pub rounds: usize,
}

impl Case {
    pub fn points(&self) -> &'static [&'static str] {
        if self.keyed {
            KEYED_POINTS
        } else {
            NAIVE_POINTS
        }
    }
}

/// What came of it.
pub struct Outcome {
    pub case: Case,
    pub proven: Vec<Proven>,
    pub attempts: Vec<Attempt>,
    pub events: Vec<Event>,
    pub bank: BankTrouble,
    /// What a request without a key was told.
    pub status_without_key: Option<u16>,
    /// When money was taken for an order that was paid for already, in milliseconds.
    pub double_charges: Vec<f64>,
    pub seconds: f64,
}

impl Case {
    pub async fn run(
        self,
        settings: &Settings,
        paths: &Paths,
        cluster: &Cluster,
        work: &Path,
    ) -> Result<Outcome> {
        let journal = Arc::new(Journal::new());
        let owner = database::create(cluster, self.name, self.keyed).await?;
        let bank = Bank::start(
            &paths.bank,
            work,
            self.name,
            self.bank_dedupes,
            settings.seed,
        )
        .await?;
        let program = self.program(settings, paths, cluster, &bank, work);
        let orders = plan::plan(self.orders, self.window, settings.seed);
        let lanes = usize::from(settings.services);
        let crashes = Arc::new(Crashes::new(self.points(), self.rounds, lanes, self.orders));

        let mut proxies = Vec::new();
        for lane in 0..lanes {
            let seed = settings.seed.wrapping_add(lane as u64);
            proxies.push(Arc::new(
                Proxy::start(lane, seed, Arc::clone(&journal)).await?,
            ));
        }
        let supervisor = Supervisor::start(&program, &proxies, &crashes, &journal).await?;
        let fronts: Vec<_> = proxies.iter().map(|proxy| proxy.front).collect();
        let clients = Clients::new(&fronts, Arc::clone(&journal));

        let status_without_key = match orders.first() {
            Some(order) => clients.without_key(&order.body()).await,
            None => None,
        };

        let began = journal.now_ms();
        let progress = Progress::new(self.title, self.orders, Arc::clone(&journal));
        let rng = StdRng::seed_from_u64(settings.seed);
        tokio::select! {
            () = load::run(&clients, &orders, &crashes, &progress) => {}
            () = supervisor.kill_at_random(rng, 1200..3000) => {}
            () = progress.tell() => {}
            failed = terminate_backends(cluster, self.name, settings.seed, &journal) => {
                failed.context("terminating backends")?;
            }
        }
        journal.event(What::LoadOver);
        load::finish_abandoned(&clients, &orders).await;
        progress.finish();
        let seconds = (journal.now_ms() - began) / 1000.0;
        supervisor.stop().await?;

        let attempts = journal.attempts();
        let ledger = bank.ledger().await?;
        database::load_evidence(&owner, &ledger, &orders, &attempts).await?;
        let proven = self.prove(settings, &owner).await?;
        let double_charges = double_charges(&ledger)
            .map(|charge| journal.ms_of(charge.at_micros))
            .collect();
        let trouble = bank.trouble().await?;
        bank.stop().await?;
        let events = journal.events();
        Ok(Outcome {
            case: self,
            proven,
            attempts,
            events,
            bank: trouble,
            status_without_key,
            double_charges,
            seconds,
        })
    }

    fn program(
        &self,
        settings: &Settings,
        paths: &Paths,
        cluster: &Cluster,
        bank: &Bank,
        work: &Path,
    ) -> Program {
        let mut arguments = vec![
            "--database-url".to_owned(),
            cluster.url_as(SERVICE_ROLE, self.name),
            "--bank-url".to_owned(),
            bank.url(),
        ];
        if self.keyed {
            arguments.extend([
                "--scope".to_owned(),
                SCOPE.to_owned(),
                format!("--lease-ms={}", settings.lease_ms),
                format!("--bank-dedupes={}", self.bank_dedupes),
            ]);
        }
        let path = if self.keyed {
            &paths.pg_once
        } else {
            &paths.naive
        };
        Program {
            path: path.clone(),
            arguments,
            directory: work.to_owned(),
        }
    }

    async fn prove(
        &self,
        settings: &Settings,
        owner: &tokio_postgres::Client,
    ) -> Result<Vec<Proven>> {
        let mut questions = proof::questions(settings.stuck_after());
        if self.keyed {
            questions.extend(proof::key_questions());
        }
        questions.extend(proof::latencies());
        proof::ask(owner, questions).await
    }
}

/// The ledger is in the order of the charges: each but the first of a reference is one too many.
fn double_charges(ledger: &[Charge]) -> impl Iterator<Item = &Charge> {
    let mut paid = HashSet::new();
    ledger
        .iter()
        .filter(move |charge| !paid.insert(charge.reference.as_str()))
}

const TERMINATE_ONE: &str = "\
select pg_terminate_backend(pid) from pg_stat_activity
where datname = $1 and usename = $2 order by random() limit 1";

/// Terminates a random backend of the services, again and again.
async fn terminate_backends(
    cluster: &Cluster,
    database: &str,
    seed: u64,
    journal: &Journal,
) -> Result<()> {
    let admin = cluster.connect("postgres").await?;
    let mut rng = StdRng::seed_from_u64(seed);
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(400..1200))).await;
        if !admin
            .query(TERMINATE_ONE, &[&database, &SERVICE_ROLE])
            .await?
            .is_empty()
        {
            journal.event(What::BackendTerminated);
        }
    }
}

//! One run of the order service: a bank, the load, the trouble, and the proof.
//!
//! Invariant: every run has its own database, bank and processes, and the same trouble by the
//! same seed; what differs is the service and whether the bank remembers keys.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pg_once_tests::Cluster;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::bank_process::{Bank, BankTrouble, Charge};
use super::verdict::{self, Evidence};
use super::{database, load, plan, proof};
use crate::client::Clients;
use crate::crashes::Crashes;
use crate::database::{SERVICE_ROLE, create, terminate_backends};
use crate::journal::{Journal, Outcome, What};
use crate::progress::Progress;
use crate::proof::{Proven, ask, latencies};
use crate::proxy::Proxy;
use crate::settings::{Paths, SCOPE, Settings};
use crate::story::{Damage, Run};
use crate::supervisor::{Post, Program, Supervisor};
use crate::verdict::Trouble;

/// The recovery points of the service that uses pg_once: every place between two effects.
const KEYED_POINTS: &[&str] = &[
    "after_claim",
    "after_step_begin",
    "after_charge",
    "after_step_done",
    "after_advance",
    "before_complete_commit",
    "after_complete",
];
/// The places between the effects of the hand-written one.
const NAIVE_POINTS: &[&str] = &["after_lookup", "after_charge", "after_save"];

/// What is run.
pub struct Case {
    /// The database's name, and the name in results.json.
    pub name: &'static str,
    pub title: &'static str,
    pub explain: &'static str,
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

    pub async fn run(
        self,
        settings: &Settings,
        paths: &Paths,
        cluster: &Cluster,
        work: &Path,
    ) -> Result<Run> {
        let journal = Arc::new(Journal::new());
        let owner = create(cluster, self.name, self.keyed).await?;
        owner.batch_execute(database::ORDERS).await?;
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

        let (mut posts, mut fronts) = (Vec::new(), Vec::new());
        for lane in 0..lanes {
            let seed = settings.seed.wrapping_add(lane as u64);
            let proxy = Arc::new(Proxy::start(lane, seed, Arc::clone(&journal)).await?);
            fronts.push(proxy.front);
            posts.push(Post {
                program: program.clone(),
                proxy,
                crashes: Arc::clone(&crashes),
            });
        }
        let supervisor = Supervisor::start(posts, &journal).await?;
        let clients = Clients::new(&fronts, load::WAITS, Arc::clone(&journal));

        let status_without_key = match orders.first() {
            Some(order) => clients.without_key(load::PATH, &order.body()).await,
            None => None,
        };

        let began = journal.now_ms();
        let progress = Progress::new(self.title, (self.orders, "orders"), Arc::clone(&journal));
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

        let (attempts, events) = (journal.attempts(), journal.events());
        let ledger = bank.ledger().await?;
        database::load_evidence(&owner, &ledger, &orders, &attempts).await?;
        let proven = self.prove(settings, &owner).await?;
        let bank_trouble = bank.trouble().await?;
        bank.stop().await?;

        let trouble = Trouble::of(&events, &attempts, self.points());
        let lanes: Vec<String> = (1..=lanes).map(|lane| format!("service {lane}")).collect();
        let faults = verdict::faults(&Evidence {
            case: &self,
            lanes: &lanes,
            events: &events,
            proven: &proven,
            trouble: &trouble,
            bank: &bank_trouble,
            status_without_key,
        });
        Ok(Run {
            name: self.name,
            title: self.title,
            explain: self.explain,
            asked: self.orders,
            points: self.points().to_vec(),
            lanes,
            proven,
            attempts,
            events,
            went_through: went_through(&trouble, &bank_trouble),
            trouble,
            damage: Damage {
                name: "double charges",
                at_ms: double_charges(&ledger)
                    .map(|charge| journal.ms_of(charge.at_micros))
                    .collect(),
            },
            faults,
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
        questions.extend(latencies(["latency p50", "latency p99"], "'first', 'twin'"));
        ask(owner, questions).await
    }
}

/// The trouble that is worth a line.
fn went_through(trouble: &Trouble, bank: &BankTrouble) -> Vec<(&'static str, f64)> {
    let saw = |outcome| trouble.saw(outcome) as f64;
    vec![
        ("requests sent, retries included", trouble.attempts as f64),
        ("service processes killed (kill -9)", trouble.kills as f64),
        (
            "database backends terminated",
            trouble.backends_terminated as f64,
        ),
        ("answers lost by the network", trouble.answers_cut as f64),
        ("charges made but never answered", bank.cut as f64),
        ("charges answered too late", bank.slow as f64),
        ("clients that timed out", saw(Outcome::TimedOut)),
        ("told \"in progress\" (409)", saw(Outcome::InProgress)),
        ("told \"another request\" (422)", saw(Outcome::Mismatched)),
        ("stored answers replayed", saw(Outcome::Replayed)),
        ("charges the bank recognised", bank.repeated as f64),
        ("looks at the bank before charging", bank.looked_up as f64),
    ]
}

/// The ledger is in the order of the charges: each but the first of a reference is one too many.
fn double_charges(ledger: &[Charge]) -> impl Iterator<Item = &Charge> {
    let mut paid = HashSet::new();
    ledger
        .iter()
        .filter(move |charge| !paid.insert(charge.reference.as_str()))
}

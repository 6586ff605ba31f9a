//! One run of the order service: a bank, the load, the trouble, and the proof.
//!
//! Invariant: every run has its own database, bank and processes, and the same trouble by the
//! same seed; what differs is the service and whether the bank remembers keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

use super::bank_process::Bank;
use super::reconcile::{Settled, settle_from_ledger};
use super::{database, load, plan, proof, verdict};
use crate::client::Clients;
use crate::crashes::Crashes;
use crate::database::{JANITOR_ROLE, SERVICE_ROLE, create};
use crate::ground::Ground;
use crate::journal::{Journal, Outcome};
use crate::outside::line::{Fate, Kind, Line};
use crate::outside::{Outside, Trouble, count, fated};
use crate::progress::Progress;
use crate::proof::{Proven, ask, latencies};
use crate::settings::{SCOPE, Settings};
use crate::settle::settle;
use crate::stage::Cast;
use crate::story::{self, Card, Damage, Run};
use crate::supervisor::Program;

/// Where the service that uses pg_once dies: every place between two effects.
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

const BANK_TROUBLE: Trouble = Trouble {
    slow: 0.02,
    slow_ms: 1500,
    cut: 0.03,
};

/// Requests are kept, so that the completer has something to make an order from.
const KEEP_REQUESTS: &str = "select once.scope_set('orders.create', '{\"keep_request\": true}')";
/// How long nothing changes until a run counts as over: longer than a lease, and than the first waits of
/// a request that has failed.
const QUIET_FOR: Duration = Duration::from_secs(12);
/// How long an idle completer waits.
const COMPLETE_EVERY: &str = "--complete-every-ms=500";
/// The completer finds only keys that a sweep has marked as abandoned.
const SWEEP_EVERY: Duration = Duration::from_millis(300);

/// What the bank knows of the requests that it got.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TheirMemory {
    /// One charge of many requests with one Idempotency-Key.
    Dedupes,
    /// It forgets keys, and can be asked for the charges of an order.
    CanBeAsked,
    /// It forgets keys and answers no questions; its ledger comes afterwards.
    LedgerOnly,
}

/// What is run.
pub struct Case {
    pub card: Card,
    pub bank: TheirMemory,
    pub window: Duration,
    /// How often a process dies at each of its points.
    pub rounds: usize,
}

impl story::Case for Case {
    fn card(&self) -> Card {
        self.card
    }

    async fn run(self, ground: &Ground<'_>) -> Result<Run> {
        let settings = ground.settings;
        let journal = Arc::new(Journal::new());
        let card = self.card;
        let owner = create(ground.cluster, card.name, card.pg_once).await?;
        owner.batch_execute(database::ORDERS).await?;
        if card.pg_once {
            owner.batch_execute(KEEP_REQUESTS).await?;
        }
        let dedupes = self.bank == TheirMemory::Dedupes;
        let outside = Outside::new(ground, card.name, dedupes, &BANK_TROUBLE);
        let bank = Bank::start(&outside.program).await?;
        let orders = plan::plan(card.asked, self.window, plan::CUSTOMERS, settings.seed);
        let lanes = usize::from(settings.services);
        let crashes = Arc::new(Crashes::new(self.points(), self.rounds, lanes, card.asked));
        let mut cast = Cast::new(ground, &journal);
        let program = self.program(ground, &bank);
        let fronts = cast.add("service", lanes, &program, &crashes).await?;
        let stage = cast.start().await?;
        let janitor = ground.cluster.url_as(JANITOR_ROLE, card.name);
        let janitor = card.pg_once.then(|| tokio::spawn(keep_sweeping(janitor)));
        let clients = Clients::new(&fronts, load::WAITS, Arc::clone(&journal));

        let status_without_key = match orders.first() {
            Some(order) => clients.without_key(load::PATH, &order.body()).await,
            None => None,
        };

        let began = journal.now_ms();
        let progress = Progress::new(card.title, (card.asked, "orders"), Arc::clone(&journal));
        let mortal = [&*crashes];
        let load = load::run(&clients, &orders, &mortal, &progress);
        stage
            .under_fire(ground, card.name, 1200..3000, (&journal, &progress), load)
            .await?;
        if card.pg_once {
            // Nobody comes back for what is left: the completer brings it to its end.
            settle(QUIET_FOR, async || {
                let row = owner.query_one(database::PENDING, &[]).await?;
                let (pending, attempts): (i64, i64) = (row.get(0), row.get(1));
                Ok((pending == 0, (pending, attempts)))
            })
            .await?;
        }
        let mut settled = Settled::default();
        if self.bank == TheirMemory::LedgerOnly {
            let sources = (&outside, &bank);
            settled = settle_from_ledger(ground, card.name, &owner, sources, &orders).await?;
            load::come_back(&clients, &orders, &told_parked(&journal)).await;
        }
        janitor.iter().for_each(JoinHandle::abort);
        progress.finish();
        let seconds = (journal.now_ms() - began) / 1000.0;
        let lanes = stage.stop().await?;
        bank.stop().await?;

        let lines = outside.lines()?;
        database::load_evidence(&owner, &lines, &orders, &journal.attempts()).await?;
        let mut run = Run::of(card, self.points().to_vec(), lanes, &journal);
        run.seconds = seconds;
        run.proven = self.prove(settings, &owner).await?;
        run.went_through = went_through(&run, &lines, &settled);
        run.damage = Damage {
            name: "double charges",
            at_ms: double_charges(&lines)
                .map(|line| journal.ms_of(line.at_micros))
                .collect(),
        };
        run.faults = verdict::faults(&run, &lines, self.bank, status_without_key);
        Ok(run)
    }
}

impl Case {
    fn points(&self) -> &'static [&'static str] {
        match self.card.pg_once {
            true => KEYED_POINTS,
            false => NAIVE_POINTS,
        }
    }

    fn program(&self, ground: &Ground<'_>, bank: &Bank) -> Program {
        let mut arguments = vec![
            "--database-url".to_owned(),
            ground.cluster.url_as(SERVICE_ROLE, self.card.name),
            "--bank-url".to_owned(),
            bank.url(),
        ];
        if self.card.pg_once {
            arguments.extend([
                "--scope".to_owned(),
                SCOPE.to_owned(),
                format!("--lease-ms={}", ground.settings.lease_ms),
                format!("--bank-dedupes={}", self.bank == TheirMemory::Dedupes),
                format!(
                    "--bank-can-be-asked={}",
                    self.bank != TheirMemory::LedgerOnly
                ),
                COMPLETE_EVERY.to_owned(),
            ]);
        }
        let path = match self.card.pg_once {
            true => &ground.paths.pg_once,
            false => &ground.paths.naive,
        };
        Program {
            path: path.clone(),
            arguments,
            directory: ground.work.to_owned(),
        }
    }

    async fn prove(
        &self,
        settings: &Settings,
        owner: &tokio_postgres::Client,
    ) -> Result<Vec<Proven>> {
        let mut questions = proof::questions(settings.stuck_after());
        if self.card.pg_once {
            questions.extend(proof::key_questions());
        }
        if self.bank == TheirMemory::LedgerOnly {
            questions.extend(proof::ledger_questions());
        }
        let clients = "'first', 'twin', 'waiting', 'waiting_twin'";
        questions.extend(latencies(["latency p50", "latency p99"], clients));
        ask(owner, questions).await
    }
}

/// What a scheduler does: a sweep after each nap, by a session of its own, since its backends die, too.
async fn keep_sweeping(url: String) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
            tokio::spawn(connection);
            drop(client.batch_execute("select once.sweep()").await);
        }
    }
}

/// The keys whose clients were told that nobody knows how their request ended.
fn told_parked(journal: &Journal) -> HashSet<String> {
    let attempts = journal.attempts().into_iter();
    let parked = attempts.filter(|attempt| attempt.outcome == Outcome::Parked);
    parked
        .filter(|attempt| attempt.client != "once")
        .map(|attempt| attempt.key)
        .collect()
}

/// The trouble that is worth a line.
fn went_through(run: &Run, ledger: &[Line], settled: &Settled) -> Vec<(&'static str, f64)> {
    let trouble = &run.trouble;
    let saw = |outcome| trouble.saw(outcome) as f64;
    let lines = |kind| count(ledger, kind) as f64;
    vec![
        ("requests sent, retries included", trouble.attempts as f64),
        ("service processes killed (kill -9)", trouble.kills as f64),
        (
            "database backends terminated",
            trouble.backends_terminated as f64,
        ),
        ("answers lost by the network", trouble.answers_cut as f64),
        (
            "charges made but never answered",
            fated(ledger, Fate::Cut) as f64,
        ),
        (
            "charges answered too late",
            fated(ledger, Fate::Late) as f64,
        ),
        ("clients that timed out", saw(Outcome::TimedOut)),
        ("told \"in progress\" (409)", saw(Outcome::InProgress)),
        ("told \"another request\" (422)", saw(Outcome::Mismatched)),
        ("stored answers replayed", saw(Outcome::Replayed)),
        ("charges the bank recognised", lines(Kind::Again)),
        ("looks at the bank before charging", lines(Kind::Looked)),
        ("told \"nobody knows\" (409)", saw(Outcome::Parked)),
        (
            "verdicts given",
            (settled.accepted + settled.refused) as f64,
        ),
        ("refunds sent", settled.refunds_sent as f64),
        ("the bank's ledgers read", settled.ledgers_read as f64),
    ]
}

/// The ledger is in the order of the charges: each but the first of a reference is one too many.
fn double_charges(ledger: &[Line]) -> impl Iterator<Item = &Line> {
    let mut paid = HashSet::new();
    let made = ledger.iter().filter(|line| line.kind == Kind::Made);
    made.filter(move |line| !paid.insert(line.request.reference.as_str()))
}

//! One run of the batch service: the stage, the load, the trouble, and the proof.
//!
//! Invariant: both runs have a database, an artifact directory and processes of their own, and the
//! same trouble by the same seed; what differs is the service.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio_postgres::Client;

use super::plan::{self, Job};
use super::players::{self, Players};
use super::verdict::{self, Met};
use super::{database, load, proof};
use crate::database::create;
use crate::ground::Ground;
use crate::journal::Journal;
use crate::progress::Progress;
use crate::proof::{ask, latencies};
use crate::settle::settle;
use crate::story::{self, Card, Damage, Run};

/// A run is over when nothing has changed for this long: more than the lease of a worker that died
/// last, a sweep, and the teardown of what the sweep gives back.
const QUIET_FOR: Duration = Duration::from_secs(6);

/// Jobs that have not ended, and the last change of any.
const UNDER_WAY: &str = "\
select count(*), (select max(id) from status_log) from batch_job where status not in ('done', 'cancelled')";

/// What is run.
pub struct Case {
    pub card: Card,
    pub window: Duration,
    /// How often a process dies at each of its points.
    pub rounds: usize,
}

impl story::Case for Case {
    fn card(&self) -> Card {
        self.card
    }

    async fn run(self, ground: &Ground<'_>) -> Result<Run> {
        let card = self.card;
        let journal = Arc::new(Journal::new());
        let jobs = plan::plan(card.asked, self.window, ground.settings.seed);
        let jobs: Vec<Arc<Job>> = jobs.into_iter().map(Arc::new).collect();
        let owner = create(ground.cluster, card.name, card.pg_once).await?;
        database::prepare(&owner, card.pg_once, &jobs).await?;
        let store = ground.work.join(format!("{}.artifacts", card.name));
        std::fs::create_dir(&store)?;
        let Players { stage, sides } =
            Players::start(&self, ground, &store, &jobs, &journal).await?;

        let began = journal.now_ms();
        let progress = Progress::new(card.title, (card.asked, "jobs"), Arc::clone(&journal));
        let load = load::run(&sides, &jobs, &progress);
        stage
            .under_fire(ground, card.name, 700..2200, (&journal, &progress), load)
            .await?;
        settle(QUIET_FOR, async || {
            let row = owner.query_one(UNDER_WAY, &[]).await?;
            let (left, last): (i64, Option<i64>) = (row.get(0), row.get(1));
            Ok((left == 0, last.unwrap_or_default()))
        })
        .await?;
        progress.finish();
        let seconds = (journal.now_ms() - began) / 1000.0;
        let lanes = stage.stop().await?;

        let points = players::points(card.pg_once).concat();
        let mut run = Run::of(card, points, lanes, &journal);
        run.seconds = seconds;
        judge(&mut run, &owner, &jobs, &store, &journal).await?;
        Ok(run)
    }
}

async fn judge(
    run: &mut Run,
    owner: &Client,
    jobs: &[Arc<Job>],
    store: &Path,
    journal: &Journal,
) -> Result<()> {
    database::load_evidence(owner, jobs, store, &run.attempts).await?;
    let mut questions = proof::questions();
    if run.card.pg_once {
        questions.extend(proof::machine_questions());
    }
    questions.extend(latencies(
        ["a cancellation's end p50", "a cancellation's end p99"],
        "'user', 'user_again'",
    ));
    run.proven = ask(owner, questions).await?;
    let met = Met::ask(owner).await?;
    run.went_through = verdict::went_through(run, &met, jobs);
    run.damage = Damage::of(owner, "damage done", &proof::damage(), journal).await?;
    run.faults = verdict::faults(run, &met);
    Ok(())
}

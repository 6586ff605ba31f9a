//! One run of the batch service: the stage, the load, the trouble, and the proof.
//!
//! Invariant: both runs have a database, an artifact directory and processes of their own, and the
//! same trouble by the same seed; what differs is the service.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pg_once_tests::Cluster;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio_postgres::Client;

use super::plan::{self, Job};
use super::stage::{self, Place, Stage};
use super::verdict::{self, Evidence, Met};
use super::{database, load, proof};
use crate::database::{create, terminate_backends};
use crate::journal::{Journal, What};
use crate::progress::Progress;
use crate::proof::{ask, latencies};
use crate::settings::{Paths, Settings};
use crate::story::{Damage, Run};
use crate::verdict::Trouble;

/// A run is over when nothing has changed for so long: more than the lease of a worker that died
/// last, a sweep, and the teardown of what it gives back.
const QUIET_FOR: Duration = Duration::from_secs(6);

/// Jobs that have not ended, and the last change of any.
const UNDER_WAY: &str = "\
select count(*), (select max(id) from status_log) from batch_job where status not in ('done', 'cancelled')";

/// What is run.
pub struct Case {
    /// The database's name, and the name in results.json.
    pub name: &'static str,
    pub title: &'static str,
    pub explain: &'static str,
    /// With pg_once.
    pub leased: bool,
    pub jobs: usize,
    pub window: Duration,
    /// How often a process dies at each of its points.
    pub rounds: usize,
}

impl Case {
    pub async fn run(
        self,
        settings: &Settings,
        paths: &Paths,
        cluster: &Cluster,
        work: &Path,
    ) -> Result<Run> {
        let journal = Arc::new(Journal::new());
        let jobs: Arc<[Job]> = plan::plan(self.jobs, self.window, settings.seed).into();
        let owner = create(cluster, self.name, self.leased).await?;
        database::prepare(&owner, self.leased, &jobs).await?;
        let store = work.join(format!("{}.artifacts", self.name));
        std::fs::create_dir(&store)?;
        let place = Place {
            settings,
            paths,
            cluster,
            work,
            store: &store,
        };
        let stage = Stage::set(&self, &place, &jobs, &journal).await?;

        let began = journal.now_ms();
        let progress = Progress::new(self.title, (self.jobs, "jobs"), Arc::clone(&journal));
        let rng = StdRng::seed_from_u64(settings.seed);
        tokio::select! {
            () = load::run(&stage.sides, &jobs, &progress) => {}
            () = stage.supervisor.kill_at_random(rng, 700..2200) => {}
            () = progress.tell() => {}
            failed = terminate_backends(cluster, self.name, settings.seed, &journal) => {
                failed.context("terminating backends")?;
            }
        }
        journal.event(What::LoadOver);
        settle(&owner).await?;
        progress.finish();
        let seconds = (journal.now_ms() - began) / 1000.0;
        stage.supervisor.stop().await?;

        database::load_evidence(&owner, &jobs, &store, &journal.attempts()).await?;
        self.judge(&owner, &jobs, &journal, stage.lanes, seconds)
            .await
    }

    async fn judge(
        self,
        owner: &Client,
        jobs: &[Job],
        journal: &Journal,
        lanes: Vec<String>,
        seconds: f64,
    ) -> Result<Run> {
        let mut questions = proof::questions();
        if self.leased {
            questions.extend(proof::machine_questions());
        }
        questions.extend(latencies(
            ["a cancellation's end p50", "a cancellation's end p99"],
            "'user', 'user_again'",
        ));
        let proven = ask(owner, questions).await?;
        let met = Met::ask(owner).await?;
        let (attempts, events) = (journal.attempts(), journal.events());
        let points = stage::points(&self).concat();
        let trouble = Trouble::of(&events, &attempts, &points);
        let faults = verdict::faults(&Evidence {
            case: &self,
            lanes: &lanes,
            events: &events,
            proven: &proven,
            trouble: &trouble,
            met: &met,
        });
        let damage = owner.query(&proof::damage(), &[]).await?;
        let at_ms = damage
            .iter()
            .map(|row| journal.ms_of(u64::try_from(row.get::<_, i64>(0)).unwrap_or_default()))
            .collect();
        Ok(Run {
            name: self.name,
            title: self.title,
            explain: self.explain,
            asked: self.jobs,
            points,
            lanes,
            proven,
            went_through: verdict::went_through(&trouble, &met, &attempts, jobs),
            attempts,
            events,
            trouble,
            damage: Damage {
                name: "damage done",
                at_ms,
            },
            faults,
            seconds,
        })
    }
}

/// Waits until every job has ended, or nothing happens any more.
async fn settle(owner: &Client) -> Result<()> {
    let (mut seen, mut since) = (None, Instant::now());
    loop {
        let row = owner.query_one(UNDER_WAY, &[]).await?;
        let (left, last): (i64, Option<i64>) = (row.get(0), row.get(1));
        if last != seen {
            (seen, since) = (last, Instant::now());
        }
        if left == 0 || since.elapsed() > QUIET_FOR {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

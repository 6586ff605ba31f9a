//! One run of the batch service: workers, endpoints, the load, the trouble, and the proof.
//!
//! Invariant: both runs have a database, an artifact directory and processes of their own, and the
//! same trouble by the same seed; what differs is the service. Only pg_once has a janitor, because
//! the other has nothing that a janitor could call.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pg_once_tests::Cluster;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio_postgres::Client;

use super::load::{self, Sides};
use super::plan::{self, Job};
use super::{database, proof};
use crate::client::Clients;
use crate::crashes::Crashes;
use crate::database::{JANITOR_ROLE, SERVICE_ROLE, create, terminate_backends};
use crate::journal::{Attempt, Journal, Outcome, What};
use crate::progress::Progress;
use crate::proof::{Proven, ask, latencies};
use crate::proxy::Proxy;
use crate::settings::{Paths, Settings};
use crate::story::{Damage, Run};
use crate::supervisor::{Post, Program, Supervisor};
use crate::verdict::{self, Trouble};

/// Where workers that use pg_once die: every place between two effects.
const LEASED_WORKER: &[&str] = &[
    "after_claim",
    "after_item_begun",
    "after_artifact",
    "before_finish_commit",
    "after_finish",
];
const LEASED_ENDPOINT: &[&str] = &[
    "after_cancel_request",
    "after_refund",
    "amid_cleanup",
    "after_cleanup_confirm",
    "before_cancel_finish_commit",
    "after_cancel_finish",
];
/// The same places of the hand-written service.
const NAIVE_WORKER: &[&str] = &[
    "after_claim",
    "after_item_begun",
    "after_artifact",
    "before_finish",
    "after_finish",
];
const NAIVE_ENDPOINT: &[&str] = &[
    "after_cancel_request",
    "after_sum",
    "after_credit",
    "after_refund",
    "amid_cleanup",
    "before_cancel_finish",
    "after_cancel_finish",
];

const ENDPOINTS: usize = 2;
const KILLS_AT_LEAST: usize = 20;
/// What is under way may end: more than the lease of a worker that died last, a sweep, and the
/// teardown of what it gives back.
const SETTLES_WITHIN: Duration = Duration::from_secs(8);

const UNDER_WAY: &str = "select count(*) from batch_job where status not in ('done', 'cancelled')";
const GIVEN_BACK: &str = "select count(*)::float8 from status_log where old_status = 'running' and new_status = 'queued'";
const CUT_SHORT: &str = "select count(*)::float8 from batch_job j where status = 'cancelled' \
                         and exists (select from batch_item i where i.job_id = j.id and i.state = 'succeeded')";

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

/// The processes of a run, and who speaks to them.
struct Stage {
    supervisor: Supervisor,
    sides: Sides,
    lanes: Vec<String>,
}

impl Case {
    fn points(&self) -> [&'static [&'static str]; 2] {
        if self.leased {
            [LEASED_WORKER, LEASED_ENDPOINT]
        } else {
            [NAIVE_WORKER, NAIVE_ENDPOINT]
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
        let jobs: Arc<[Job]> = plan::plan(self.jobs, self.window, settings.seed).into();
        let owner = create(cluster, self.name, self.leased).await?;
        database::prepare(&owner, self.leased, &jobs).await?;
        let store = work.join(format!("{}.artifacts", self.name));
        std::fs::create_dir(&store)?;
        let program = |role: &str| self.program(role, settings, paths, cluster, work, &store);
        let stage = self.set(settings, program, &jobs, &journal).await?;

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
        self.judge(&owner, &jobs, &store, &journal, stage.lanes, seconds)
            .await
    }

    /// Starts the processes, the janitor first: the others refuse to start where nobody sweeps.
    async fn set(
        &self,
        settings: &Settings,
        program: impl Fn(&str) -> Program,
        jobs: &[Job],
        journal: &Arc<Journal>,
    ) -> Result<Stage> {
        let workers = usize::from(settings.services);
        let cancels = jobs.iter().filter(|job| job.cancel.is_some()).count();
        let [at_work, at_teardown] = self.points();
        let sides_crashes = [
            Arc::new(Crashes::new(at_work, self.rounds, workers, self.jobs)),
            // About half of those who cancel meet a running job, which its worker tears down.
            Arc::new(Crashes::new(
                at_teardown,
                self.rounds,
                ENDPOINTS,
                cancels / 2,
            )),
        ];
        let [worker_crashes, endpoint_crashes] = sides_crashes;
        let never = Arc::new(Crashes::none());
        let janitors = usize::from(self.leased);
        let roles = [
            ("janitor", janitors, &never),
            ("worker", workers, &worker_crashes),
            ("endpoint", ENDPOINTS, &endpoint_crashes),
        ];
        let (mut posts, mut lanes) = (Vec::new(), Vec::new());
        let (mut worker_fronts, mut endpoint_fronts) = (Vec::new(), Vec::new());
        for (role, count, crashes) in roles {
            for number in 1..=count {
                let lane = lanes.len();
                let seed = settings.seed.wrapping_add(lane as u64);
                let proxy = Arc::new(Proxy::start(lane, seed, Arc::clone(journal)).await?);
                match role {
                    "worker" => worker_fronts.push(proxy.front),
                    "endpoint" => endpoint_fronts.push(proxy.front),
                    _ => {}
                }
                lanes.push(if count == 1 {
                    role.to_owned()
                } else {
                    format!("{role} {number}")
                });
                posts.push(Post {
                    program: program(role),
                    proxy,
                    crashes: Arc::clone(crashes),
                });
            }
        }
        let clients = |fronts: &[_], patience| Clients::new(fronts, patience, Arc::clone(journal));
        Ok(Stage {
            supervisor: Supervisor::start(posts, journal).await?,
            sides: Sides {
                queue: clients(&worker_fronts, load::VISIBILITY_TIMEOUT),
                users: clients(&endpoint_fronts, load::PATIENCE),
                worker_crashes,
                endpoint_crashes,
            },
            lanes,
        })
    }

    fn program(
        &self,
        role: &str,
        settings: &Settings,
        paths: &Paths,
        cluster: &Cluster,
        work: &Path,
        store: &Path,
    ) -> Program {
        let user = if role == "janitor" {
            JANITOR_ROLE
        } else {
            SERVICE_ROLE
        };
        let how = if self.leased { "pg-once" } else { "naive" };
        Program {
            path: paths.batch.clone(),
            arguments: vec![
                "--database-url".to_owned(),
                cluster.url_as(user, self.name),
                format!("--store={}", store.display()),
                format!("--how={how}"),
                format!("--role={role}"),
                format!("--lease-ms={}", settings.lease_ms),
            ],
            directory: work.to_owned(),
        }
    }

    async fn judge(
        self,
        owner: &Client,
        jobs: &[Job],
        store: &Path,
        journal: &Journal,
        lanes: Vec<String>,
        seconds: f64,
    ) -> Result<Run> {
        let (attempts, events) = (journal.attempts(), journal.events());
        database::load_evidence(owner, jobs, store, &attempts).await?;
        let mut questions = proof::questions();
        if self.leased {
            questions.extend(proof::machine_questions());
        }
        questions.extend(latencies(
            ["a cancellation's end p50", "a cancellation's end p99"],
            "'user', 'user_again'",
        ));
        let proven = ask(owner, questions).await?;
        let number =
            async |sql: &str| -> Result<f64> { Ok(owner.query_one(sql, &[]).await?.get(0)) };
        let met = Met {
            given_back: number(GIVEN_BACK).await?,
            cut_short: number(CUT_SHORT).await?,
        };
        let points = self.points().concat();
        let trouble = Trouble::of(&events, &attempts, &points);
        let mut faults = verdict::deaths(self.title, &lanes, &events);
        if self.leased {
            faults.extend(self.faults(&trouble, &met, &proven));
        }
        let at_ms = owner
            .query(&proof::damage(), &[])
            .await?
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
            went_through: went_through(&trouble, &met, &attempts, jobs),
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

    fn faults(&self, trouble: &Trouble, met: &Met, proven: &[Proven]) -> Vec<String> {
        let mut faults = verdict::wrong_numbers(self.title, proven, self.jobs);
        faults.extend(verdict::missed_points(self.title, trouble));
        faults.extend(verdict::too_few_kills(self.title, trouble, KILLS_AT_LEAST));
        faults.extend(verdict::missed_trouble(
            self.title,
            &[
                (
                    "an answer \"come back\" (409, 202)",
                    trouble.saw(Outcome::InProgress),
                ),
                ("an answer cut on its way", trouble.answers_cut),
                ("a terminated backend", trouble.backends_terminated),
                ("a job that was given back", met.given_back as usize),
                ("a job cancelled while it ran", met.cut_short as usize),
            ],
        ));
        let refused = trouble.saw(Outcome::Refused);
        if refused > 0 {
            faults.push(format!(
                "{}: {refused} requests were refused with a status that nobody expects",
                self.title
            ));
        }
        faults
    }
}

/// What the tables say of the trouble.
struct Met {
    given_back: f64,
    cut_short: f64,
}

/// The trouble that is worth a line.
fn went_through(
    trouble: &Trouble,
    met: &Met,
    attempts: &[Attempt],
    jobs: &[Job],
) -> Vec<(&'static str, f64)> {
    let sent = |who: &str| {
        let theirs = |attempt: &&Attempt| attempt.client.starts_with(who);
        attempts.iter().filter(theirs).count() as f64
    };
    let twice = jobs.iter().filter(|job| job.again_after.is_some()).count();
    vec![
        ("deliveries, retries included", sent("queue")),
        ("jobs that the queue had twice", twice as f64),
        ("cancellations sent, retries included", sent("user")),
        ("jobs cancelled after an item's success", met.cut_short),
        ("jobs given back to the queue", met.given_back),
        ("processes killed (kill -9)", trouble.kills as f64),
        (
            "database backends terminated",
            trouble.backends_terminated as f64,
        ),
        ("answers lost by the network", trouble.answers_cut as f64),
        (
            "told to come back (409, 202)",
            trouble.saw(Outcome::InProgress) as f64,
        ),
    ]
}

/// Waits until every job has ended, or as long as that may take.
async fn settle(owner: &Client) -> Result<()> {
    let deadline = tokio::time::Instant::now() + SETTLES_WITHIN;
    while tokio::time::Instant::now() < deadline {
        let left: i64 = owner.query_one(UNDER_WAY, &[]).await?.get(0);
        if left == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

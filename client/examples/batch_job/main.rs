//! A costly batch job that can be cancelled while it runs: the example of `docs/how-to/batch-job.md`.
//!
//! `cargo run -p pg-once --example batch_job -- --database-url postgres://localhost/mydb`, in a
//! database where `CREATE EXTENSION pg_once` was done. The program makes its tables in a new schema, and
//! four jobs: one finishes; one is delivered twice, and cancelled while it runs; one is cancelled after its worker was
//! killed with -9; one is run again after its worker was killed. The program fails unless the points and artifacts of
//! each job are as expected. `batch.rs` is the part to read.

mod batch;
mod store;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use deadpool_postgres::{Manager, Pool};
use pg_once::{CancelRequest, Error, JobOutcome, Kind, Machine};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use batch::Batch;
use store::Store;

const TABLES: &str = include_str!("../../../sql/examples/batch_job.sql");
const DEFINITION: &str = include_str!("../../../sql/examples/batch_job.json");
const JOB: &str = "WITH wallet AS (INSERT INTO wallet VALUES ($1, 100)), \
    job AS (INSERT INTO batch_job (customer) VALUES ($1) RETURNING id), \
    items AS (INSERT INTO batch_item (job_id, input, points, artifact) \
        SELECT job.id, 'page ' || n, 10, $1 || '-' || n FROM job, generate_series(1, $2::int) AS n) \
    SELECT id FROM job";
const STATE: &str =
    "SELECT status, points FROM batch_job JOIN wallet USING (customer) WHERE id = $1";
const ITEMS: i32 = 5;
/// A dead worker's job can be reverted after this time.
const LEASE: Duration = Duration::from_secs(2);

/// Runs four cancellable batch jobs: two are cancelled, and two lose a worker.
#[derive(Clone, Parser)]
struct Args {
    /// A database with the extension pg_once.
    #[arg(long, env = "PG_ONCE_URL")]
    database_url: String,
    /// The directory of the artifacts; by default a temporary one.
    #[arg(long)]
    store: Option<PathBuf>,
    /// The worker process that is killed gets this argument. The process works only on job JOB of machine NAME,
    /// in the schema NAME, and hangs in the second item.
    #[arg(long, num_args = 2, value_names = ["NAME", "JOB"], hide = true)]
    stall: Option<Vec<String>>,
}

struct Story {
    args: Args,
    name: String,
    machine: Machine,
    pool: Pool,
    store: Store,
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let args = Args::parse();
    if let Some([name, job]) = args.stall.as_deref() {
        let (name, job) = (name.clone(), job.parse()?);
        return Story::open(args, name)?.work_until_killed(job).await;
    }
    let name = format!("batch_job_{}", uuid::Uuid::new_v4().simple());
    let story = Story::open(args, name)?;
    story.prepare().await?;
    story.finished().await?;
    story.cancelled_while_it_runs().await?;
    story.killed_and_cancelled().await?;
    story.killed_and_run_again().await?;
    story.audit().await?;
    story.forget().await
}

impl Story {
    fn open(args: Args, name: String) -> Result<Self> {
        let mut config: tokio_postgres::Config = args.database_url.parse()?;
        config.options(format!("-c search_path={name}"));
        let manager = Manager::new(config, tokio_postgres::NoTls);
        let root = args.store.clone();
        Ok(Self {
            args,
            machine: Machine::new(&name),
            pool: Pool::builder(manager).build()?,
            store: Store::open(root.unwrap_or_else(|| std::env::temp_dir().join(&name)))?,
            name,
        })
    }

    /// Does what a deployment does: makes the tables, the machine and the guard, then asks whether
    /// sweeps cover the machine.
    async fn prepare(&self) -> Result<()> {
        let client = self.pool.get().await?;
        let schema = format!("CREATE SCHEMA {}", self.name);
        client.batch_execute(&schema).await?;
        client.batch_execute(TABLES).await?;
        let mut definition: serde_json::Value = serde_json::from_str(DEFINITION)?;
        definition["machine"] = self.name.as_str().into();
        Machine::define(&client, &definition.into()).await?;
        self.machine.guard(&client, true).await?;
        match Machine::assert_covered(&client).await {
            Err(error) if error.kind() == Kind::UncoveredClaimState => {
                println!("nobody sweeps yet: the service would not boot");
            }
            other => bail!("a new machine cannot be covered: {other:?}"),
        }
        self.sweep().await
    }

    /// Sweeps once, as pg_cron or another scheduler does every few seconds.
    async fn sweep(&self) -> Result<()> {
        let sweep = "SELECT failed FROM once.sweep(task => 'action_release', machine => $1)";
        let row = self
            .pool
            .get()
            .await?
            .query_one(sweep, &[&self.name])
            .await?;
        ensure!(row.get::<_, i64>(0) == 0, "a row could not be swept");
        Ok(())
    }

    async fn new_job(&self, customer: &str) -> Result<i64> {
        let client = self.pool.get().await?;
        Ok(client.query_one(JOB, &[&customer, &ITEMS]).await?.get(0))
    }

    fn batch(&self, job: i64) -> Batch {
        Batch {
            store: self.store.clone(),
            job,
            takes: Duration::from_millis(100),
            stall_after: None,
            made: 0,
        }
    }

    async fn run(&self, job: i64) -> Result<JobOutcome, Error> {
        let row = self.machine.row(job);
        let runner = row.job(&self.pool, "run").requester("worker").lease(LEASE);
        runner.run(&mut self.batch(job)).await
    }

    async fn finished(&self) -> Result<()> {
        let job = self.new_job("ada").await?;
        let outcome = self.run(job).await?;
        ensure!(
            matches!(outcome, JobOutcome::Finished { .. }),
            "{outcome:?}"
        );
        self.expect("finished", job, "ada", "done", 50, 5).await
    }

    /// The queue delivers the job twice, and the user cancels it while one of the workers runs it.
    async fn cancelled_while_it_runs(&self) -> Result<()> {
        let job = self.new_job("bob").await?;
        let cancel = async {
            self.until(
                "SELECT count(*) >= 2 FROM batch_item WHERE job_id = $1 AND state = 'succeeded'",
                job,
            )
            .await?;
            Ok(self.machine.row(job).cancel().request(&self.pool).await?)
        };
        let (one, other, cancel) = tokio::join!(self.run(job), self.run(job), cancel);
        let request: Result<CancelRequest> = cancel;
        ensure!(
            matches!(request?, CancelRequest::Accepted { .. }),
            "no worker runs the job"
        );
        match (one?, other?) {
            (JobOutcome::Cancelled(cancelled), JobOutcome::InProgress { .. })
            | (JobOutcome::InProgress { .. }, JobOutcome::Cancelled(cancelled)) => {
                println!("cancelled: {} points are back", cancelled.amount_total);
            }
            outcomes => bail!("one is cancelled and the other in progress, not {outcomes:?}"),
        }
        self.expect("cancelled mid-flight", job, "bob", "cancelled", 100, 0)
            .await
    }

    /// The worker is killed before the job is cancelled: a sweep and the teardown worker end the job.
    async fn killed_and_cancelled(&self) -> Result<()> {
        let job = self.new_job("cyd").await?;
        self.kill_a_worker(job).await?;
        let request = self.machine.row(job).cancel().request(&self.pool).await?;
        ensure!(
            matches!(request, CancelRequest::Accepted { .. }),
            "{request:?}"
        );
        self.until_given_back(job).await?;
        let worker = self.machine.teardown_worker(&self.pool);
        let cancelled = async {
            if let Err(error) = self
                .until(
                    "SELECT status = 'cancelled' FROM batch_job WHERE id = $1",
                    job,
                )
                .await
            {
                tracing::error!(%error, "not cancelled");
            }
        };
        let clean = |_, items: Vec<_>| std::future::ready(batch::clean(&self.store, &items));
        let torn_down = worker
            .poll_every(Duration::from_millis(50))
            .run(cancelled, clean)
            .await?;
        ensure!(torn_down.cancelled == 1, "{torn_down:?}");
        self.expect("killed, then cancelled", job, "cyd", "cancelled", 100, 0)
            .await
    }

    /// Another worker does the items that are not saved yet.
    async fn killed_and_run_again(&self) -> Result<()> {
        let job = self.new_job("dan").await?;
        self.kill_a_worker(job).await?;
        self.until_given_back(job).await?;
        let outcome = self.run(job).await?;
        ensure!(
            matches!(outcome, JobOutcome::Finished { .. }),
            "{outcome:?}"
        );
        self.expect("killed, then run again", job, "dan", "done", 50, 5)
            .await
    }

    /// Starts a worker process, and kills it with -9 when it has made two artifacts and saved one item.
    async fn kill_a_worker(&self, job: i64) -> Result<()> {
        let mut worker = Command::new(std::env::current_exe()?)
            .args(["--database-url", &self.args.database_url])
            .arg("--store")
            .arg(self.store.path())
            .args(["--stall", &self.name, &job.to_string()])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = worker.stdout.take().context("the worker's output")?;
        let line = BufReader::new(output).lines().next_line().await?;
        ensure!(
            line.as_deref() == Some("stalled"),
            "the worker printed {line:?}"
        );
        worker.kill().await?;
        Ok(())
    }

    async fn work_until_killed(&self, job: i64) -> Result<()> {
        let row = self.machine.row(job);
        let runner = row.job(&self.pool, "run").requester("worker").lease(LEASE);
        let mut batch = Batch {
            stall_after: Some(2),
            ..self.batch(job)
        };
        let outcome = runner.run(&mut batch).await?;
        bail!("not killed, but {outcome:?}")
    }

    /// Sweeps until the dead worker's lease has expired and the job is `queued` again.
    async fn until_given_back(&self, job: i64) -> Result<()> {
        let given_back = "SELECT status = 'queued' FROM batch_job WHERE id = $1";
        for _ in 0..100 {
            self.sweep().await?;
            if self.holds(given_back, job).await? {
                return Ok(());
            }
            tokio::time::sleep(LEASE / 10).await;
        }
        bail!("job {job} was not given back")
    }

    async fn until(&self, condition: &str, job: i64) -> Result<()> {
        for _ in 0..500 {
            if self.holds(condition, job).await? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("never: {condition}")
    }

    async fn holds(&self, condition: &str, job: i64) -> Result<bool> {
        let client = self.pool.get().await?;
        Ok(client.query_one(condition, &[&job]).await?.get(0))
    }

    /// Prints the job's status, points and artifacts, and fails unless they are the expected ones.
    async fn expect(
        &self,
        part: &str,
        job: i64,
        customer: &str,
        status: &str,
        points: i64,
        artifacts: usize,
    ) -> Result<()> {
        let row = self.pool.get().await?.query_one(STATE, &[&job]).await?;
        let found: (String, i64, usize) = (row.get(0), row.get(1), self.store.count(customer)?);
        println!(
            "{part}: {}, {} points, {} artifacts",
            found.0, found.1, found.2
        );
        ensure!(
            found == (status.to_owned(), points, artifacts),
            "expected {status}, {points}, {artifacts}"
        );
        Ok(())
    }

    async fn audit(&self) -> Result<()> {
        let disagree = self.machine.cancel_audit(&self.pool).await?;
        ensure!(disagree.is_empty(), "{disagree:?}");
        println!("cancel_audit: nothing disagrees");
        Ok(())
    }

    async fn forget(&self) -> Result<()> {
        self.machine.drop(&self.pool).await?;
        let schema = format!("DROP SCHEMA {} CASCADE", self.name);
        self.pool.get().await?.batch_execute(&schema).await?;
        if self.args.store.is_none() {
            std::fs::remove_dir_all(self.store.path())?;
        }
        Ok(())
    }
}

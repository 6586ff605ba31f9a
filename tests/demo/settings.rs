//! What the demo can be told, and the names and times that its parts agree on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;

/// The scope of the service's keys.
pub const SCOPE: &str = "orders.create";

/// The names of all runs, in their order.
const RUNS: [&str; 13] = [
    "naive",
    "pg_once",
    "pg_once_forgetful_bank",
    "pg_once_silent_bank",
    "batch_naive",
    "batch_pg_once",
    "receipts_naive",
    "receipts_send_first",
    "receipts_pg_once",
    "fundings_naive",
    "fundings_pg_once",
    "growth_naive",
    "growth_pg_once",
];

/// Runs five loads (orders, batch jobs, receipts, fundings, and orders while servers are added) through hand-written
/// services and through pg_once, with real trouble (kill -9, lost answers, duplicates, cancellations, terminated
/// backends), and counts what went wrong.
///
/// Starts its own PostgreSQL (the server of PG_ONCE_PG_CONFIG, where `make install` has put pg_once), a world outside
/// and several service processes; none of them is left afterwards. Writes report.html, results.json, dashboard.html
/// and metrics.jsonl. Ends with status 1 unless pg_once made every order that arrived exactly once, ended every job and
/// every funding whole or with everything given back, lost and repeated no receipt, and the trouble really happened.
#[derive(Parser, Clone)]
#[command(name = "demo", version)]
pub struct Settings {
    /// Orders in each of the two big runs; the two runs against banks without idempotency keys have a
    /// fifth of it each
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(400..=100_000))]
    pub orders: u32,
    /// How long the orders of a big run keep arriving, in seconds
    #[arg(long, default_value_t = 26, value_parser = clap::value_parser!(u32).range(5..=3600))]
    pub seconds: u32,
    /// Batch jobs in each of their two runs, of 5 to 20 items
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub jobs: u32,
    /// How long the queue keeps delivering new jobs, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(5..=3600))]
    pub job_seconds: u32,
    /// Orders whose receipts are sent, in each of the two big runs of them; the run that sends first
    /// has half of it
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(200..=100_000))]
    pub receipts: u32,
    /// How long those orders keep arriving, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(5..=3600))]
    pub receipt_seconds: u32,
    /// Fundings in each of their two runs
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub fundings: u32,
    /// How long fundings keep arriving, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(5..=3600))]
    pub funding_seconds: u32,
    /// Orders in each of the two runs in which servers are added
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u32).range(400..=100_000))]
    pub growth_orders: u32,
    /// How long those orders keep arriving, in seconds
    #[arg(long, default_value_t = 18, value_parser = clap::value_parser!(u32).range(10..=3600))]
    pub growth_seconds: u32,
    /// Seed of the load and of the trouble
    #[arg(long, default_value_t = 20)]
    pub seed: u64,
    /// Service processes, and as many workers for the jobs
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub services: u16,
    /// The lease of a request or a job, in milliseconds
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u64).range(500..=60_000))]
    pub lease_ms: u64,
    /// Where report.html and the other files go
    #[arg(long, default_value = "target/demo")]
    pub out: PathBuf,
    /// Print the queries behind the tables, too; the report has them in any case
    #[arg(long)]
    pub queries: bool,
    /// Keep the server running after the report, to look at the tables, until Ctrl-C
    #[arg(long)]
    pub keep: bool,
    /// Run only this one; may be given again
    #[arg(long, value_parser = RUNS)]
    pub only: Vec<String>,
    /// The order service of pg_once (default: examples/order_service beside this program)
    #[arg(long)]
    pub service: Option<PathBuf>,
}

/// The programs that the demo starts.
pub struct Paths {
    pub outside: PathBuf,
    pub naive: PathBuf,
    pub pg_once: PathBuf,
    pub batch: PathBuf,
    pub effects: PathBuf,
}

impl Settings {
    /// Whether the run of this name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == name)
    }

    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// When a request counts as stuck, in seconds: one lease, and as slack the second that an
    /// attempt may wait for the bank, the second that Retry-After rounds up to, and half a second
    /// for a busy machine.
    pub fn stuck_after(&self) -> f64 {
        (self.lease() + Duration::from_millis(2500)).as_secs_f64()
    }

    /// The programs were built beside this one.
    pub fn paths(&self) -> Result<Paths> {
        let own = std::env::current_exe().context("this program's own path")?;
        let directory = own.parent().context("this program's own directory")?;
        Ok(Paths {
            outside: existing(&directory.join("outside"))?,
            naive: existing(&directory.join("naive_service"))?,
            batch: existing(&directory.join("batch_service"))?,
            effects: existing(&directory.join("effects_service"))?,
            pg_once: existing(
                &self
                    .service
                    .clone()
                    .unwrap_or_else(|| directory.join("examples/order_service")),
            )?,
        })
    }
}

fn existing(path: &Path) -> Result<PathBuf> {
    ensure!(
        path.is_file(),
        "{} is not built; `make demo` builds everything",
        path.display()
    );
    Ok(path.canonicalize()?)
}

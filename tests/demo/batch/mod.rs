//! The story of the batch jobs: a queue delivers them, workers burn points item by item, users
//! cancel some of them while they run.

mod case;
mod database;
mod load;
mod plan;
mod players;
mod proof;

mod verdict;

use std::time::Duration;

use anyhow::Result;

use crate::ground::Ground;
use crate::settings::Settings;
use crate::story::{Card, Kind, Story, run_wanted};
use case::Case;

const HEADLINES: [&str; 6] = [
    "jobs ended",
    "resurrected jobs",
    "points refunded twice",
    "points never refunded",
    "orphaned artifacts",
    "jobs stuck",
];

const KINDS: [Kind; 3] = [
    ("job or cancellation ended", "made"),
    (
        "told to come back: 409 in progress, 202 accepted",
        "waiting",
    ),
    ("failed: cut, timed out, 5xx", "failed"),
];

fn cases(settings: &Settings) -> [Case; 2] {
    let jobs = settings.jobs as usize;
    let window = Duration::from_secs(settings.job_seconds.into());
    [
        Case {
            card: Card {
                name: "batch_naive",
                title: "a status column",
                explain: "A worker as people write it by hand: read the status, write it, refund by sum, update and mark.",
                pg_once: false,
                asked: jobs,
            },
            window,
            rounds: 3,
        },
        Case {
            card: Card {
                name: "batch_pg_once",
                title: "pg_once",
                explain: "The same load. A job runs under a lease, refund marks and pays in one statement, and cancelled is \
                      written last.",
                pg_once: true,
                asked: jobs,
            },
            window,
            rounds: 3,
        },
    ]
}

pub async fn tell(ground: &Ground<'_>) -> Result<Story> {
    let runs = run_wanted(cases(ground.settings), ground).await?;
    Ok(Story {
        title: "The same jobs, the same cancellations",
        lead: format!(
            "A queue delivers jobs of 5 to 20 items to {} workers, some of them twice. Each item burns points of a \
             shared wallet and leaves a file. Users cancel while the work runs, press twice, or leave. Workers and \
             endpoints are killed with <code>kill -9</code> between any two calls.",
            ground.settings.services
        ),
        headlines: &HEADLINES,
        evidence: "the service's tables (`batch_job`, `batch_item`, `wallet`), what triggers noted of every change of a \
                   status or a wallet (`status_log`, `wallet_log`), the wallets at the start (`wallet_start`), the \
                   files that are there (`artifact`), what was asked for (`asked`) and every answer (`saw`)",
        kinds: &KINDS,
        after_load: "what is under way may end",
        runs,
    })
}

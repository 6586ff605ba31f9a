//! `make demo`: the same load through a hand-written order service and through pg_once, with
//! real trouble, and the proof of what came of it.
//!
//! Invariant: exit status 0 means that pg_once made every order exactly once while all the
//! trouble happened. A table of contents; each noun has its file.

mod bank_process;
mod case;
mod client;
mod crashes;
mod database;
mod journal;
mod load;
mod plan;
mod progress;
mod proof;
mod proxy;
mod report;
mod settings;
mod supervisor;
mod svg;
mod table;
mod timeline;
mod verdict;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use pg_once_tests::{Cluster, Leash};

use crate::case::{Case, Outcome};
use crate::settings::Settings;

/// The three runs, in the order of the story.
fn cases(settings: &Settings) -> [Case; 3] {
    let orders = settings.orders as usize;
    let window = Duration::from_secs(settings.seconds.into());
    [
        Case {
            name: "naive",
            title: "charge, then save",
            keyed: false,
            bank_dedupes: true,
            orders,
            window,
            rounds: 7,
        },
        Case {
            name: "pg_once",
            title: "pg_once",
            keyed: true,
            bank_dedupes: true,
            orders,
            window,
            rounds: 3,
        },
        Case {
            name: "pg_once_forgetful_bank",
            title: "pg_once, forgetful bank",
            keyed: true,
            bank_dedupes: false,
            orders: orders / 5,
            window: window.mul_f64(0.4),
            rounds: 1,
        },
    ]
}

async fn tell_the_story(settings: &Settings) -> Result<Vec<String>> {
    let paths = settings.paths()?;
    std::fs::create_dir_all(&settings.out).with_context(|| settings.out.display().to_string())?;
    // Absolute and ours alone: everything that runs in it dies with this program.
    let work = settings
        .out
        .canonicalize()?
        .join(format!("work.{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let leash = Leash::on(&work)?;
    let began = Instant::now();
    let cluster = tokio::task::block_in_place(|| Cluster::builder().fsync(true).launch())?;
    database::create_role(&cluster).await?;
    eprintln!(
        "PostgreSQL {} on port {}, {} service processes",
        cluster.version(),
        cluster.port(),
        settings.services
    );

    let mut outcomes: Vec<Outcome> = Vec::new();
    for case in cases(settings)
        .into_iter()
        .filter(|case| settings.wants(case.name))
    {
        outcomes.push(
            case.run(settings, &paths, &cluster, leash.directory())
                .await?,
        );
    }
    table::print_queries(&outcomes);
    table::print(&outcomes);
    let mut faults: Vec<String> = outcomes.iter().flat_map(verdict::faults).collect();
    faults.extend(verdict::too_few_kills(&outcomes));
    report::write(settings, &outcomes, &faults, cluster.version())?;
    println!("\n  {}", settings.out.join("report.html").display());
    println!("  {}", settings.out.join("results.json").display());
    println!(
        "  {:.0} seconds, seed {}\n",
        began.elapsed().as_secs_f64(),
        settings.seed
    );
    if settings.keep {
        println!(
            "The server is kept until Ctrl-C: psql {}",
            cluster.url("pg_once")
        );
        tokio::signal::ctrl_c().await?;
    }
    Ok(faults)
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let settings = Settings::parse();
    let faults = tell_the_story(&settings).await?;
    if faults.is_empty() {
        println!("With pg_once every order was made exactly once.");
        return Ok(ExitCode::SUCCESS);
    }
    println!("The demo has failed:");
    for fault in faults {
        println!("  {fault}");
    }
    Ok(ExitCode::FAILURE)
}

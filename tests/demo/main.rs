//! `make demo`: the same load through hand-written services and through pg_once, with real
//! trouble, and the proof of what came of it.
//!
//! Invariant: exit status 0 means that pg_once made every order that arrived exactly once, also those whose
//! client never came back and those that met a move of their shard, ended every job and every funding whole or with
//! everything given back, and lost and repeated no receipt, while all the trouble happened. A table of contents; each
//! noun has its file, each story its folder.

mod batch;
mod client;
mod crashes;
mod dashboard;
mod database;
mod fundings;
mod ground;
mod growth;
mod journal;
mod load;
#[path = "shared/modulo.rs"]
mod modulo;
mod orders;
mod outside;
mod progress;
mod proof;
mod proxy;
mod receipts;
mod report;
mod settings;
mod settle;
mod stage;
mod story;
mod supervisor;
mod svg;
mod table;
mod timeline;
mod verdict;
mod watch;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use pg_once_tests::{Cluster, Leash};

use crate::ground::Ground;
use crate::settings::Settings;

async fn tell_the_stories(settings: &Settings) -> Result<Vec<String>> {
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
    let cluster = tokio::task::block_in_place(|| {
        // Preloaded, as it should be in production: the counters of once.metrics() are kept then.
        let builder = Cluster::builder().fsync(true);
        builder
            .setting("shared_preload_libraries", "pg_once")
            .launch()
    })?;
    database::create_roles(&cluster).await?;
    let watch = watch::Watch::begin(&cluster);
    eprintln!(
        "PostgreSQL {} on port {}, {} service processes",
        cluster.version(),
        cluster.port(),
        settings.services
    );

    let ground = Ground {
        settings,
        paths: &paths,
        cluster: &cluster,
        work: leash.directory(),
    };
    let mut stories = vec![
        orders::tell(&ground).await?,
        batch::tell(&ground).await?,
        receipts::tell(&ground).await?,
        fundings::tell(&ground).await?,
        growth::tell(&ground).await?,
    ];
    stories.retain(|story| !story.runs.is_empty());
    stories.iter().for_each(table::print);
    if settings.queries {
        stories.iter().for_each(table::print_queries);
    }
    let runs = stories.iter().flat_map(|story| &story.runs);
    let faults: Vec<String> = runs.flat_map(|run| run.faults.clone()).collect();
    dashboard::write(&settings.out, &watch.end(&settings.out)?)?;
    report::write(settings, &stories, &faults, cluster.version())?;
    println!("\n  {}", settings.out.join("report.html").display());
    println!("  {}", settings.out.join("results.json").display());
    println!("  {}", settings.out.join("dashboard.html").display());
    println!(
        "  {:.0} seconds, seed {}\n",
        began.elapsed().as_secs_f64(),
        settings.seed
    );
    if settings.keep {
        println!(
            "The server is kept until Ctrl-C: psql {} (or another run's name)",
            cluster.url("pg_once")
        );
        tokio::signal::ctrl_c().await?;
    }
    Ok(faults)
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let settings = Settings::parse();
    let faults = tell_the_stories(&settings).await?;
    if faults.is_empty() {
        println!(
            "With pg_once every order that arrived was made exactly once, also where its client never came back, every job ended done and paid for, or cancelled with \
             everything given back, every receipt arrived once and in order, and every funding was posted, or archived \
             with its money back. Where shards moved, no order was made or charged twice."
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("The demo has failed:");
    for fault in faults {
        println!("  {fault}");
    }
    Ok(ExitCode::FAILURE)
}

//! `make bench`: what pg_once costs beside raw SQL that makes the same writes, beside the same thing
//! in PL/pgSQL, and beside what applications usually do.
//!
//! Invariant: every ratio is of two runs of the same round, so that a busy machine slows both. It reports; a missed
//! bar is marked and does not change the exit status, unless the bar is what was asked for
//! (`Settings::asks_for_a_bar`).
//! A table of contents; each noun has its file.

mod cases;
mod claims_while_reaping;
mod cost;
mod counters;
mod cpu;
mod database;
mod first;
mod idle;
mod jobs;
mod machines;
mod markdown;
mod measured;
mod outbox;
mod pgbench;
mod rounds;
mod settings;
mod stock;
mod table;
mod waits;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::database::Database;
use crate::measured::Results;
use crate::settings::{Noun, Settings};
use crate::stock::Due;

async fn measure(settings: &Settings) -> Result<Results> {
    let database = match settings.only {
        Some(Noun::Counters) => counters::launch(settings).await?,
        Some(Noun::Idle) => idle::launch(settings).await?,
        Some(Noun::Wal) => cost::launch(settings).await?,
        _ => Database::launch(settings).await?,
    };
    let mut results = Results::of(&database, settings).await?;
    match (settings.only, settings.reap_among) {
        (Some(Noun::Counters), _) => counters::measure(&database, &mut results).await?,
        (Some(Noun::Idle), _) => idle::measure(&database, &mut results).await?,
        (Some(Noun::Wal), _) => results.costs = cost::with_checkpoints(&database).await?,
        (_, Some(keys)) => claims_while_reaping::measure(&database, keys, &mut results).await?,
        _ => measure_nouns(&database, &mut results).await?,
    }
    Ok(results)
}

async fn measure_nouns(database: &Database, results: &mut Results) -> Result<()> {
    let settings = &database.settings;
    if settings.wants(Noun::Machines) {
        jobs::make(database).await?;
        results.cases.extend(machines::all(database).await?);
        if settings.wants_of_machines("written") {
            results.costs.extend(machines::costs(database).await?);
        }
        jobs::drop(database).await?;
    }
    if settings.wants(Noun::Outbox) {
        outbox::measure(database, results).await?;
    }
    if settings.wants(Noun::Waits) {
        results.latencies.extend(waits::measure(database).await?);
    }
    if settings.wants(Noun::First) {
        results.cases.extend(first::measure(settings).await?);
    }
    if settings.wants(Noun::Keys) {
        measure_keys(database, results).await?;
    }
    Ok(())
}

async fn measure_keys(database: &Database, results: &mut Results) -> Result<()> {
    stock::remake(database, 0).await?;
    results.cases.extend(cases::without_stock(database).await?);
    results.costs.extend(cost::of_keys(database).await?);
    claims_while_reaping::measure(database, 0, results).await?;
    for &keys in &database.settings.sizes() {
        let room = stock::room_for(keys, database.directory())?;
        if let Some(reason) = room {
            table::say(&format!("Left out: {keys} finished keys ({reason})"));
            results
                .left_out
                .push(format!("{keys} finished keys: {reason}"));
            continue;
        }
        stock::remake(database, keys).await?;
        results
            .cases
            .extend(cases::with_stock(database, keys).await?);
        let costs = claims_while_reaping::sweep(database, keys, Due::Deletion, "").await?;
        results.figures.extend(costs);
    }
    Ok(())
}

async fn run(settings: &Settings) -> Result<()> {
    let begin = Instant::now();
    let mut results = measure(settings).await?;
    results.seconds = begin.elapsed().as_secs();
    table::print(&results);
    let out = &settings.out;
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let json = out.join("results.json");
    std::fs::write(&json, serde_json::to_string_pretty(&results)? + "\n")?;
    let text = out.join("results.md");
    std::fs::write(&text, markdown::of(&results))?;
    if settings.queries {
        table::print_queries(&results.cases);
    }
    println!("Written: {} and {}", json.display(), text.display());
    let (_, missed) = results.bars();
    ensure!(
        !settings.asks_for_a_bar() || missed == 0,
        "a bar was missed"
    );
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Settings::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! `make bench`: what pg_once costs beside raw SQL that makes the same writes, beside the same thing
//! in PL/pgSQL, and beside what applications usually do.
//!
//! Invariant: every figure is a ratio of two runs of the same round, so that a busy machine slows
//! both. It reports; a missed bar is marked and does not change the exit status.
//! A table of contents; each noun has its file.

mod cases;
mod claims_while_reaping;
mod cost;
mod database;
mod markdown;
mod measured;
mod pgbench;
mod rounds;
mod settings;
mod stock;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;

use crate::database::Database;
use crate::measured::Results;
use crate::settings::Settings;

async fn measure(settings: &Settings) -> Result<Results> {
    let database = Database::launch(settings).await?;
    let mut results = Results::of(&database, settings).await?;
    stock::remake(&database, 0).await?;
    results.cases.extend(cases::without_stock(&database).await?);
    results.costs = cost::all(&database).await?;
    results
        .cases
        .push(claims_while_reaping::case(&database).await?);
    for &keys in &settings.sizes() {
        let room = stock::room_for(keys, database.directory())?;
        if let Some(reason) = room {
            table::say(&format!("Left out: {keys} finished keys ({reason})"));
            results
                .left_out
                .push(format!("{keys} finished keys: {reason}"));
            continue;
        }
        stock::remake(&database, keys).await?;
        results
            .cases
            .extend(cases::with_stock(&database, keys).await?);
    }
    Ok(results)
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
    println!("Written: {} and {}", json.display(), text.display());
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

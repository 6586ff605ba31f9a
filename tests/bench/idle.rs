//! What the janitor costs a server in which nothing happens: the CPU time of all the server's processes, of those that
//! came and went too, by the system's count, over the time in which each of sixteen databases is due once.
//!
//! Invariant: each database was swept in that time, or the case fails.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cpu;
use crate::database::{Database, NAME};
use crate::measured::{Figure, Results};
use crate::settings::Settings;
use crate::table;

const DATABASES: usize = 16;
/// Of a core.
const AT_MOST_PERCENT: f64 = 0.5;
/// An idle database is swept every five minutes, and the launcher may be a nap late.
const PERIOD: Duration = Duration::from_secs(320);
/// Three naps: the passes that follow the last writes.
const SETTLE: Duration = Duration::from_secs(30);

/// Whether the database was swept in the last $1 seconds.
const SWEPT: &str = "SELECT bool_and(coalesce(last_end > clock_timestamp() - make_interval(secs => $1), false)) \
    FROM once.janitor_status() WHERE machine IS NULL";

fn names() -> Vec<String> {
    let others = (1..DATABASES).map(|n| format!("idle_{n}"));
    std::iter::once(NAME.to_owned()).chain(others).collect()
}

/// A server whose janitor serves all of them, with its defaults.
pub async fn launch(settings: &Settings) -> Result<Database> {
    let preloaded = [
        ("shared_preload_libraries", "pg_once"),
        ("once.janitor_databases", &names().join(", ")),
    ];
    Database::launch_with(settings, &preloaded).await
}

/// Waits and counts.
pub async fn measure(database: &Database, results: &mut Results) -> Result<()> {
    let what = format!("the janitor of {DATABASES} databases in which nothing happens");
    table::say(&format!("{what}: six minutes"));
    for name in &names()[1..] {
        drop(database.create(name).await?);
    }
    tokio::time::sleep(SETTLE).await;
    let (begin, before) = (Instant::now(), so_far(database)?);
    tokio::time::sleep(PERIOD).await;
    let cpu_us = so_far(database)? - before;
    let percent = 100.0 * cpu_us / begin.elapsed().as_micros() as f64;
    for name in names() {
        let (client, seconds) = (
            database.connect_to(&name).await?,
            begin.elapsed().as_secs_f64(),
        );
        let swept: bool = client.query_one(SWEPT, &[&seconds]).await?.get(0);
        ensure!(swept, "{name} was not swept: the figure would be too good");
    }
    let what = format!("{what}, over {} s", PERIOD.as_secs());
    let figure = Figure::of(what, percent, "% of a core", Some(AT_MOST_PERCENT));
    results.figures.push(figure);
    Ok(())
}

fn so_far(database: &Database) -> Result<f64> {
    cpu::so_far(database)?.context("/proc does not tell what the server's processes cost")
}

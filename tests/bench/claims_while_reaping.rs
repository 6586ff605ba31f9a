//! Claims while another session calls the sweep task key_reap again and again without a pause, and without it; and what
//! the sweep costs.
//!
//! Invariant: the sweep has something to delete during the whole of a run, or the case fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::Client;

use crate::cases::script;
use crate::cost::POSITION;
use crate::database::Database;
use crate::measured::{Among, Case, Figure, Latency, Results, Runs, Spread, quantile};
use crate::pgbench::{self, Run, Script, Until};
use crate::{cpu, stock, table};

const NAME: &str = "claim + complete while key_reap runs without a pause";
/// Of the same without key_reap: it may slow claims down by a fifth.
const AT_LEAST: f64 = 0.8;
/// Of the same without key_reap.
const P99_AT_MOST: f64 = 2.0;
/// Of a million deleted keys.
const WAL_OF_A_MILLION: f64 = 0.5e9;
const CPU_OF_A_MILLION: f64 = 20.0;
/// More than one session can delete in a second.
const EXPIRED_PER_SECOND: u64 = 150_000;
/// The bound of one sweep; the default of the function.
const SWEEP: i32 = 1000;

const CLAIMS: Script<'static> = script!("claim_complete_once");

/// Runs all rounds, with expired keys alone (`keys` is 0), or among `keys` finished keys, which stay as they are, with
/// as many as a tenth of them expired in each round.
pub async fn measure(database: &Database, keys: u64, results: &mut Results) -> Result<()> {
    let among = Among::FinishedKeys(keys);
    table::begin(NAME, among);
    if keys > 0 {
        if let Some(reason) = stock::room_for(keys, database.directory())? {
            bail!("no room for {keys} finished keys: {reason}");
        }
        stock::remake_finished(database, keys).await?;
        results.figures.extend(sweep_a_tenth(database, keys).await?);
    }
    let mut sides = [
        Runs::none("pg_once", None),
        Runs::none("pg_once without key_reap", Some(AT_LEAST)),
    ];
    let (mut times, mut p99) = ([vec![], vec![]], [vec![], vec![]]);
    let rounds = database.settings.rounds() as usize;
    for round in 0..rounds {
        match keys {
            0 => {
                let seconds = u64::from(database.settings.seconds());
                stock::remake_expired(database, EXPIRED_PER_SECOND * seconds).await?;
            }
            _ => stock::fill_up_expired(database, keys / 10, &round.to_string()).await?,
        }
        // Both find the same number of expired keys in the table, as good as.
        for turn in 1..=2 {
            let at = (round + turn) % 2;
            let (run, waited) = match at {
                0 => claims_while_reaping(database).await?,
                _ => claims(database)?,
            };
            sides[at].push(run.per_second, run.cpu_us);
            p99[at].extend(quantile(waited.clone(), 0.99));
            times[at].extend(waited);
        }
        table::say(&format!("round {} of {rounds}", round + 1));
    }
    let [beside, alone] = times;
    let what = |end: &str| format!("claim + complete{end}{}", table::size(among));
    let latencies = [(what(" while key_reap runs"), beside), (what(""), alone)];
    let latencies = latencies.map(|(what, times)| Latency::of(what, times));
    results.latencies.extend(latencies.into_iter().flatten());
    let ratio = Spread::of(&p99[0], &p99[1]).map(|ratios| ratios.median);
    let what = what(" while key_reap runs: p99, of that without");
    let figure = ratio.map(|ratio| Figure::of(what, ratio, "times", Some(P99_AT_MOST)));
    results.figures.extend(figure);
    results.cases.push(Case::of(NAME, among, sides.into()));
    Ok(())
}

/// What it costs to delete expired keys, as many as a tenth of the `keys` finished ones beside them, right after a
/// checkpoint.
pub async fn sweep_a_tenth(database: &Database, keys: u64) -> Result<[Figure; 3]> {
    let expired = keys / 10;
    stock::fill_up_expired(database, expired, "of the sweep").await?;
    let session = database.connect().await?;
    let spent = async || cpu::so_far(database)?.context("/proc does not tell the CPU time");
    let (log, cpu, begin) = (
        database.number(POSITION).await?,
        spent().await?,
        Instant::now(),
    );
    let enough = AtomicBool::new(false);
    let reaped = reap_until(&session, &enough).await?.0;
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(
        u64::try_from(reaped)? == expired,
        "{reaped} of {expired} expired keys were deleted"
    );
    let (log, cpu) = (database.number(POSITION).await? - log, spent().await? - cpu);
    let (share, expired) = (expired as f64 / 1e6, table::grouped(expired as f64));
    let of = |what| {
        format!(
            "sweep of {expired} expired keys{}: {what}",
            table::size(Among::FinishedKeys(keys))
        )
    };
    Ok([
        Figure::size(of("WAL"), log as f64, Some(WAL_OF_A_MILLION * share)),
        Figure::of(
            of("server CPU"),
            cpu / 1e6,
            "s",
            Some(CPU_OF_A_MILLION * share),
        ),
        Figure::of(of("time"), seconds, "s", None),
    ])
}

fn claims(database: &Database) -> Result<(Run, Vec<f64>)> {
    let until = Until::Seconds(database.settings.seconds());
    tokio::task::block_in_place(|| pgbench::run_timed(database, CLAIMS, 0, until))
}

async fn claims_while_reaping(database: &Database) -> Result<(Run, Vec<f64>)> {
    let enough = Arc::new(AtomicBool::new(false));
    let session = database.connect().await?;
    let reaper = tokio::spawn({
        let enough = Arc::clone(&enough);
        async move { reap_until(&session, &enough).await }
    });
    let run = claims(database);
    enough.store(true, Ordering::Relaxed);
    let (reaped, last) = reaper.await??;
    ensure!(
        last == i64::from(SWEEP),
        "key_reap ran out of expired keys after {reaped}: the figure would be too good"
    );
    run
}

/// Sweeps until it is enough, or nothing is left: how many keys were deleted, and how many by the last sweep.
async fn reap_until(session: &Client, enough: &AtomicBool) -> Result<(i64, i64)> {
    let sweep = session
        .prepare("SELECT done FROM once.sweep($1, 'key_reap')")
        .await?;
    let (mut reaped, mut last) = (0, i64::from(SWEEP));
    while last > 0 && !enough.load(Ordering::Relaxed) {
        last = session.query_one(&sweep, &[&SWEEP]).await?.get(0);
        reaped += last;
    }
    Ok((reaped, last))
}

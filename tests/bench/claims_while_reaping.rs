//! Claims while another session calls sweep tasks of keys again and again without a pause, and without them; and what
//! a sweep costs.
//!
//! Invariant: each task has something to do during the whole of a run, or the case fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::Client;

use crate::cases::{ONCE, script};
use crate::cost::POSITION;
use crate::database::{Database, SNAPSHOT};
use crate::measured::{Among, Asked, Case, Figure, Results, Runs, Spread, quantile};
use crate::pgbench::{self, Run, Script, Until};
use crate::stock::Due;
use crate::{cpu, stock, table};

/// Of the same without a sweep: it may slow claims down by a fifth.
const AT_LEAST: Asked = Asked::Throughput(0.8);
/// Of the same without a sweep.
const P99_AT_MOST: f64 = 2.0;
/// Of a million deleted keys.
const WAL_OF_A_MILLION: f64 = 0.5e9;
const CPU_OF_A_MILLION: f64 = 20.0;
/// More than one session can delete in a second.
const EXPIRED_PER_SECOND: u64 = 300_000;
/// More than one session that deletes as many, too, can empty in a second.
const LARGE_PER_SECOND: u64 = 40_000;
/// The bound of one sweep; the default of the function.
const SWEEP: i32 = 1000;

const CLAIMS: Script<'static> = script!("claim_complete_once");

/// What a session beside the claims runs without a pause.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Nothing,
    /// It only takes CPU time, so it shows what the server's scheduler does to claims.
    Counting,
    Sweeps(&'static [Due]),
}

/// Large answers, the last, only where there is a stock.
const BESIDE: [Beside; 4] = [
    Beside::Nothing,
    Beside::Counting,
    Beside::Sweeps(&[Due::Deletion]),
    Beside::Sweeps(&[Due::Emptying, Due::Deletion]),
];
const COUNT: &str = "SELECT count(*) FROM generate_series(1, 50000)";

/// Runs all rounds, with expired keys alone (`keys` is 0), or among `keys` finished keys, which stay as they are, with
/// as many as a tenth of them expired in each round, and as many with large answers as are emptied in it.
pub async fn measure(database: &Database, keys: u64, results: &mut Results) -> Result<()> {
    let among = Among::FinishedKeys(keys);
    let seconds = u64::from(database.settings.seconds());
    table::begin("claims beside sweeps", among);
    if keys > 0 {
        if let Some(reason) = stock::room_for(keys, database.directory())? {
            bail!("no room for {keys} finished keys: {reason}");
        }
        stock::remake_finished(database, keys).await?;
        for (due, begin) in [
            (Due::Deletion, ""),
            (Due::Deletion, SNAPSHOT),
            (Due::Emptying, ""),
        ] {
            let swept = sweep(database, keys, due, begin).await?;
            results.figures.extend(swept);
        }
    }
    let all = &BESIDE[..if keys > 0 { 4 } else { 3 }];
    let mut sides = vec![Runs::none(ONCE, None); all.len()];
    let mut p99 = vec![vec![]; all.len()];
    let rounds = database.settings.rounds() as usize;
    for round in 0..rounds {
        if keys > 0 {
            let name = round.to_string();
            let large = LARGE_PER_SECOND * seconds;
            stock::fill_up(database, Due::Emptying, large, &name).await?;
            stock::fill_up(database, Due::Deletion, keys / 10, &name).await?;
        } else {
            stock::remake_expired(database, EXPIRED_PER_SECOND * seconds).await?;
        }
        // All find nearly the same number of expired keys in the table.
        for turn in 0..all.len() {
            let at = (round + turn) % all.len();
            let run = claims_beside(database, all[at]).await?;
            p99[at].extend(quantile(run.times.clone(), 0.99));
            sides[at].push(run.per_second, run.cpu_us);
            sides[at].times.extend(run.times);
        }
        table::say(&format!("round {} of {rounds}", round + 1));
    }
    let mut alone = sides.remove(0);
    alone.name = "pg_once without a sweep".to_owned();
    for ((runs, beside), times) in sides.into_iter().zip(&all[1..]).zip(&p99[1..]) {
        let (asked, most) = match beside {
            Beside::Sweeps(_) => (Some(AT_LEAST), Some(P99_AT_MOST)),
            _ => (None, None),
        };
        let name = format!("claim + complete while {} without a pause", beside.name());
        let ratio = Spread::of(times, &p99[0]).map(|ratios| ratios.median);
        let what = format!("{name}{}: p99, of that without", table::size(among));
        let figure = ratio.map(|ratio| Figure::of(what, ratio, "times", most));
        results.figures.extend(figure);
        alone.asked = asked;
        let case = Case::of(&name, among, vec![runs, alone.clone()]);
        results.cases.push(case);
        // Their latency is told once.
        alone.times.clear();
    }
    Ok(())
}

/// What it costs to delete or empty keys that are due, right after a checkpoint: as many as a tenth of the `keys`
/// finished ones beside them, or a hundredth where their answers are large. Another session holds what `begin` begins.
pub async fn sweep(database: &Database, keys: u64, due: Due, begin: &str) -> Result<[Figure; 3]> {
    let (count, what, asked) = match due {
        Due::Deletion => (keys / 10, "expired keys", true),
        Due::Emptying => (keys / 100, "keys with 2.6 kB of answer, emptied", false),
    };
    stock::fill_up(database, due, count, "of the sweep").await?;
    let (holder, session) = (database.connect().await?, database.connect().await?);
    holder.batch_execute(begin).await?;
    let held = if begin.is_empty() {
        ""
    } else {
        ", an old snapshot held"
    };
    let spent = async || cpu::so_far(database)?.context("/proc does not tell the CPU time");
    let (log, cpu, begin) = (
        database.number(POSITION).await?,
        spent().await?,
        Instant::now(),
    );
    let enough = AtomicBool::new(false);
    let swept = sweep_until(&session, &enough, &[due]).await?.0;
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(
        u64::try_from(swept)? == count,
        "{swept} of {count} {what} were swept"
    );
    let (log, cpu) = (database.number(POSITION).await? - log, spent().await? - cpu);
    let of = |figure| {
        format!(
            "sweep of {} {what}{}{held}: {figure}",
            table::grouped(count as f64),
            table::size(Among::FinishedKeys(keys))
        )
    };
    let most = |of_a_million: f64| asked.then_some(of_a_million * count as f64 / 1e6);
    Ok([
        Figure::size(of("WAL"), log as f64, most(WAL_OF_A_MILLION)),
        Figure::of(of("server CPU"), cpu / 1e6, "s", most(CPU_OF_A_MILLION)),
        Figure::of(of("time"), seconds, "s", None),
    ])
}

impl Beside {
    fn name(self) -> String {
        let Self::Sweeps(dues) = self else {
            return "a session counts numbers".to_owned();
        };
        let tasks: Vec<&str> = dues.iter().map(|due| due.task()).collect();
        let runs = if dues.len() == 1 { "runs" } else { "run" };
        format!("{} {runs}", tasks.join(" and "))
    }
}

async fn claims_beside(database: &Database, beside: Beside) -> Result<Run> {
    let enough = Arc::new(AtomicBool::new(false));
    let session = database.connect().await?;
    let sweeper = tokio::spawn({
        let enough = Arc::clone(&enough);
        async move {
            match beside {
                Beside::Nothing => Ok((0, SWEEP.into())),
                Beside::Counting => count_until(&session, &enough).await,
                Beside::Sweeps(dues) => sweep_until(&session, &enough, dues).await,
            }
        }
    });
    let until = Until::Seconds(database.settings.seconds());
    let run = tokio::task::block_in_place(|| pgbench::run_timed(database, CLAIMS, 0, until));
    enough.store(true, Ordering::Relaxed);
    let (swept, last) = sweeper.await??;
    ensure!(
        last == i64::from(SWEEP),
        "{beside:?} ran out of keys after {swept}: the figure would be too good"
    );
    run
}

async fn count_until(session: &Client, enough: &AtomicBool) -> Result<(i64, i64)> {
    while !enough.load(Ordering::Relaxed) {
        session.batch_execute(COUNT).await?;
    }
    Ok((0, SWEEP.into()))
}

/// Sweeps until it is enough, or nothing is left: how many keys were swept, and how many by the smallest of the last
/// sweeps of each task.
async fn sweep_until(session: &Client, enough: &AtomicBool, dues: &[Due]) -> Result<(i64, i64)> {
    let sweep = session
        .prepare("SELECT done FROM once.sweep($1, $2)")
        .await?;
    let (mut swept, mut last) = (0, 1);
    while last > 0 && !enough.load(Ordering::Relaxed) {
        last = SWEEP.into();
        for due in dues {
            let done: i64 = session
                .query_one(&sweep, &[&SWEEP, &due.task()])
                .await?
                .get(0);
            swept += done;
            last = last.min(done);
        }
    }
    Ok((swept, last))
}

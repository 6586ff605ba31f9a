//! The first call of a fresh backend beside a raw first INSERT, with the library preloaded and without.
//!
//! Invariant: a figure is of a backend that has run nothing before. Its CPU is what the kernel counts for that process
//! from the statement's arrival on, without the connection.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio_postgres::SimpleQueryMessage;

use crate::cases::script;
use crate::database::Database;
use crate::jobs::{self, Fill};
use crate::measured::{Among, Asked, Case, Runs};
use crate::outbox::side::{Keyed, Side};
use crate::pgbench::{FINGERPRINT, REQUEST};
use crate::settings::Settings;
use crate::{cpu, table};

/// Fresh backends of each statement, for a round of other cases.
const EACH: u32 = 10;
/// A backend that has answered waits for the next statement well before that.
const REST: Duration = Duration::from_millis(2);

/// The scripts of other cases; their first statement is the call. The raw INSERT is the first.
const CALLS: [(&str, &str); 8] = [
    ("raw INSERT", script!("claim_complete_raw").text),
    ("key_claim", script!("claim_complete_once").text),
    ("transition", script!("transition_once").text),
    ("action_claim", script!("claim_finish_once").text),
    ("outbox_emit", EMIT),
    ("outbox_take", TAKE),
    ("inbox_accept", ACCEPT),
    ("cancel_request", CANCEL),
];
/// What the first column of an answer may be where the call has done its work.
const DONE: [&str; 4] = ["claimed", "t", "1", "teardown"];
const EMIT: &str = "SELECT emitted FROM once.outbox_emit('bench', :request)";
const TAKE: &str = "SELECT attempt FROM once.outbox_take('bench', 'default', 1)";
const ACCEPT: &str = "SELECT accepted FROM once.inbox_accept('bench', :k)";
const CANCEL: &str = "SELECT outcome FROM once.cancel_request('job', :k)";

/// On two servers of their own.
pub async fn measure(settings: &Settings) -> Result<Vec<Case>> {
    let preload = [("shared_preload_libraries", "pg_once")];
    let mut cases = with(settings, "preloaded", &preload).await?;
    cases.extend(with(settings, "not preloaded", &[]).await?);
    Ok(cases)
}

async fn with(settings: &Settings, how: &str, more: &[(&str, &str)]) -> Result<Vec<Case>> {
    table::say(&format!("The first call of a fresh backend, {how}"));
    let database = Database::launch_with(settings, more).await?;
    let (client, rounds) = (&database.client, EACH * settings.rounds());
    jobs::make(&database).await?;
    let fill = Fill {
        sides: &["job"],
        // Each call moves a row of its own.
        jobs: u64::from(rounds) * CALLS.len() as u64,
        items: 0,
        cancelled: false,
    };
    fill.make(&database).await?;
    Side::Once.make(client, "bench").await?;
    let events = u64::from(rounds);
    Side::Once.fill(client, "bench", events, Keyed::No).await?;
    let mut runs = CALLS.map(|(name, _)| Runs::none(name, None));
    for n in 0..rounds as usize * CALLS.len() {
        // In each round another one is first.
        let at = (n / CALLS.len() + n) % CALLS.len();
        let (name, script) = CALLS[at];
        let first = first(&database, &statement(script, n + 1)).await;
        let (wall, cpu) = first.with_context(|| format!("the first {name}"))?;
        runs[at].push(1e6 / wall, Some(cpu));
    }
    let [mut raw, calls @ ..] = runs;
    raw.name = "a first raw INSERT".to_owned();
    // No more than the INSERT.
    raw.asked = (!more.is_empty()).then_some(Asked::Cpu(1.0));
    let case = |mut call: Runs| {
        let name = format!("first {} of a fresh backend, {how}", call.name);
        call.name = "pg_once".to_owned();
        Case::of(&name, Among::FinishedKeys(0), vec![call, raw.clone()])
    };
    Ok(calls.into_iter().map(case).collect())
}

/// The call of a script with the number `n` in its variables.
fn statement(script: &str, n: usize) -> String {
    let calls = script.lines().find(|line| !line.starts_with('\\'));
    let call = calls.unwrap_or_default().replace(" \\gset", "");
    call.replace(":request", &format!("'{REQUEST}'"))
        .replace(":fingerprint", &format!("'{FINGERPRINT}'"))
        .replace(":token", &n.to_string())
        .replace(":k", &format!("'{n}'"))
}

/// Microseconds that the client waited, and those of the backend's CPU.
async fn first(database: &Database, call: &str) -> Result<(f64, f64)> {
    let client = database.connect().await?;
    let newest = "SELECT pid::bigint FROM pg_stat_activity \
        WHERE backend_type = 'client backend' ORDER BY backend_start DESC LIMIT 1";
    let pid = database.number(newest).await?;
    tokio::time::sleep(REST).await;
    let (before, begin) = (cpu::of_process(pid)?, Instant::now());
    let rows = client.simple_query(call).await?;
    let wall = begin.elapsed();
    tokio::time::sleep(REST).await;
    let cpu = cpu::of_process(pid)? - before;
    let did = rows.iter().all(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).is_some_and(|first| DONE.contains(&first)),
        SimpleQueryMessage::CommandComplete(rows) => *rows == 1,
        _ => true,
    });
    ensure!(did, "it answered {rows:?}: {call}");
    Ok((wall.as_secs_f64() * 1e6, cpu))
}

//! Claims while another session calls the sweep task key_reap again and again without a pause, and without it.
//!
//! Invariant: the sweep has something to delete during the whole of a run, or the case fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail, ensure};
use tokio_postgres::Client;

use crate::cases::script;
use crate::database::Database;
use crate::measured::{Among, Case, Runs};
use crate::pgbench::{self, Run, Script, Until};
use crate::{stock, table};

const NAME: &str = "claim + complete while key_reap runs without a pause";
/// Of the same without key_reap: it may slow claims down by a fifth.
const AT_LEAST: f64 = 0.8;
/// More than one session can delete in a second.
const EXPIRED_PER_SECOND: u64 = 150_000;
/// The bound of one sweep; the default of the function.
const SWEEP: i32 = 1000;

const CLAIMS: Script<'static> = script!("claim_complete_once");

/// Runs all rounds.
pub async fn case(database: &Database) -> Result<Case> {
    table::begin(NAME, Among::FinishedKeys(0));
    let mut while_reaping = Runs::none("pg_once", None);
    let mut without = Runs::none("pg_once without key_reap", Some(AT_LEAST));
    let expired = EXPIRED_PER_SECOND * u64::from(database.settings.seconds());
    for round in 0..database.settings.rounds() {
        stock::remake_expired(database, expired).await?;
        // Both find the same number of expired keys in the table, as good as.
        if round % 2 == 0 {
            without.push(claims(database)?);
            while_reaping.push(claims_while_reaping(database).await?);
        } else {
            while_reaping.push(claims_while_reaping(database).await?);
            without.push(claims(database)?);
        }
    }
    Ok(Case::of(
        NAME,
        Among::FinishedKeys(0),
        vec![while_reaping, without],
    ))
}

/// The same where a table of `keys` finished keys stays as it is, a tenth of it expired in each round.
pub async fn case_among(database: &Database, keys: u64) -> Result<Case> {
    table::begin(NAME, Among::FinishedKeys(keys));
    if let Some(reason) = stock::room_for(keys, database.directory())? {
        bail!("no room for {keys} finished keys: {reason}");
    }
    stock::remake_finished(database, keys).await?;
    let mut while_reaping = Runs::none("pg_once", None);
    let mut without = Runs::none("pg_once without key_reap", Some(AT_LEAST));
    for round in 0..database.settings.rounds() {
        stock::fill_up_expired(database, keys / 10, round).await?;
        if round % 2 == 0 {
            without.push(claims(database)?);
            while_reaping.push(claims_while_reaping(database).await?);
        } else {
            while_reaping.push(claims_while_reaping(database).await?);
            without.push(claims(database)?);
        }
        table::say(&format!(
            "round {} of {}",
            round + 1,
            database.settings.rounds()
        ));
    }
    let sides = vec![while_reaping, without];
    Ok(Case::of(NAME, Among::FinishedKeys(keys), sides))
}

impl Runs {
    fn push(&mut self, run: Run) {
        self.per_second.push(run.per_second);
        self.cpu_us.extend(run.cpu_us);
    }
}

fn claims(database: &Database) -> Result<Run> {
    let until = Until::Seconds(database.settings.seconds());
    tokio::task::block_in_place(|| pgbench::run(database, CLAIMS, 0, until))
}

async fn claims_while_reaping(database: &Database) -> Result<Run> {
    let enough = Arc::new(AtomicBool::new(false));
    let session = database.connect().await?;
    let reaper = tokio::spawn(reap_until(session, Arc::clone(&enough)));
    let run = claims(database);
    enough.store(true, Ordering::Relaxed);
    let (reaped, last) = reaper.await??;
    ensure!(
        last == i64::from(SWEEP),
        "key_reap ran out of expired keys after {reaped}: the figure would be too good"
    );
    run
}

/// How many keys were deleted, and how many by the last sweep.
async fn reap_until(session: Client, enough: Arc<AtomicBool>) -> Result<(i64, i64)> {
    let sweep = session
        .prepare("SELECT done FROM once.sweep($1, 'key_reap')")
        .await?;
    let mut reaped = 0;
    let mut last = 0;
    while !enough.load(Ordering::Relaxed) {
        last = session.query_one(&sweep, &[&SWEEP]).await?.get(0);
        reaped += last;
    }
    Ok((reaped, last))
}

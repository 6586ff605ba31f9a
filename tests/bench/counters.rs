//! What counting claims costs: claim + complete in a database whose claims are counted, beside two where they are
//! not, all in one server.
//!
//! A server that has loaded the library from the beginning counts the claims of its first databases; one that comes
//! after the last of these runs the same code and counts nothing. So the sides share the server, its processes and
//! its library, and differ in the counting alone.
//!
//! Invariant: what two sides differ by that count nothing is noise, measured in the same rounds; the counters' cost is
//! asked to be less. Whether a side counts is asked of the server, before and after.

use anyhow::{Context, Result, ensure};
use tokio_postgres::Client;

use crate::cases::script;
use crate::database::Database;
use crate::measured::{Among, Bar, Case, Comparison, Results, Runs, Spread};
use crate::pgbench::{self, Script, Until};
use crate::settings::Settings;
use crate::table;

const NAME: &str = "claim + complete, counted or not";
const CLAIMS: Script<'static> = script!("claim_complete_once");

/// The sides' databases; the first is counted.
const SIDES: [(&str, &str); 3] = [
    ("counted", "counted"),
    ("plain_a", "not counted"),
    ("plain_b", "not counted, too"),
];
/// More databases than any server counts.
const MOST: u32 = 1_000;

/// A server that counts.
pub async fn launch(settings: &Settings) -> Result<Database> {
    let preloaded = [("shared_preload_libraries", "pg_once")];
    Database::launch_with(settings, &preloaded).await
}

/// Runs all rounds.
pub async fn measure(database: &Database, results: &mut Results) -> Result<()> {
    table::begin(NAME, Among::FinishedKeys(0));
    let sides = sides(database).await?;
    let mut runs = SIDES.map(|(_, name)| Runs::none(name, None));
    for round in 0..database.settings.rounds() as usize {
        for client in &sides {
            client.batch_execute("TRUNCATE once.key").await?;
        }
        for turn in 0..SIDES.len() {
            let at = (round + turn) % SIDES.len();
            let until = Until::Seconds(database.settings.seconds());
            let run = tokio::task::block_in_place(|| {
                pgbench::run_in(SIDES[at].0, database, CLAIMS, 0, until, &[])
            })?;
            runs[at].push(run.per_second, run.cpu_us);
        }
    }
    for (client, (name, _)) in sides.iter().zip(SIDES) {
        ensure!(
            counts(client).await? == (name == SIDES[0].0),
            "{name} has begun to count, or ceased to"
        );
    }
    results.comparisons.extend(compare(&runs)?);
    let case = Case::of(NAME, Among::FinishedKeys(0), runs.into());
    results.cases.push(case);
    Ok(())
}

/// The counted side beside each of the others, and these beside each other: in every round one ratio of each.
fn compare(runs: &[Runs; 3]) -> Result<[Comparison; 2]> {
    let [counted, a, b] = runs;
    let of = |what: &str, above: &[&Runs], below: &[&Runs]| {
        let joined = |side: &[&Runs], values: fn(&Runs) -> &Vec<f64>| -> Vec<f64> {
            side.iter().flat_map(|runs| values(runs).clone()).collect()
        };
        let spread = |values: fn(&Runs) -> &Vec<f64>| {
            Spread::of(&joined(above, values), &joined(below, values))
        };
        let cpu = Spread::of(
            &joined(below, |runs| &runs.cpu_us),
            &joined(above, |runs| &runs.cpu_us),
        );
        let throughput = spread(|runs| &runs.per_second).context("no round was run")?;
        anyhow::Ok(Comparison {
            what: what.to_owned(),
            throughput,
            cpu,
            bar: None,
        })
    };
    // Either of two equal sides may be the one above.
    let noise = of("noise: not counted / not counted", &[a, b], &[b, a])?;
    let mut cost = of("counted / not counted", &[counted, counted], &[a, b])?;
    cost.bar = Some(Bar {
        at_least: noise.throughput.lower_quartile,
        by_cpu: false,
        met: cost.throughput.median >= noise.throughput.lower_quartile,
    });
    Ok([cost, noise])
}

/// The sides' databases, each with a connection: one that is counted, and two that came too late.
async fn sides(database: &Database) -> Result<Vec<Client>> {
    let counted = database.create(SIDES[0].0).await?;
    ensure!(
        counts(&counted).await?,
        "the server counts no claims: is the library preloaded?"
    );
    take_every_place(database).await?;
    let mut sides = vec![counted];
    for (name, _) in &SIDES[1..] {
        let client = database.create(name).await?;
        ensure!(!counts(&client).await?, "{name} is counted");
        sides.push(client);
    }
    Ok(sides)
}

/// Makes databases until one is not counted. Dropped, they keep their places until the server is restarted.
async fn take_every_place(database: &Database) -> Result<()> {
    drop(database.create("model").await?);
    for _ in 0..MOST {
        let make = "CREATE DATABASE place TEMPLATE model";
        database.client.batch_execute(make).await.context(make)?;
        let client = database.connect_to("place").await?;
        let counted = counts(&client).await?;
        drop(client);
        let drop = "DROP DATABASE place WITH (FORCE)";
        database.client.batch_execute(drop).await.context(drop)?;
        if !counted {
            return Ok(());
        }
    }
    anyhow::bail!("the claims of {MOST} databases are counted, and more")
}

/// Claims of its database are counted; one that there is still room for has its place from now on.
async fn counts(client: &Client) -> Result<bool> {
    let query = "SELECT count(*) > 0 FROM once.metrics() WHERE name = 'pg_once_claims_total'";
    Ok(client.query_one(query, &[]).await?.get(0))
}

//! What calls write: bytes of WAL and of table, and how many updates were HOT.
//!
//! These are counts, not speeds: a busy machine does not change them.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use serde::Serialize;
use tokio_postgres::Row;

use crate::cases::{APPLICATION, LEAN, ONCE, PLPGSQL, RAW, script};
use crate::database::Database;
use crate::pgbench::{self, Script, Until};
use crate::settings::Settings;
use crate::table;

/// Claim and complete pairs of one measurement, about.
const PAIRS: u32 = 20_000;
/// Keys that each client holds at once where keys are long in work.
const IN_FLIGHT: u32 = 20;

/// What one call (or pair of calls) costs.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub what: String,
    pub side: String,
    /// Whether keys are completed at once, or after others were claimed.
    pub in_flight_per_client: u32,
    pub wal_bytes: f64,
    pub heap_bytes: f64,
    pub index_bytes: f64,
    /// Whole pages in the WAL.
    pub pages: f64,
    /// Of all updates.
    pub hot_share: f64,
}

/// What is measured; the tables are as it shall find them.
pub struct Work<'a> {
    pub what: &'a str,
    pub side: &'a str,
    /// The tables that it writes to.
    pub tables: &'a [&'a str],
    pub script: Script<'a>,
    pub stock: u64,
    pub until: Until,
    /// Calls (or pairs) of one script.
    pub in_flight: u32,
}

/// Each side's name, its table and its script.
const SIDES: [(&str, [&str; 1], Script<'static>); 5] = [
    (ONCE, ["once.key"], script!("claim_complete_once")),
    (RAW, ["raw.key"], script!("claim_complete_raw")),
    (LEAN, ["raw.lean"], script!("claim_complete_lean")),
    (PLPGSQL, ["plpgsql.key"], script!("claim_complete_plpgsql")),
    (
        APPLICATION,
        ["application.key"],
        script!("claim_complete_application"),
    ),
];

/// Every side's claim and completion of a key.
pub async fn of_keys(database: &Database) -> Result<Vec<Cost>> {
    table::say("What a claim and its completion write");
    let mut works = Vec::new();
    for (side, tables, script) in &SIDES {
        works.push((side, tables, *script, 1));
    }
    let texts = [0, 1].map(|i: usize| in_flight(SIDES[i].2.text));
    for ((side, tables, _), text) in SIDES.iter().zip(&texts) {
        let script = Script {
            name: "in_flight",
            text,
        };
        works.push((side, tables, script, IN_FLIGHT));
    }
    let mut costs = Vec::new();
    for (side, tables, script, in_flight) in works {
        empty(database, tables).await?;
        let work = Work {
            what: "claim + complete",
            side,
            tables,
            script,
            stock: 0,
            until: Until::Transactions((PAIRS / in_flight / database.settings.clients).max(1)),
            in_flight,
        };
        costs.push(one(database, &work).await?);
    }
    Ok(costs)
}

async fn empty(database: &Database, tables: &[&str]) -> Result<()> {
    let empty = format!("TRUNCATE {}; CHECKPOINT", tables.join(", "));
    Ok(database.client.batch_execute(&empty).await?)
}

/// Claims of each side before it is measured with checkpoints: more than a minute's.
const GROWN: u32 = 1_000_000;
/// A minute for two checkpoints, at the same pace on each side, so that as much is written between them.
const PACE: Until = Until::Paced(60, 2_000);

/// A server that makes a checkpoint each 30 s.
pub async fn launch(settings: &Settings) -> Result<Database> {
    Database::launch_with(settings, &[("checkpoint_timeout", "30s")]).await
}

/// The same claims and completions, in tables that grew by them.
pub async fn with_checkpoints(database: &Database) -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for (side, tables, script) in SIDES.iter().take(3) {
        table::say(&format!("What is written with checkpoints: {side}"));
        empty(database, tables).await?;
        let grow = Until::Transactions(GROWN / database.settings.clients);
        tokio::task::block_in_place(|| pgbench::run(database, *script, 0, grow))?;
        let begin = database.number(POSITION).await?;
        let work = Work {
            what: "claim + complete, a checkpoint each 30 s",
            side,
            tables,
            script: *script,
            stock: 0,
            until: PACE,
            in_flight: 1,
        };
        costs.push(one(database, &work).await?);
        let checkpoint = database.number(CHECKPOINT).await?;
        ensure!(checkpoint > begin, "no checkpoint was made meanwhile");
    }
    Ok(costs)
}

/// Of the tables in $1.
const SIZES: &str = "SELECT sum(pg_relation_size(t::regclass))::float8, \
    sum(pg_indexes_size(t::regclass))::float8 FROM unnest($1::text[]) t";
const HOT: &str = "SELECT coalesce(sum(n_tup_hot_upd)::float8 / nullif(sum(n_tup_upd), 0), 0)::float8 \
    FROM pg_stat_user_tables WHERE relid = ANY ($1::text[]::regclass[])";
const RESET: &str =
    "SELECT pg_stat_reset_single_table_counters(t::regclass) FROM unnest($1::text[]) t";
/// Bytes and whole pages of the log so far.
const WRITTEN: &str = "SELECT wal_bytes::float8, wal_fpi::float8 FROM pg_stat_wal";
/// Where the last checkpoint began, in bytes of the log.
const CHECKPOINT: &str = "SELECT (redo_lsn - '0/0')::bigint FROM pg_control_checkpoint()";
/// Where the log ends, in bytes.
pub const POSITION: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";

/// One side's.
pub async fn one(database: &Database, work: &Work<'_>) -> Result<Cost> {
    let client = &database.client;
    client.execute(RESET, &[&work.tables]).await?;
    let size = client.query_one(SIZES, &[&work.tables]).await?;
    let before = client.query_one(WRITTEN, &[]).await?;
    let run = tokio::task::block_in_place(|| {
        pgbench::run(database, work.script, work.stock, work.until)
    })?;
    let written = client.query_one(WRITTEN, &[]).await?;
    let calls = run.count * f64::from(work.in_flight);
    let now = client.query_one(SIZES, &[&work.tables]).await?;
    let per_call = |now: &Row, before: &Row, i| {
        (now.get::<usize, f64>(i) - before.get::<usize, f64>(i)) / calls
    };
    Ok(Cost {
        what: work.what.to_owned(),
        side: work.side.to_owned(),
        in_flight_per_client: work.in_flight,
        wal_bytes: per_call(&written, &before, 0),
        pages: per_call(&written, &before, 1),
        heap_bytes: per_call(&now, &size, 0),
        index_bytes: per_call(&now, &size, 1),
        hot_share: client.query_one(HOT, &[&work.tables]).await?.get(0),
    })
}

/// The script of claim and complete, with several keys between the two calls: its first lines set the
/// variables, one line claims, one completes.
fn in_flight(script: &str) -> String {
    let mut text = String::new();
    let (set, calls): (Vec<&str>, Vec<&str>) =
        script.lines().partition(|line| line.starts_with('\\'));
    for line in set {
        text.push_str(line);
        text.push('\n');
    }
    for i in 0..IN_FLIGHT {
        // Writing to a String does not fail.
        let _ = writeln!(text, "\\set k{i} :k + {i}");
    }
    for call in calls {
        for i in 0..IN_FLIGHT {
            let call = call.replace(":k", &format!(":k{i}"));
            let call = if call.ends_with("\\gset") {
                call.replace("\\gset", &format!("\\gset p{i}_"))
            } else if script.contains("\\gset") {
                call.replace(":token", &format!(":p{i}_token"))
            } else {
                call
            };
            text.push_str(&call);
            text.push('\n');
        }
    }
    text
}

//! What a claim and its completion write: bytes of WAL and of table, and how many updates were HOT.
//!
//! These are counts, not speeds: a busy machine does not change them.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use crate::cases::script;
use crate::database::{Database, TABLES};
use crate::pgbench::{self, Script, Until};
use crate::table;

/// Claim and complete pairs of one measurement, about.
const PAIRS: u32 = 20_000;
/// Keys that each client holds at once where keys are long in work.
const IN_FLIGHT: u32 = 20;

/// What one pair of claim and complete costs.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub side: String,
    /// Whether keys are completed at once, or after others were claimed.
    pub in_flight_per_client: u32,
    pub wal_bytes: f64,
    pub heap_bytes: f64,
    pub index_bytes: f64,
    /// Of all updates.
    pub hot_share: f64,
}

/// Every side's.
pub async fn all(database: &Database) -> Result<Vec<Cost>> {
    table::say("What a claim and its completion write");
    let sides = [
        ("pg_once", TABLES[0], script!("claim_complete_once")),
        (
            "raw INSERT + UPDATE",
            TABLES[1],
            script!("claim_complete_raw"),
        ),
        (
            "PL/pgSQL functions",
            TABLES[2],
            script!("claim_complete_plpgsql"),
        ),
        (
            "application, 8 round trips",
            TABLES[3],
            script!("claim_complete_application"),
        ),
    ];
    let mut costs = Vec::new();
    for (side, table, script) in sides {
        costs.push(one(database, side, table, script, 1).await?);
    }
    for (side, table, script) in &sides[..2] {
        let text = in_flight(script.text);
        let script = Script {
            name: "in_flight",
            text: &text,
        };
        costs.push(one(database, side, table, script, IN_FLIGHT).await?);
    }
    Ok(costs)
}

async fn one(
    database: &Database,
    side: &str,
    table: &str,
    script: Script<'_>,
    in_flight: u32,
) -> Result<Cost> {
    let clean = format!(
        "TRUNCATE {0}; SELECT pg_stat_reset_single_table_counters('{0}'::regclass); CHECKPOINT",
        table
    );
    database.client.batch_execute(&clean).await?;
    let position = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
    let before = database.number(position).await?;
    let each = PAIRS / in_flight / database.settings.clients;
    let run = tokio::task::block_in_place(|| {
        pgbench::run(database, script, 0, Until::Transactions(each.max(1)))
    })?;
    let written = database.number(position).await? - before;
    let row = database
        .client
        .query_one(
            "SELECT n_tup_hot_upd::float8 / n_tup_upd, pg_relation_size(relid)::float8, \
             pg_indexes_size(relid)::float8 FROM pg_stat_user_tables WHERE relid = $1::text::regclass",
            &[&table],
        )
        .await?;
    let pairs = run.count * f64::from(in_flight);
    Ok(Cost {
        side: side.to_owned(),
        in_flight_per_client: in_flight,
        wal_bytes: written as f64 / pairs,
        heap_bytes: row.get::<_, f64>(1) / pairs,
        index_bytes: row.get::<_, f64>(2) / pairs,
        hot_share: row.get(0),
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

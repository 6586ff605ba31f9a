//! Emits of one event per transaction, through pgbench: beside a raw INSERT and pgmq.send.

use anyhow::Result;

use crate::cases::script;
use crate::database::Database;
use crate::measured::{Among, Asked, Case};
use crate::outbox::place::install_pgmq;
use crate::outbox::side::Side;
use crate::pgbench::{Script, Until};
use crate::rounds::{Before, Contender, Contest, Proof};

const OF_RAW: Asked = Asked::Cpu(1.0);
const OF_PGMQ: Asked = Asked::Throughput(2.0);

const TABLES: &str = include_str!("sql/tables.sql");

fn contender(
    name: &'static str,
    script: Script<'static>,
    asked: Option<Asked>,
    query: &'static str,
) -> Contender {
    Contender {
        proof: Some(Proof { query, per_call: 1 }),
        ..Contender::of(name, script, asked)
    }
}

/// All sides.
pub async fn one_by_one(database: &Database) -> Result<Case> {
    database.client.batch_execute(TABLES).await?;
    Side::Once.make(&database.client, "bench").await?;
    let mut contenders = vec![
        contender(
            "pg_once",
            script!("emit_once"),
            None,
            "SELECT (SELECT count(*) FROM once.event_0) + (SELECT count(*) FROM once.event_1) \
                  + (SELECT count(*) FROM once.event_2) + (SELECT count(*) FROM once.event_3)",
        ),
        contender(
            "raw INSERT, same columns and indexes",
            script!("emit_raw"),
            Some(OF_RAW),
            "SELECT count(*) FROM raw.event",
        ),
        contender(
            "raw INSERT, a plain table",
            script!("emit_plain"),
            None,
            "SELECT count(*) FROM raw.outbox",
        ),
    ];
    if database.settings.pgmq().is_some() {
        install_pgmq(database, &database.client).await?;
        Side::Pgmq.make(&database.client, "bench").await?;
        contenders.push(contender(
            "pgmq.send",
            script!("emit_pgmq"),
            Some(OF_PGMQ),
            "SELECT count(*) FROM pgmq.q_bench",
        ));
    }
    let contest = Contest {
        name: "emit, one by one",
        among: Among::Events(0),
        stock: 0,
        before_round: Before::Nothing,
        until: Until::Seconds(database.settings.seconds()),
        contenders,
    };
    let case = contest.run(database).await?;
    // Nobody consumes these.
    Side::Once.discard(&database.client, "bench").await?;
    Ok(case)
}

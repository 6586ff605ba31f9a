//! The story of the growth: the order service under load while one server becomes more. By hand a customer's server is
//! `hash % servers`; with pg_once it is one of 16 shards, which move as whole databases.

mod by_hand;
mod by_shards;
mod case;
mod database;
mod load;
mod proof;
mod verdict;

use std::time::Duration;

use anyhow::Result;
use pg_once_tests::PgBouncer;

use crate::ground::Ground;
use crate::orders::KINDS;
use crate::settings::Settings;
use crate::story::{Card, Story, run_wanted};
use case::Case;

const HEADLINES: [&str; 4] = [
    "orders made",
    "double charges",
    "orders made twice",
    "longest time to an answer",
];

fn cases(settings: &Settings) -> [Case; 2] {
    let asked = settings.growth_orders as usize;
    let window = Duration::from_secs(settings.growth_seconds.into());
    [
        Case {
            card: Card {
                name: "growth_naive",
                title: "hash % servers",
                explain: "One server becomes two, and then three: rows are copied, the new configuration is rolled out \
                          one instance at a time, and what came in meanwhile is copied after it. Nothing is killed.",
                pg_once: false,
                asked,
            },
            window,
        },
        Case {
            card: Card {
                name: "growth_pg_once",
                title: "pg_once, 16 shards",
                explain: "A split puts eight of the 16 shards on a second cluster, then one more follows by replication. \
                          The pooler and the cluster that it leaves are killed in the middle of that, and the operator \
                          runs the same command again.",
                pg_once: true,
                asked,
            },
            window,
        },
    ]
}

pub async fn tell(ground: &Ground<'_>) -> Result<Story> {
    let mut cases = Vec::from(cases(ground.settings));
    if let Err(error) = PgBouncer::find() {
        eprintln!("Left out, the story of the growth: {error}");
        cases.clear();
    }
    let runs = run_wanted(cases, ground).await?;
    Ok(Story {
        title: "The same growth, from one server to more",
        lead: "Clients send <code>POST /orders</code> with an Idempotency-Key while servers are added. Answers get lost \
               and clients retry; one in three asks again seconds later. The bank forgets keys, but can be asked."
            .to_owned(),
        headlines: &HEADLINES,
        evidence: "the tables `orders` of all servers (`found`), the bank's own ledger (`bank_ledger`), what was asked \
                   for (`asked`) and every answer that a client got (`saw`)",
        kinds: &KINDS,
        after_load: "a change may still come to its end",
        runs,
    })
}

//! Ten million events have passed through a topic and a million of its events are dead: take and ack
//! there, beside a new topic in the same database and beside one in a new database.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use crate::database::Database;
use crate::measured::{Among, Asked, Case, Runs};
use crate::outbox::drain::Drain;
use crate::outbox::flow::{Flow, Until};
use crate::outbox::place::Place;
use crate::outbox::side::{Keyed, Side, Worker};
use crate::table;

/// Within 10 % of a new topic.
const OF_NEW: Asked = Asked::Throughput(0.9);
/// How many dead letters are made in one call.
const AT_ONCE: i32 = 10_000;

/// Makes the past, and measures.
pub async fn after_many(database: &Database) -> Result<Case> {
    let passed = database.settings.events() * 10;
    let dead = database.settings.events();
    // So many that a drain takes seconds, and a tenth can be told from noise.
    let each = dead / 2;
    let name = format!(
        "take + ack by 100, 8 workers, after many events and {} dead letters",
        table::grouped(dead as f64)
    );
    table::say(&format!("{name}: {passed} events"));
    let old = Place::make(database, "passed").await?;
    let fresh = Place::make(database, "fresh").await?;
    Side::Once.make(&old.client, "old").await?;
    pass(&old, passed).await?;
    bury(&old, dead).await?;
    let mut runs = [
        Runs::none("pg_once", None),
        Runs::none("pg_once, a new topic beside it", Some(OF_NEW)),
        Runs::none("pg_once, a new topic in a new database", Some(OF_NEW)),
    ];
    for round in 0..database.settings.rounds() {
        let new = format!("new{round}");
        for place in [&old, &fresh] {
            Side::Once.make(&place.client, &new).await?;
        }
        let sides = [(&old, "old"), (&old, new.as_str()), (&fresh, new.as_str())];
        for turn in 0..sides.len() {
            let at = (turn + round as usize) % sides.len();
            let (place, queue) = sides[at];
            Side::Once
                .fill(&place.client, queue, each, Keyed::No)
                .await?;
            let drain = Drain {
                side: Side::Once,
                queue,
                workers: 8,
                by: 100,
                synchronous: false,
                events: each,
                limit: Duration::from_secs(60),
            };
            let drained = drain.run(place).await?;
            ensure!(
                drained.events == each,
                "{queue}: {} of {each} events were delivered",
                drained.events
            );
            runs[at].push(drained.per_second, drained.cpu_us);
            place.sweep().await?;
        }
    }
    old.remove().await?;
    fresh.remove().await?;
    Ok(Case::of(&name, Among::Events(passed), runs.into()).counting("events"))
}

/// As many events are emitted and consumed.
async fn pass(place: &Place<'_>, events: u64) -> Result<()> {
    let flow = Flow {
        side: Side::Once,
        queue: "old",
        producers: 2,
        workers: 2,
        by: 1000,
        until: Until::Events(events),
    };
    flow.run(place).await?;
    Ok(())
}

async fn bury(place: &Place<'_>, events: u64) -> Result<()> {
    Side::Once
        .fill(&place.client, "old", events, Keyed::No)
        .await?;
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let worker = Worker::new(Side::Once, place.connect().await?, "old", AT_ONCE).await?;
        tasks.spawn(async move {
            let mut buried = 0;
            loop {
                match worker.take_and_bury().await? {
                    0 => return anyhow::Ok(buried),
                    n => buried += n,
                }
            }
        });
    }
    let mut buried = 0;
    while let Some(ended) = tasks.join_next().await {
        buried += ended??;
    }
    ensure!(buried == events, "{buried} of {events} events are dead");
    place.sweep().await
}

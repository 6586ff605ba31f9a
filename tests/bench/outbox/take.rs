//! Take and ack of a backlog: beside pgmq's read and delete, and with order keys beside without.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::database::Database;
use crate::measured::{Among, Asked, Case, Runs};
use crate::outbox::drain::Drain;
use crate::outbox::place::Place;
use crate::outbox::side::{Keyed, Side};
use crate::table;

/// What is asked for of (workers, max, synchronous_commit).
const BARS: [(u32, i32, bool, f64); 6] = [
    (1, 100, false, 5.0),
    (8, 100, false, 5.0),
    (1, 10, false, 3.0),
    (8, 10, false, 1.5),
    (8, 100, true, 2.0),
    (8, 10, true, 0.9),
];
/// With order keys, of without.
const OF_UNKEYED: Asked = Asked::Throughput(0.5);
const WORKERS: u32 = 8;

/// More than any side can deliver in one run, by the max of a take.
fn backlog(database: &Database, by: i32) -> u64 {
    let per_second = if by < 100 { 15_000 } else { 40_000 };
    per_second * u64::from(database.settings.seconds())
}

/// Every case beside pgmq.
pub async fn beside_pgmq(database: &Database) -> Result<Vec<Case>> {
    let place = Place::make(database, "take").await?;
    let mut cases = Vec::new();
    for (workers, by, synchronous, bar) in BARS {
        let on = if synchronous { "on" } else { "off" };
        let name = format!("take + ack by {by}, {workers} workers, synchronous_commit {on}")
            .replace("1 workers", "1 worker");
        table::say(&name);
        let mut ours = Runs::none(Side::Once.name(), None);
        let mut pgmq = Runs::none("pgmq, read + delete", Some(Asked::Throughput(bar)));
        let events = backlog(database, by);
        for round in 0..database.settings.rounds() {
            let queue = format!("q{}_{round}", cases.len());
            let mut sides = place.sides().to_vec();
            if round % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                side.make(&place.client, &queue).await?;
                side.fill(&place.client, &queue, events, Keyed::No).await?;
                let drain = Drain {
                    side,
                    queue: &queue,
                    workers,
                    by,
                    synchronous,
                    events,
                    limit: Duration::from_secs(u64::from(database.settings.seconds())),
                };
                let drained = drain.run(&place).await?;
                ensure!(
                    drained.events <= events,
                    "{name}: {} delivered {} of {events} events",
                    side.name(),
                    drained.events
                );
                match side {
                    Side::Once => ours.push(drained.per_second, drained.cpu_us),
                    Side::Pgmq => pgmq.push(drained.per_second, drained.cpu_us),
                }
                side.discard(&place.client, &queue).await?;
            }
            place.sweep().await?;
        }
        let mut runs = vec![ours];
        if place.sides().contains(&Side::Pgmq) {
            runs.push(pgmq);
        }
        cases.push(Case::of(&name, Among::Events(0), runs).counting("events"));
    }
    place.remove().await?;
    Ok(cases)
}

/// Ten thousand keys, eight workers.
pub async fn with_keys(database: &Database) -> Result<Case> {
    let name = "take + ack by 100, 8 workers, 10,000 order keys";
    table::say(name);
    let place = Place::make(database, "keys").await?;
    let mut keyed = Runs::none("pg_once", None);
    let mut unkeyed = Runs::none("pg_once without order keys", Some(OF_UNKEYED));
    let events = backlog(database, 100);
    for round in 0..database.settings.rounds() {
        let mut turns = [Keyed::Yes, Keyed::No];
        if round % 2 == 1 {
            turns.reverse();
        }
        for with in turns {
            let queue = format!("q{round}_{}", with == Keyed::Yes);
            Side::Once.make(&place.client, &queue).await?;
            Side::Once.fill(&place.client, &queue, events, with).await?;
            let drain = Drain {
                side: Side::Once,
                queue: &queue,
                workers: WORKERS,
                by: 100,
                synchronous: false,
                events,
                limit: Duration::from_secs(60),
            };
            let drained = drain.run(&place).await?;
            ensure!(
                drained.events == events,
                "{name}: {} of {events} events were delivered",
                drained.events
            );
            match with {
                Keyed::Yes => keyed.push(drained.per_second, drained.cpu_us),
                Keyed::No => unkeyed.push(drained.per_second, drained.cpu_us),
            }
            Side::Once.discard(&place.client, &queue).await?;
        }
        place.sweep().await?;
    }
    place.remove().await?;
    let runs = vec![keyed, unkeyed];
    Ok(Case::of(name, Among::Events(events), runs).counting("events"))
}

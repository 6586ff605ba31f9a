//! A receiver that was down for a million events or more, while an old snapshot is held: how fast its workers
//! go on, beside a queue that was never behind.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::database::{Database, SNAPSHOT};
use crate::measured::{Among, Asked, Case, Runs};
use crate::outbox::drain::Drain;
use crate::outbox::place::Place;
use crate::outbox::side::{Keyed, Side};
use crate::table;

/// Of the normal rate.
const OF_NORMAL: Asked = Asked::Throughput(0.5);
/// What a queue that was never behind is measured with.
const NORMAL: u64 = 100_000;
/// Far more than any of it takes.
const LIMIT: Duration = Duration::from_secs(600);

fn drain(queue: &str, events: u64) -> Drain<'_> {
    Drain {
        side: Side::Once,
        queue,
        workers: 8,
        by: 100,
        synchronous: false,
        events,
        limit: LIMIT,
    }
}

/// The backlog is worked off in one part for each round, and beside each part a new queue in a
/// database without backlog, where nobody holds a snapshot.
pub async fn after_a_backlog(database: &Database) -> Result<Case> {
    let name = "take + ack by 100, 8 workers, after the receiver was down, an old snapshot held";
    let rounds = u64::from(database.settings.rounds());
    let some = NORMAL.min(database.settings.events());
    // Each round has as many as the other side, or more.
    let events = database.settings.events().max(some * rounds);
    table::say(&format!("{name}: {events} events"));
    let down = Place::make(database, "down").await?;
    let up = Place::make(database, "up").await?;
    let mut late = Runs::none("pg_once", None);
    let mut normal = Runs::none("pg_once, never behind", Some(OF_NORMAL));
    Side::Once.make(&down.client, "down").await?;
    let holder = down.connect().await?;
    holder.batch_execute(SNAPSHOT).await?;
    // The janitor comes while it is down.
    let tenth = events / 10;
    for _ in 0..10 {
        Side::Once
            .fill(&down.client, "down", tenth, Keyed::No)
            .await?;
        down.sweep().await?;
    }
    let mut left = tenth * 10;
    for round in 0..rounds {
        let queue = format!("up{round}");
        Side::Once.make(&up.client, &queue).await?;
        Side::Once.fill(&up.client, &queue, some, Keyed::No).await?;
        let drained = drain(&queue, some).run(&up).await?;
        normal.push(drained.per_second, drained.cpu_us);
        up.sweep().await?;
        let drained = drain("down", left / (rounds - round)).run(&down).await?;
        late.push(drained.per_second, drained.cpu_us);
        left = left
            .checked_sub(drained.events)
            .context("an event was delivered twice")?;
        down.sweep().await?;
    }
    ensure!(left == 0, "{name}: {left} events were not delivered");
    holder.batch_execute("COMMIT").await?;
    down.remove().await?;
    up.remove().await?;
    let runs = vec![late, normal];
    Ok(Case::of(name, Among::Events(events), runs).counting("events"))
}

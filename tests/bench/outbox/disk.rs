//! What the outbox leaves on disk: after a million events have been consumed, and while a million
//! events pass beside a dead subscriber of another topic.
//!
//! Invariant: sizes are of all the extension's tables with their indexes and TOAST, in a database
//! where nothing else has happened.

use anyhow::Result;

use crate::database::Database;
use crate::measured::{Figure, median};
use crate::outbox::flow::{BACKLOG, Flow, Until};
use crate::outbox::place::Place;
use crate::outbox::side::{Keyed, Side, Worker};
use crate::table;

/// Tables may be that large whatever the backlog was.
const SMALL: u64 = 64_000_000;
/// Events that a dead subscriber has not seen.
const UNSEEN: u64 = 1_000;
/// "Not raised", for peaks: the janitor gets its turn a moment earlier or later, and the median of three runs
/// does not take all of that away, so a loaded machine may miss it by chance.
const NOT_RAISED: f64 = 1.1;
/// The same after the sweeps, where what the dead subscriber has not seen is still there.
const NOT_RAISED_SWEPT: f64 = 1.1;
const RUNS: u32 = 3;

async fn flow(place: &Place<'_>, queue: &str) -> Result<u64> {
    let flow = Flow {
        side: Side::Once,
        queue,
        producers: 2,
        workers: 2,
        by: 100,
        until: Until::Events(place.database.settings.events()),
    };
    Ok(flow.run(place).await?.peak)
}

/// All are consumed, with a bounded backlog; then the sweeps run.
pub async fn after_a_flow(database: &Database) -> Result<Vec<Figure>> {
    let events = table::grouped(database.settings.events() as f64);
    table::say(&format!("On disk after {events} events"));
    database.set_autovacuum(true).await?;
    let place = Place::make(database, "size").await?;
    let empty = place.on_disk().await?;
    Side::Once.make(&place.client, "size").await?;
    Side::Once
        .fill(&place.client, "size", BACKLOG, Keyed::No)
        .await?;
    let backlog = place.on_disk().await?.saturating_sub(empty);
    let peak = flow_after_a_fill(&place).await?;
    let after = place.sweep_to_the_end().await?;
    place.remove().await?;
    database.set_autovacuum(false).await?;
    let most = SMALL.max(2 * backlog);
    Ok(vec![
        Figure::size(
            format!("on disk while {events} events are consumed"),
            peak as f64,
            None,
        ),
        Figure::size(
            format!("on disk after {events} events were consumed, swept"),
            after as f64,
            Some(most as f64),
        ),
    ])
}

/// What the fill emitted is consumed first, so that the flow's count comes out even.
async fn flow_after_a_fill(place: &Place<'_>) -> Result<u64> {
    let worker = Worker::new(Side::Once, place.connect().await?, "size", 100).await?;
    while worker.take_and_ack().await? > 0 {}
    drop(worker);
    flow(place, "size").await
}

/// Sizes of the same flow, without and with a subscriber of another topic that never comes.
pub async fn beside_a_dead_subscriber(database: &Database) -> Result<Vec<Figure>> {
    let events = table::grouped(database.settings.events() as f64);
    table::say(&format!(
        "On disk while {events} events pass a dead subscriber"
    ));
    database.set_autovacuum(true).await?;
    let mut peaks = [Vec::new(), Vec::new()];
    let mut swept = [Vec::new(), Vec::new()];
    for run in 0..RUNS.min(database.settings.rounds()) {
        for dead in [false, true] {
            let place = Place::make(database, &format!("dead_{dead}_{run}")).await?;
            Side::Once.make(&place.client, "other").await?;
            if dead {
                Side::Once.make(&place.client, "dead").await?;
                Side::Once
                    .fill(&place.client, "dead", UNSEEN, Keyed::No)
                    .await?;
            }
            peaks[usize::from(dead)].push(flow(&place, "other").await? as f64);
            swept[usize::from(dead)].push(place.sweep_to_the_end().await? as f64);
            place.remove().await?;
        }
    }
    database.set_autovacuum(false).await?;
    let mut sizes = Vec::new();
    for (moment, sizes_then, most) in [
        ("on disk, peak while", peaks, NOT_RAISED),
        ("on disk, swept after", swept, NOT_RAISED_SWEPT),
    ] {
        let [without, with] = sizes_then.map(|sizes| median(sizes).unwrap_or_default());
        let what = |who: &str| format!("{moment} {events} events pass, {who} dead subscriber");
        sizes.push(Figure::size(what("no"), without, None));
        let most = Some(without * most);
        sizes.push(Figure::size(what("beside a"), with, most));
    }
    Ok(sizes)
}

//! Takes that find nothing, while retries wait for their backoff, and while an old snapshot is held.
//!
//! Invariant: no take finds an event, and equally many events have passed through each topic.

use anyhow::{Context, Result, ensure};

use crate::database::{Database, SNAPSHOT};
use crate::measured::{Figure, median};
use crate::outbox::place::Place;
use crate::outbox::side::{Keyed, Side, Worker};
use crate::pgbench::{self, Script, Until};
use crate::table;

const WAITING: [i64; 3] = [0, 3, 1000];
/// Of the server's CPU for each take.
const AT_MOST_US: f64 = 30.0;
const EVENTS: u64 = 2_000;
/// Of a round.
const TAKES: Until = Until::Transactions(10_000);

/// What a statement costs that does nothing, on this machine.
const NOTHING: &str = "SELECT 1;";
/// Takes and nacks at most $2 events.
const DEFER: &str = "SELECT count(n.event_id) FROM \
    (SELECT token, array_agg(event_id) AS ids FROM once.outbox_take($1, 'default', $2) GROUP BY token) t, \
    LATERAL once.outbox_nack($1, 'default', t.token, t.ids, retry_after => '1 day') n";
/// The events that a take has found.
const FOUND: &str =
    "SELECT count(*) FROM once.outbox_peek($1, max => 10000) WHERE state = 'leased'";

/// Without the snapshot and with it.
pub async fn takes(database: &Database) -> Result<Vec<Figure>> {
    table::say("Idle takes");
    let place = Place::make(database, "idle").await?;
    let holder = place.connect().await?;
    let on_idle = |text: &str| tokio::task::block_in_place(|| one(&place, text));
    let what = |call: &str| format!("server CPU of {call}");
    let mut figures = vec![Figure::of(what("SELECT 1"), on_idle(NOTHING)?, "µs", None)];
    for (held, begin) in [("", ""), (", an old snapshot held", SNAPSHOT)] {
        holder.batch_execute(begin).await?;
        for waiting in WAITING {
            let topic = format!("{waiting}{held}");
            prepare(&place, &topic, waiting).await?;
            let us = on_idle(&format!(
                "SELECT * FROM once.outbox_take('{topic}', 'default', 10);"
            ))?;
            let found: i64 = place.client.query_one(FOUND, &[&topic]).await?.get(0);
            ensure!(found == 0, "a take of {topic} found an event");
            let what = what(&format!(
                "an idle outbox_take, {waiting} retries waiting{held}"
            ));
            figures.push(Figure::of(what, us, "µs", Some(AT_MOST_US)));
        }
    }
    drop(holder);
    place.remove().await?;
    Ok(figures)
}

/// A topic whose events are acked, but for those that wait.
async fn prepare(place: &Place<'_>, topic: &str, waiting: i64) -> Result<()> {
    let client = &place.client;
    Side::Once.make(client, topic).await?;
    Side::Once.fill(client, topic, EVENTS, Keyed::No).await?;
    let mut missing = waiting;
    while missing > 0 {
        let most = i32::try_from(missing)?;
        let deferred: i64 = client.query_one(DEFER, &[&topic, &most]).await?.get(0);
        ensure!(deferred > 0, "no event is left to be deferred");
        missing -= deferred;
    }
    let worker = Worker::new(Side::Once, place.connect().await?, topic, 100).await?;
    while worker.take_and_ack().await? > 0 {}
    Ok(())
}

/// The median of the rounds' CPU microseconds for each run of a statement that finds nothing, by one client.
fn one(place: &Place<'_>, text: &str) -> Result<f64> {
    let database = place.database;
    let script = Script { name: "idle", text };
    let round = |_| {
        let run = pgbench::run_in("idle", database, script, 0, TAKES, &["--client=1"])?;
        run.cpu_us.context("/proc does not tell the CPU time")
    };
    let rounds: Result<Vec<f64>> = (0..database.settings.rounds()).map(round).collect();
    median(rounds?).context("no round was run")
}

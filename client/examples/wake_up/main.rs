//! Waking workers in other processes, without a NOTIFY in any emitting transaction.
//!
//! `cargo run -p pg-once --example wake_up -- --database-url postgres://localhost/mydb`, in a database where
//! `CREATE EXTENSION pg_once` was done. An idle worker polls at least once a second by default; a ring (a NOTIFY) is
//! for events that must be delivered sooner. The program runs three cases (an idle worker is woken; many commits and
//! few rings; the connections of both ends are cut) and fails if one case fails. `bell.rs` is the part to read.

mod bell;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each story uses a part of it")]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use pg_once::{EmitOptions, Event, Json, Topic, Undelivered, Waker};
use tokio::time::sleep;
use tokio_postgres::Config;

use bell::{Bell, listen};
use common::worker::Args;
use common::{Story, expect, log, until};

/// The shortest time between two rings.
const PAUSE: Duration = Duration::from_millis(100);
/// A worker that waits for this long before it asks again is idle.
const IDLE: Duration = Duration::from_millis(1500);
const BURST: usize = 300;
/// The time of the worker's last take. (The `||` keeps this query from matching itself.)
const ASKED: &str = "SELECT (extract(epoch FROM max(query_start)) * 1e6)::bigint FROM pg_stat_activity \
    WHERE datname = current_database() AND query LIKE '%once.outbox' || '_take%'";
/// Terminates the connections of both ends of the bell, by their application_name.
const CUT: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1";

/// The emitter. The worker runs in this process, too, but gets events and rings from the database.
struct Service {
    story: Story,
    topic: Topic,
    bell: Bell,
    delivered: Arc<AtomicUsize>,
    rings: Arc<AtomicUsize>,
}

#[tokio::main]
async fn main() -> Result<()> {
    log();
    let args = Args::parse();
    let story = Story::begin(&args.database_url, "wake_up", "").await?;
    let topic = story.declare("events").await?;
    let mut ends: Config = args.database_url.parse()?;
    ends.application_name(&story.name);
    let (waker, rings) = (Waker::new(), Arc::new(AtomicUsize::new(0)));
    let heard = {
        let (waker, rings) = (waker.clone(), Arc::clone(&rings));
        move || {
            rings.fetch_add(1, Ordering::SeqCst);
            waker.wake();
        }
    };
    tokio::spawn(listen(ends.clone(), story.name.clone(), heard));
    let service = Service {
        bell: Bell::hang(ends, story.name.clone(), PAUSE),
        story: story.clone(),
        topic: topic.clone(),
        delivered: Arc::default(),
        rings,
    };
    let delivered = Arc::clone(&service.delivered);
    let handler = move |_: Event| {
        delivered.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Undelivered>(()) }
    };
    let worker = topic
        .default_subscriber()
        .worker(&story.pool)
        .poll_every(Duration::from_secs(3600))
        .waker(&waker);
    let mut told = Ok(());
    let story_ends = async { told = service.tell().await };
    worker.run(story_ends, handler).await?;
    told?;
    story.end(&[topic]).await
}

impl Service {
    async fn tell(&self) -> Result<()> {
        self.is_woken("an idle worker", 1).await?;
        self.many_commits_and_few_rings().await?;
        self.both_ends_are_cut().await
    }

    /// Emits in a transaction, and pokes the bell after its commit.
    async fn emit(&self) -> Result<()> {
        let mut client = self.story.pool.get().await?;
        let transaction = client.transaction().await?;
        // ... the writes that the event reports ...
        let options = EmitOptions::new();
        let payload = Json::of("something happened")?;
        self.topic.emit(&transaction, &payload, &options).await?;
        transaction.commit().await?;
        self.bell.poke();
        Ok(())
    }

    async fn until_delivered(&self, events: usize) -> Result<()> {
        until(|| self.delivered.load(Ordering::SeqCst) == events).await
    }

    /// Waits until two takes of the worker are `IDLE` or more apart. Returns the time between them.
    async fn until_idle(&self) -> Result<Duration> {
        let client = self.story.pool.get().await?;
        let mut last: Option<i64> = None;
        loop {
            let asked: Option<i64> = client.query_one(ASKED, &[]).await?.try_get(0)?;
            if let (Some(last), Some(asked)) = (last, asked) {
                let waited = Duration::from_micros(asked.abs_diff(last));
                if waited >= IDLE {
                    return Ok(waited);
                }
            }
            last = asked;
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// An event is delivered before the worker's next poll would take it.
    async fn is_woken(&self, part: &str, events: usize) -> Result<()> {
        let next_look = self.until_idle().await?;
        let emitted = Instant::now();
        self.emit().await?;
        self.until_delivered(events).await?;
        let took = emitted.elapsed();
        println!("{part}: delivered after {took:?}, by itself after {next_look:?} or more");
        ensure!(took < next_look / 2, "{part}: not woken");
        Ok(())
    }

    async fn many_commits_and_few_rings(&self) -> Result<()> {
        let (begin, before) = (Instant::now(), self.rings.load(Ordering::SeqCst));
        for _ in 0..BURST {
            self.emit().await?;
        }
        self.until_delivered(1 + BURST).await?;
        sleep(2 * PAUSE).await;
        let rings = self.rings.load(Ordering::SeqCst) - before;
        println!("{BURST} commits: {rings} rings");
        let most = begin.elapsed().as_millis() / PAUSE.as_millis() + 1;
        ensure!(
            rings > 0 && rings as u128 <= most,
            "{rings} rings, not {most}"
        );
        Ok(())
    }

    /// Both connections are cut, and an event is emitted at once. The event is delivered. After that both ends have new
    /// connections, and a ring wakes the worker again.
    async fn both_ends_are_cut(&self) -> Result<()> {
        let client = self.story.pool.get().await?;
        let row = client.query_one(CUT, &[&self.story.name]).await?;
        expect("cut", row.try_get::<_, i64>(0)?, 2)?;
        self.emit().await?;
        self.until_delivered(2 + BURST).await?;
        self.is_woken("after both ends were cut", 3 + BURST).await
    }
}

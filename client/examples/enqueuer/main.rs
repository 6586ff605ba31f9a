//! An enqueuer: moves events into the table of a job runner, each once, even if a process dies.
//!
//! `cargo run -p pg-once --example enqueuer -- --database-url postgres://localhost/mydb`, in a database
//! where `CREATE EXTENSION pg_once` was done. The job runner's table may be in another database, or
//! belong to another application; it needs a unique key to dedupe by. pgmq has none: store the event's
//! delivery key in a table of your own, in the transaction that enqueues.
//! The program runs these cases: two enqueuers at once; one killed with -9; a queue that is missing; an event that is
//! no job. It fails unless each event that is a job is enqueued once. `enqueue.rs` is the part to read.

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each story uses a part of it")]
mod common;
mod enqueue;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use pg_once::{Delivered, EmitOptions, Json, Topic};
use serde_json::json;

use common::worker::{Args, run_until_killed};
use common::{Story, expect, log, until};
use enqueue::{Enqueuer, TABLES};

struct Moving {
    story: Story,
    topic: Topic,
}

#[tokio::main]
async fn main() -> Result<()> {
    log();
    let args = Args::parse();
    if let Some(name) = &args.work_for {
        let story = Story::open(&args.database_url, name)?;
        return move_until_killed(&story).await;
    }
    let story = Story::begin(&args.database_url, "enqueuer", TABLES).await?;
    let moving = Moving {
        topic: story.declare("jobs").await?,
        story,
    };
    moving.moved().await?;
    moving.killed().await?;
    moving.queue_away().await?;
    moving.no_job().await?;
    moving.story.end(&[moving.topic]).await
}

impl Moving {
    async fn emit(&self, payload: serde_json::Value) -> Result<()> {
        let payload = Json::of(&payload)?;
        let options = EmitOptions::new();
        self.topic
            .emit(&self.story.pool, &payload, &options)
            .await?;
        Ok(())
    }

    async fn until(&self, enough: impl Future<Output = Result<()>>) -> Result<Delivered> {
        let enqueuer = Enqueuer::new(&self.story.pool);
        self.story.work(&self.topic, enqueuer, enough).await
    }

    async fn jobs(&self) -> Result<(i64, i64)> {
        let story = &self.story;
        Ok((
            story.count("SELECT count(*) FROM job").await?,
            story
                .count("SELECT count(DISTINCT args->>'n') FROM job")
                .await?,
        ))
    }

    /// Two enqueuers at once move each event once.
    async fn moved(&self) -> Result<()> {
        for n in 0..100 {
            self.emit(json!({"kind": "render", "args": {"n": n}}))
                .await?;
        }
        let enough = || self.story.until("SELECT count(*) = 100 FROM job");
        let (one, other) = tokio::try_join!(self.until(enough()), self.until(enough()))?;
        expect("moved", one.delivered + other.delivered, 100)?;
        expect("jobs, and different ones", self.jobs().await?, (100, 100))
    }

    /// An enqueuer is killed between the job's commit and the ack: its event is redelivered and makes no second job.
    async fn killed(&self) -> Result<()> {
        self.emit(json!({"kind": "render", "args": {"n": 100}}))
            .await?;
        run_until_killed(&self.story, "").await?;
        expect("killed: jobs", self.jobs().await?, (101, 101))?;
        let enqueuer = Enqueuer::new(&self.story.pool);
        let moved = Arc::clone(&enqueuer.moved);
        let again = until(|| moved.load(Ordering::SeqCst) == 1);
        self.story.work(&self.topic, enqueuer, again).await?;
        expect(
            "killed, then moved again: jobs",
            self.jobs().await?,
            (101, 101),
        )
    }

    /// Attempts are used up while the queue is missing; when it is back, the dead letters are redriven.
    async fn queue_away(&self) -> Result<()> {
        let client = self.story.pool.get().await?;
        client
            .batch_execute("ALTER TABLE job RENAME TO job_away")
            .await?;
        for n in 101..104 {
            self.emit(json!({"kind": "render", "args": {"n": n}}))
                .await?;
        }
        let delivered = self.until(self.story.until_dead(&self.topic, 3)).await?;
        expect("the queue is away: dead", delivered.dead, 3)?;
        client
            .batch_execute("ALTER TABLE job_away RENAME TO job")
            .await?;
        let subscriber = self.topic.default_subscriber();
        let redriven = subscriber.redrive(&self.story.pool, 100, None).await?;
        expect("the queue is back: redriven", redriven, 3)?;
        self.until(self.story.until("SELECT count(*) = 104 FROM job"))
            .await?;
        expect("jobs", self.jobs().await?, (104, 104))
    }

    /// An event that is no job is dead at once; its dead letter has the reason.
    async fn no_job(&self) -> Result<()> {
        self.emit(json!({"king": "render"})).await?;
        self.until(self.story.until_dead(&self.topic, 1)).await?;
        let letters = self
            .topic
            .default_subscriber()
            .dead(&self.story.pool, 10)
            .await?;
        let [letter] = letters.as_slice() else {
            bail!("one dead letter, not {letters:?}");
        };
        let error = letter.error.as_deref().unwrap_or_default();
        ensure!(error.contains("kind"), "{error}");
        println!("no job: {error}");
        expect("jobs", self.jobs().await?, (104, 104))
    }
}

async fn move_until_killed(story: &Story) -> Result<()> {
    let enqueuer = Enqueuer {
        dies: true,
        ..Enqueuer::new(&story.pool)
    };
    story.work_until_killed("jobs", enqueuer).await
}

//! Adds an event as a job to the queue of a job runner.
//!
//! Invariant: the event's delivery key is the job's unique key, so an event that is delivered
//! again makes no second job, whether the first job is waiting, running or done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use deadpool_postgres::Pool;
use pg_once::{Acked, Deliver, Event, Undelivered};
use serde::Deserialize;
use serde_json::Value;

use crate::common::worker::die;

/// A job runner's table.
pub const TABLES: &str = "CREATE TABLE job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
    unique_key text NOT NULL UNIQUE, kind text NOT NULL, args jsonb NOT NULL, state text NOT NULL DEFAULT 'available')";
const ENQUEUE: &str = "INSERT INTO job (unique_key, kind, args) VALUES ($1, $2, $3) \
    ON CONFLICT (unique_key) DO NOTHING";

/// The payload of the topic's events.
#[derive(Deserialize)]
struct Job {
    kind: String,
    args: Value,
}

pub struct Enqueuer {
    /// The job runner's database.
    pub queue: Pool,
    /// The number of events that were moved.
    pub moved: Arc<AtomicU64>,
    /// Whether the process dies between the job's commit and the ack (for a test in main.rs).
    pub dies: bool,
}

impl Enqueuer {
    pub fn new(queue: &Pool) -> Self {
        Self {
            queue: queue.clone(),
            moved: Arc::default(),
            dies: false,
        }
    }
}

impl Deliver for Enqueuer {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        // A payload that is no job makes the event dead at once: a retry would fail, too.
        let job: Job = event.payload.parse().map_err(Undelivered::never)?;
        let queue = self.queue.get().await?;
        queue
            .execute(ENQUEUE, &[&event.delivery_key, &job.kind, &job.args])
            .await
            .map_err(|error| Undelivered::retry("queue", error))?;
        if self.dies {
            die();
        }
        self.moved.fetch_add(1, Ordering::SeqCst);
        Ok(Acked::ByWorker)
    }
}

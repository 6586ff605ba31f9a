//! A backlog that is there is taken and acked as fast as the workers can.
//!
//! Invariant: a figure counts events whose rows reached the client and whose ack was answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::cpu::Meter;
use crate::outbox::place::Place;
use crate::outbox::side::{Side, Worker};

/// A worker that finds nothing looks again after that long: others hold what is left.
const PAUSE: Duration = Duration::from_millis(1);

/// How a queue is emptied.
#[derive(Clone, Copy, Debug)]
pub struct Drain<'a> {
    pub side: Side,
    pub queue: &'a str,
    pub workers: u32,
    /// The max of each take.
    pub by: i32,
    pub synchronous: bool,
    /// Ends when this number of events has been delivered (the other workers then finish their batches),
    /// or after `limit`.
    pub events: u64,
    pub limit: Duration,
}

/// What a drain showed.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    pub events: u64,
    pub per_second: f64,
    /// CPU time of the server's backends per event, in microseconds.
    pub cpu_us: Option<f64>,
}

struct Shared {
    delivered: AtomicU64,
    over: AtomicBool,
    start: Barrier,
}

impl Drain<'_> {
    pub async fn run(&self, place: &Place<'_>) -> Result<Drained> {
        let meter = Meter::start(place.database)?;
        let shared = Arc::new(Shared {
            delivered: AtomicU64::new(0),
            over: AtomicBool::new(false),
            start: Barrier::new(self.workers as usize + 1),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..self.workers {
            let client = place.connect().await?;
            let on = if self.synchronous { "on" } else { "off" };
            client
                .batch_execute(&format!("SET synchronous_commit = {on}"))
                .await?;
            let worker = Worker::new(self.side, client, self.queue, self.by).await?;
            tasks.spawn(work(worker, Arc::clone(&shared), self.events, self.limit));
        }
        shared.start.wait().await;
        let begin = Instant::now();
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let spent = meter.stop()?;
        let events = shared.delivered.load(Ordering::Relaxed);
        Ok(Drained {
            events,
            per_second: events as f64 / seconds,
            cpu_us: spent.map(|us| us / events as f64),
        })
    }
}

async fn work(worker: Worker, shared: Arc<Shared>, events: u64, limit: Duration) -> Result<()> {
    shared.start.wait().await;
    let begin = Instant::now();
    while !shared.over.load(Ordering::Relaxed) {
        let taken = worker.take_and_ack().await;
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                // The others would wait for what never comes.
                shared.over.store(true, Ordering::Relaxed);
                return Err(error);
            }
        };
        let delivered = shared.delivered.fetch_add(taken, Ordering::Relaxed) + taken;
        if delivered >= events || begin.elapsed() > limit {
            shared.over.store(true, Ordering::Relaxed);
        } else if taken == 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

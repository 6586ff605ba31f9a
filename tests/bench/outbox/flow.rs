//! Events that are emitted and consumed at the same time, as fast as both go, with a bounded backlog.
//!
//! Invariant: what was emitted when the run ends is all delivered, each event once; a second's figure
//! counts acked events only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::cpu;
use crate::outbox::place::{Place, sweep};
use crate::outbox::side::{Keyed, Producer, Side, Worker};

/// The most that is emitted and not yet consumed.
pub const BACKLOG: u64 = 10_000;
/// Somebody who has nothing to do looks again after that long.
const PAUSE: Duration = Duration::from_millis(1);
/// A flow in which nothing moves for longer than any lease has lost something.
const STALLED: Duration = Duration::from_secs(90);
/// How often the janitor comes, and the size of the tables is looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// When it ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Seconds(u32),
    Events(u64),
}

/// What flows.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    pub side: Side,
    pub queue: &'a str,
    pub producers: u32,
    pub workers: u32,
    /// Events of one transaction, and of one take.
    pub by: u32,
    pub until: Until,
}

/// What it showed.
#[derive(Clone, Debug)]
pub struct Flowed {
    /// Acked in each full second.
    pub per_second: Vec<f64>,
    /// Moments from the beginning in seconds, what had been acked then, and the CPU microseconds that the
    /// server's processes had spent; empty where /proc does not tell.
    pub spent: Vec<(f64, f64, f64)>,
    /// The largest size of the extension's tables that was seen.
    pub peak: u64,
}

struct Shared {
    begin: Instant,
    emitted: AtomicU64,
    acked: AtomicU64,
    /// No more is emitted.
    dry: AtomicBool,
    /// Producers that have not ended; what they emit last is still to be consumed.
    producing: AtomicU64,
    over: AtomicBool,
    seconds: Vec<AtomicU64>,
}

impl Flow<'_> {
    pub async fn run(&self, place: &Place<'_>) -> Result<Flowed> {
        let most = match self.until {
            Until::Seconds(seconds) => seconds as usize,
            Until::Events(_) => 3600,
        };
        let shared = Arc::new(Shared {
            begin: Instant::now(),
            emitted: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            dry: AtomicBool::new(false),
            producing: AtomicU64::new(u64::from(self.producers)),
            over: AtomicBool::new(false),
            seconds: (0..most).map(|_| AtomicU64::new(0)).collect(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..self.producers {
            let client = place.connect().await?;
            let producer = Producer::new(self.side, &client, self.queue, Keyed::No).await?;
            let by = u64::from(self.by);
            tasks.spawn(produce(
                producer,
                client,
                by,
                self.until,
                Arc::clone(&shared),
            ));
        }
        for _ in 0..self.workers {
            let client = place.connect().await?;
            let worker =
                Worker::new(self.side, client, self.queue, i32::try_from(self.by)?).await?;
            tasks.spawn(consume(worker, Arc::clone(&shared)));
        }
        let janitor = tokio::spawn(janitor(place.connect().await?, Arc::clone(&shared)));
        let mut spent = Vec::new();
        let peak = self.watch(place, tasks, &shared, &mut spent).await;
        shared.over.store(true, Ordering::Relaxed);
        janitor.await??;
        let events = shared.acked.load(Ordering::Relaxed);
        let emitted = shared.emitted.load(Ordering::Relaxed);
        ensure!(
            events == emitted,
            "{}: {events} events were delivered, {emitted} emitted",
            self.side.name()
        );
        let per_second = shared.seconds.iter();
        Ok(Flowed {
            per_second: per_second
                .map(|n| n.load(Ordering::Relaxed) as f64)
                .collect(),
            spent,
            peak: peak?,
        })
    }

    /// Looks at the tables' size until all have ended.
    async fn watch(
        &self,
        place: &Place<'_>,
        mut tasks: JoinSet<Result<()>>,
        shared: &Shared,
        spent: &mut Vec<(f64, f64, f64)>,
    ) -> Result<u64> {
        let mut peak = place.on_disk().await?;
        let mut look = tokio::time::interval(LOOK_EVERY);
        let mut moved = (0, Instant::now());
        loop {
            tokio::select! {
                ended = tasks.join_next() => match ended {
                    None => return Ok(peak.max(place.on_disk().await?)),
                    Some(result) => {
                        let result = result?;
                        if result.is_err() {
                            shared.over.store(true, Ordering::Relaxed);
                        }
                        result?;
                    }
                },
                _ = look.tick() => {
                    peak = peak.max(place.on_disk().await?);
                    let acked = shared.acked.load(Ordering::Relaxed);
                    if let Some(us) = cpu::so_far(place.database)? {
                        spent.push((shared.begin.elapsed().as_secs_f64(), acked as f64, us));
                    }
                    if acked > moved.0 {
                        moved = (acked, Instant::now());
                    }
                    ensure!(
                        moved.1.elapsed() < STALLED,
                        "{}: stalled after {acked} of {} events",
                        self.side.name(),
                        shared.emitted.load(Ordering::Relaxed)
                    );
                }
            }
        }
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether another batch may be emitted: `None` for never again, otherwise yes or not yet.
    fn room(&self, until: Until) -> Option<bool> {
        let emitted = self.emitted.load(Ordering::Relaxed);
        let enough = match until {
            Until::Seconds(seconds) => self.begin.elapsed().as_secs() >= u64::from(seconds),
            Until::Events(events) => emitted >= events,
        };
        if enough || self.is_over() {
            return None;
        }
        // A batch can be acked before its emitter has counted it.
        let backlog = emitted.saturating_sub(self.acked.load(Ordering::Relaxed));
        Some(backlog < BACKLOG)
    }
}

async fn produce(
    producer: Producer,
    client: Client,
    by: u64,
    until: Until,
    shared: Arc<Shared>,
) -> Result<()> {
    while let Some(room) = shared.room(until) {
        if room {
            producer.emit(&client, by).await?;
            shared.emitted.fetch_add(by, Ordering::Relaxed);
        } else {
            tokio::time::sleep(PAUSE).await;
        }
    }
    if shared.producing.fetch_sub(1, Ordering::SeqCst) == 1 {
        shared.dry.store(true, Ordering::SeqCst);
    }
    Ok(())
}

async fn consume(worker: Worker, shared: Arc<Shared>) -> Result<()> {
    while !shared.is_over() {
        let taken = worker.take_and_ack().await?;
        let acked = shared.acked.fetch_add(taken, Ordering::SeqCst) + taken;
        let second = shared.begin.elapsed().as_secs();
        if let Some(bucket) = usize::try_from(second)
            .ok()
            .and_then(|at| shared.seconds.get(at))
        {
            bucket.fetch_add(taken, Ordering::Relaxed);
        }
        let dry = shared.dry.load(Ordering::SeqCst);
        if dry && acked >= shared.emitted.load(Ordering::SeqCst) {
            return Ok(());
        }
        if taken == 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

async fn janitor(client: Client, shared: Arc<Shared>) -> Result<()> {
    while !shared.is_over() {
        sweep(&client).await?;
        tokio::time::sleep(SWEEP_EVERY).await;
    }
    Ok(())
}

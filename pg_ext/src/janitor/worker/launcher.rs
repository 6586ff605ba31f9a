//! The launcher: one worker for each listed database that exists.
//!
//! It reads the databases after every nap, on SIGHUP and when a worker ends. It starts a worker that ended again after a
//! delay, longer each time while the worker does not stay. It logs a missing database once.

use super::{NAME, server};
use crate::raise;
use crate::settings;
use pgrx::bgworkers::{BackgroundWorkerBuilder, BackgroundWorkerStatus, DynamicBackgroundWorker};
use pgrx::pg_sys::{self, Datum, Oid};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Delay before a worker that ended is started again: the first, and the longest.
const FIRST_DELAY: Duration = Duration::from_secs(5);
const LONGEST_DELAY: Duration = Duration::from_secs(300);
/// A worker that ran for this time, or for a nap, has started well.
const STAYED: Duration = Duration::from_secs(60);
/// Its nap while a worker waits for a start.
const SOON: Duration = Duration::from_secs(1);
/// A worker's name has 95 bytes at most.
const LONGEST_NAME: usize = 90;

/// The worker of a database.
struct RunningWorker {
    database: Oid,
    handle: Option<DynamicBackgroundWorker>,
    started: Instant,
    delay: Duration,
    /// After its end: when to start it again.
    again_at: Option<Instant>,
}

#[derive(Default)]
struct Launcher {
    workers: HashMap<Vec<u8>, RunningWorker>,
    /// Missing databases that were logged.
    missing: HashSet<Vec<u8>>,
    is_full_logged: bool,
}

/// Keeps the workers until the server stops this process.
pub fn main() {
    server::begin();
    server::connect_to_none();
    let mut launcher = Launcher::default();
    loop {
        let nap = launcher.tend();
        if !server::nap(nap) {
            break;
        }
    }
    launcher.stop_all();
    // The server starts another one, unless it is stopping.
    server::exit(1);
}

impl Launcher {
    /// Starts and stops workers by the list and the databases; answers how long to sleep.
    fn tend(&mut self) -> Option<Duration> {
        let wanted = super::databases();
        self.missing.retain(|name| wanted.contains(name));
        let present = match wanted.is_empty() {
            true => HashMap::new(),
            false => match server::transaction(|| Ok(server::databases())) {
                Ok(present) => present,
                Err(error) => {
                    let problem = format!("pg_once launcher: {}", error.message);
                    raise::warn(problem, "It tries again.");
                    return Some(FIRST_DELAY);
                }
            },
        };
        self.workers.retain(|name, worker| {
            let stays = wanted.contains(name) && present.get(name) == Some(&worker.database);
            if !stays {
                worker.stop();
            }
            stays
        });
        for name in &wanted {
            match present.get(name) {
                Some(database) => {
                    self.missing.remove(name);
                    self.keep(name, *database);
                }
                None if self.missing.insert(name.clone()) => warn_missing(name),
                None => {}
            }
        }
        let waiting = self.workers.values().any(|w| w.handle.is_none());
        match (wanted.is_empty(), waiting) {
            (true, _) => None,
            (_, true) => Some(SOON.min(settings::janitor_naptime())),
            _ => Some(settings::janitor_naptime()),
        }
    }

    fn keep(&mut self, name: &[u8], database: Oid) {
        let now = Instant::now();
        let worker = self.workers.entry(name.to_vec()).or_insert(RunningWorker {
            database,
            handle: None,
            started: now,
            delay: FIRST_DELAY,
            again_at: None,
        });
        if worker.is_alive(now) || worker.again_at.is_some_and(|at| at > now) {
            return;
        }
        worker.started = now;
        worker.again_at = None;
        worker.handle = start(name, database).ok();
        match worker.handle {
            Some(_) => self.is_full_logged = false,
            None => {
                worker.again_at = Some(now + FIRST_DELAY);
                if !std::mem::replace(&mut self.is_full_logged, true) {
                    warn_full();
                }
            }
        }
    }

    fn stop_all(&mut self) {
        self.workers.values_mut().for_each(RunningWorker::stop);
        self.workers.clear();
    }
}

impl RunningWorker {
    /// False: it has ended, or was never started.
    fn is_alive(&mut self, now: Instant) -> bool {
        let Some(handle) = &self.handle else {
            return false;
        };
        match handle.pid() {
            Ok(_) | Err(BackgroundWorkerStatus::NotYetStarted) => return true,
            Err(_) => self.handle = None,
        }
        if now.duration_since(self.started) >= STAYED.min(settings::janitor_naptime()) {
            self.delay = FIRST_DELAY;
        }
        self.again_at = Some(now + self.delay);
        self.delay = (self.delay * 2).min(LONGEST_DELAY);
        false
    }

    fn stop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.terminate();
        }
    }
}

/// Err: the server has no room for another background worker.
fn start(name: &[u8], database: Oid) -> std::result::Result<DynamicBackgroundWorker, ()> {
    let mut title = format!("{NAME}: {}", String::from_utf8_lossy(name));
    while title.len() > LONGEST_NAME {
        title.pop();
    }
    // SAFETY: the handle has to live as long as this process.
    let before = unsafe { pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext) };
    let handle = BackgroundWorkerBuilder::new(&title)
        .set_type(NAME)
        .set_library("pg_once")
        .set_function("pg_once_worker")
        .set_argument(Some(Datum::from(database)))
        // SAFETY: a variable of this process.
        .set_notify_pid(unsafe { pg_sys::MyProcPid })
        .enable_spi_access()
        .load_dynamic();
    // SAFETY: the context of before.
    unsafe { pg_sys::MemoryContextSwitchTo(before) };
    handle.map_err(drop)
}

fn warn_missing(name: &[u8]) {
    let name = String::from_utf8_lossy(name);
    raise::warn(
        format!(
            "database \"{name}\" of once.janitor_databases is not there, or takes no connections"
        ),
        "It is served once it accepts connections. Otherwise take it out of the list and reload.",
    );
}

fn warn_full() {
    raise::warn(
        "no background worker is free for the databases of once.janitor_databases".to_owned(),
        "Raise max_worker_processes by the number of these databases plus one, and restart the server.",
    );
}

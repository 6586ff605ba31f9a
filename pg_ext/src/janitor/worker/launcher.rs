//! The launcher starts a worker for each database that is due. At most once.janitor_workers run at a time. The database
//! that has waited longest comes first.
//!
//! The launcher checks the databases after each nap. A signal, or the end of a worker, ends the nap early. The launcher
//! logs a missing database once.

use super::board::{self, PassSlot, SLOTS};
use super::process::WorkerProcess;
use super::schedule::{Present, Schedule};
use super::server;
use crate::clock;
use crate::raise;
use crate::settings;
use pgrx::pg_sys::Oid;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The launcher's nap while the server has no free background worker, and after an error.
const SOON: Duration = Duration::from_secs(1);
/// A database has waited too long if it has waited longer than once.janitor_naptime and longer than this time.
const LATE: Duration = Duration::from_secs(1);
/// A worker that has not ended.
struct RunningWorker {
    name: Vec<u8>,
    database: Oid,
    slot: usize,
    process: WorkerProcess,
}

#[derive(Default)]
struct Launcher {
    /// The listed databases that exist.
    databases: HashMap<Vec<u8>, Schedule>,
    running: Vec<RunningWorker>,
    /// Missing databases that were logged.
    missing: HashSet<Vec<u8>>,
    is_full_logged: bool,
}

/// Runs until the server stops this process.
pub fn main() {
    server::begin();
    server::connect_to_none();
    // The server ignores a SIGHUP that comes before begin().
    server::read_settings();
    let mut launcher = Launcher::default();
    loop {
        let nap = launcher.tend();
        if !server::nap(nap) {
            break;
        }
    }
    launcher
        .running
        .iter()
        .for_each(|worker| worker.process.stop());
    // The server starts another launcher, unless it is stopping.
    server::exit(1);
}

impl Launcher {
    /// Starts workers. Answers how long to sleep; None: until a signal.
    fn tend(&mut self) -> Option<Duration> {
        let wanted = super::databases();
        let present = match wanted.is_empty() {
            true => HashMap::new(),
            false => match server::transaction(|| Ok(server::databases(&wanted))) {
                Ok(present) => present,
                Err(error) => {
                    let problem = format!("pg_once launcher: {}", error.message);
                    raise::warn(problem, "The launcher tries again after a second.");
                    return Some(SOON);
                }
            },
        };
        let now = Instant::now();
        self.follow(&wanted, &present);
        self.take_answers(now);
        let clock = clock::real_us();
        for (name, schedule) in &mut self.databases {
            let is_served = self.running.iter().any(|worker| worker.name == *name);
            if let Some(present) = present.get(name).filter(|_| !is_served) {
                schedule.mark_if_due(present.changed, now, clock);
            }
        }
        let is_full = !self.start_due(&wanted, &present, now);
        let nap = settings::covering_naptime();
        let is_late = |s: &Schedule| s.waits(now) > nap.max(LATE);
        if self.databases.values().any(is_late) {
            board::note_late(clock);
        }
        let looks = self.databases.values().map(|s| s.look_at(now));
        match (wanted.is_empty(), is_full) {
            (true, _) => None,
            (_, true) => Some(SOON.min(nap)),
            _ => Some(
                looks
                    .min()
                    .map_or(nap, |at| at.duration_since(now).min(nap)),
            ),
        }
    }

    /// Follows changes of the list and of the server's databases. A pass that has begun goes on to its end.
    fn follow(&mut self, wanted: &[Vec<u8>], present: &HashMap<Vec<u8>, Present>) {
        self.missing.retain(|name| wanted.contains(name));
        let oid_of = |name: &Vec<u8>| present.get(name).map(|found| found.oid);
        self.databases
            .retain(|name, schedule| oid_of(name) == Some(schedule.oid));
        for name in wanted {
            match oid_of(name) {
                Some(oid) => {
                    self.missing.remove(name);
                    let schedules = &mut self.databases;
                    schedules
                        .entry(name.clone())
                        .or_insert_with(|| Schedule::new(oid));
                }
                None if self.missing.insert(name.clone()) => warn_missing(name),
                None => {}
            }
        }
    }

    fn take_answers(&mut self, now: Instant) {
        for worker in self
            .running
            .extract_if(.., |worker| worker.process.has_ended())
        {
            let schedule = self.databases.get_mut(&worker.name);
            if let Some(schedule) = schedule.filter(|found| found.oid == worker.database)
                && let Some(slot) = board::slot(worker.slot)
            {
                schedule.end(slot.answer(), slot.troubles(), now);
            }
        }
    }

    /// Starts workers for due databases, up to once.janitor_workers. False: the server has no free background worker.
    fn start_due(
        &mut self,
        wanted: &[Vec<u8>],
        present: &HashMap<Vec<u8>, Present>,
        now: Instant,
    ) -> bool {
        let mut queue = Vec::new();
        for name in wanted {
            let schedule = self.databases.get(name);
            if let Some(place) = schedule.and_then(Schedule::place_in_queue) {
                queue.push((place, name));
            }
        }
        queue.sort_by_key(|(place, _)| *place);
        let most = settings::janitor_workers().min(SLOTS);
        for (_, name) in queue {
            if self.running.len() >= most {
                break;
            }
            let (Some(schedule), Some(found)) = (self.databases.get_mut(name), present.get(name))
            else {
                continue;
            };
            let Some((number, slot)) = free_slot(&self.running) else {
                break;
            };
            let troubles = schedule.troubles_of_next_pass(now);
            slot.prepare(troubles);
            let Some(process) = WorkerProcess::start(name, found.oid, number) else {
                if !std::mem::replace(&mut self.is_full_logged, true) {
                    warn_full();
                }
                return false;
            };
            schedule.begin(found.changed, troubles, now);
            self.running.push(RunningWorker {
                name: name.clone(),
                database: found.oid,
                slot: number,
                process,
            });
        }
        true
    }
}

fn free_slot(running: &[RunningWorker]) -> Option<(usize, &'static PassSlot)> {
    let is_free = |number: &usize| running.iter().all(|worker| worker.slot != *number);
    let number = (0..SLOTS).find(is_free)?;
    board::slot(number).map(|slot| (number, slot))
}

fn warn_missing(name: &[u8]) {
    let name = String::from_utf8_lossy(name);
    raise::warn(
        format!(
            "database \"{name}\" of once.janitor_databases does not exist, or accepts no connections"
        ),
        "The database is served once it exists and accepts connections. If it is not to be served, take it out of the list and reload.",
    );
}

fn warn_full() {
    raise::warn(
        "no background worker is free for the databases of once.janitor_databases".to_owned(),
        "Raise max_worker_processes by once.janitor_workers plus one, and restart the server.",
    );
}

//! A worker: one pass over all tasks of one database.
//!
//! A task runs batches while more is due, up to its share of the pass, so that no task waits long for another. If a
//! task fails, the others still run, and it rests for once.janitor_naptime. Its second failure in a row is logged;
//! later failures are not logged until the task has succeeded. The first failure is not logged, because its cause may
//! be a lock that is held for a moment.

use super::board::{self, Answer, PassSlot, Troubles};
use super::server;
use crate::clock;
use crate::janitor::next::next_due;
use crate::janitor::sweep;
use crate::janitor::task::Task;
use crate::raise;
use crate::settings;
use crate::subxact::Failure;
use crate::swept::Swept;
use pgrx::pg_sys::Oid;
use std::time::{Duration, Instant};

/// A batch has at most this many rows.
const BATCH: i32 = 1_000;
/// After this time a task begins no further batch in the pass.
const SHARE: Duration = Duration::from_millis(500);

const AGAIN: &str = "The worker retries after once.janitor_naptime. It does not log this failure again until a retry has succeeded. See once.janitor_status() and once.doctor().";

/// Runs one pass and exits. If the worker stores no answer in its slot, the launcher waits before the next pass over
/// this database.
pub fn main(database: Oid, slot: usize) {
    server::begin();
    server::connect(database);
    if let Some(slot) = board::slot(slot) {
        Pass::run(slot);
    }
    server::exit(0);
}

struct Pass {
    troubles: Troubles,
    more: bool,
}

impl Pass {
    fn run(slot: &PassSlot) {
        let begin = clock::real_us();
        let mut pass = Pass {
            troubles: slot.troubles(),
            more: false,
        };
        match server::transaction(|| Ok(server::is_installed())) {
            Ok(true) => {}
            Ok(false) => return absent(slot),
            Err(error) => return warn(&error.message),
        }
        for (number, task) in Task::ALL.into_iter().enumerate() {
            let bit = 1 << number;
            if pass.troubles.resting & bit != 0 {
                continue;
            }
            match serve(task) {
                Ok(swept) => pass.note(task, bit, &swept),
                // If the extension was dropped during the pass, that is no failure.
                Err(_) if !is_still_installed() => return absent(slot),
                Err(error) => pass.note(task, bit, &Swept::failure(1, &error.message)),
            }
            if server::is_told_to_stop() {
                return;
            }
        }
        slot.put_answer(pass.answer(begin), pass.troubles);
    }

    /// Notes whether the task failed, and logs the second failure in a row. Mostly the sweep has also recorded the
    /// failure in once.janitor. The record is missing if the sweep was rolled back, another session was writing the
    /// task's record, or the write failed.
    fn note(&mut self, task: Task, bit: u32, swept: &Swept) {
        self.more |= swept.more;
        if swept.failed == 0 {
            self.troubles.failing &= !bit;
            self.troubles.logged &= !bit;
            return;
        }
        if self.troubles.failing & !self.troubles.logged & bit != 0 {
            let error = swept.last_error.as_deref().unwrap_or_default();
            let (name, failed) = (task.name(), swept.failed);
            warn(&format!("{name}: {failed} failed, the last error: {error}"));
            self.troubles.logged |= bit;
        }
        self.troubles.failing |= bit;
    }

    fn answer(&self, begin: i64) -> Answer {
        if self.more {
            return Answer::More;
        }
        let now = clock::real_us();
        let due = match self.troubles.failing {
            0 => server::transaction(|| settings::with_sweep_lock_timeout(next_due))
                .unwrap_or(Some(now)),
            _ => Some(now),
        };
        let at_latest = begin.saturating_add(settings::longest_pause().as_micros() as i64);
        Answer::NothingBefore(due.unwrap_or(at_latest).min(at_latest))
    }
}

/// Answers that nothing is due, and clears the failures, because the extension is not installed.
fn absent(slot: &PassSlot) {
    slot.put_answer(Answer::NothingBefore(i64::MAX), Troubles::default());
}

/// Logs in a transaction, because the server can convert encodings only there.
fn warn(error: &str) {
    let logged = server::transaction(|| {
        let database = server::database_name();
        raise::warn(format!("{} of \"{database}\": {error}", super::NAME), AGAIN);
        Ok(())
    });
    drop(logged);
}

/// Runs a task within its share of the pass. `more` is true only if the share was used up.
fn serve(task: Task) -> Result<Swept, Failure> {
    server::show_work(&format!("once.sweep({BATCH}, '{}')", task.name()));
    let begin = Instant::now();
    let mut all = Swept::default();
    loop {
        let swept = server::transaction(|| sweep::run_task(task, BATCH, None))?;
        let more = swept.more && !server::is_told_to_stop();
        all.add(swept);
        all.more = more;
        if !more || begin.elapsed() >= SHARE {
            return Ok(all);
        }
    }
}

fn is_still_installed() -> bool {
    server::transaction(|| Ok(server::is_installed())) != Ok(false)
}

//! When a database is due for its next pass.
//!
//! A busy database is due once.janitor_naptime after the begin of its last pass. An idle database is due
//! [`settings::longest_pause`] after that begin. A write to the database makes it busy. A row that has become due by
//! the clock makes it busy, too, and so does a task that failed at its last turn. If the last pass left more to do, the
//! next is due at once. The pass after a failed one is due when `delay_after` has passed since the failure.
//!
//! The launcher compares the server's counts of changed rows with those before the last pass. A difference counts
//! as a write. The counts include the writes of that pass, so another pass follows a pass that has written. Without
//! counts, the database is busy.
//!
//! A session reports its counts at most ten seconds after its transaction ends. If a session reports later (a
//! procedure that commits in a loop) or never (its own track_counts is off), its changes may wait the longest pause.

use super::board::{Answer, Troubles};
use crate::settings;
use pgrx::pg_sys::Oid;
use std::time::{Duration, Instant};

/// The delay after one failed pass. It doubles with each further failure, up to LONGEST_DELAY.
const FIRST_DELAY: Duration = Duration::from_secs(5);
const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// The server's counts of changed rows in a database, and when they were last reset.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RowsChanged {
    pub inserted: i64,
    pub updated: i64,
    pub deleted: i64,
    pub counted_since: i64,
}

/// The OID and the counts of a database that accepts connections.
#[derive(Clone, Copy)]
pub struct Present {
    pub oid: Oid,
    /// None: the server has no counts of the database.
    pub changed: Option<RowsChanged>,
}

/// How the last pass ended.
enum LastPass {
    Never,
    More,
    NothingBefore(i64),
    /// The pass stored no answer. The number counts such passes in a row.
    Failed(u32),
}

pub struct Schedule {
    pub oid: Oid,
    last: LastPass,
    /// Begin of the last pass, or the end of a failed one.
    begun: Option<Instant>,
    /// Begin of the last pass that had to run every task.
    complete: Option<Instant>,
    /// The counts from before the last pass.
    changed: Option<RowsChanged>,
    /// Since when the database waits for a worker.
    due_since: Option<Instant>,
    troubles: Troubles,
}

impl Schedule {
    pub fn new(oid: Oid) -> Schedule {
        Schedule {
            oid,
            last: LastPass::Never,
            begun: None,
            complete: None,
            changed: None,
            due_since: None,
            troubles: Troubles::default(),
        }
    }

    pub fn mark_if_due(&mut self, changed: Option<RowsChanged>, now: Instant, clock: i64) {
        if self.due_since.is_none() && self.due_at(changed, clock).is_none_or(|at| at <= now) {
            self.due_since = Some(now);
        }
    }

    /// When the database is due, by its present counts and the time `clock`. None: at once.
    fn due_at(&self, changed: Option<RowsChanged>, clock: i64) -> Option<Instant> {
        let begun = self.begun?;
        let pause = match self.last {
            LastPass::Never | LastPass::More => return None,
            LastPass::Failed(times) => delay_after(times),
            LastPass::NothingBefore(at) => {
                let is_idle = changed.is_some() && changed == self.changed && clock < at;
                match is_idle {
                    true => settings::longest_pause(),
                    false => settings::covering_naptime(),
                }
            }
        };
        Some(begun + pause)
    }

    /// When the launcher looks at the database again.
    pub fn look_at(&self, now: Instant) -> Instant {
        let nap = settings::covering_naptime();
        let pause = match self.last {
            LastPass::Failed(times) => delay_after(times),
            _ => nap,
        };
        let first = self.begun.map(|begun| begun + pause);
        first.filter(|at| *at > now).unwrap_or(now + nap)
    }

    /// Sort key of a database that waits for a worker: the one that waited longest is first. None: it does not wait.
    pub fn place_in_queue(&self) -> Option<(Instant, Option<Instant>)> {
        self.due_since.map(|since| (since, self.begun))
    }

    /// For how long the database has waited for a worker.
    pub fn waits(&self, now: Instant) -> Duration {
        let since = self.due_since.unwrap_or(now);
        now.saturating_duration_since(since)
    }

    /// A pass that begins within once.janitor_naptime after `complete` skips the failing tasks.
    pub fn troubles_of_next_pass(&self, now: Instant) -> Troubles {
        let nap = settings::covering_naptime();
        let is_again = self.complete.is_some_and(|at| now < at + nap);
        Troubles {
            resting: if is_again { self.troubles.failing } else { 0 },
            ..self.troubles
        }
    }

    pub fn begin(&mut self, changed: Option<RowsChanged>, troubles: Troubles, now: Instant) {
        if troubles.resting == 0 {
            self.complete = Some(now);
        }
        self.begun = Some(now);
        self.changed = changed;
        self.due_since = None;
    }

    /// Records the end of a pass; without an answer it failed.
    pub fn end(&mut self, answer: Option<Answer>, troubles: Troubles, now: Instant) {
        self.last = match (answer, &self.last) {
            (Some(Answer::More), _) => LastPass::More,
            (Some(Answer::NothingBefore(at)), _) => LastPass::NothingBefore(at),
            (None, LastPass::Failed(times)) => LastPass::Failed(times.saturating_add(1)),
            (None, _) => LastPass::Failed(1),
        };
        if answer.is_some() {
            self.troubles = troubles;
        }
        if let LastPass::Failed(_) = self.last {
            self.begun = Some(now);
        }
    }
}

fn delay_after(failures: u32) -> Duration {
    let doubled = failures.saturating_sub(1).min(8);
    (FIRST_DELAY * (1 << doubled)).min(LONGEST_DELAY)
}

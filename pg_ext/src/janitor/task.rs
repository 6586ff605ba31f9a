//! The tasks, in the order in which a sweep runs them.

use crate::action::sweep as actions;
use crate::outbox::{requeue, retire};
use crate::table::Name;

/// What one run of a task did.
#[derive(Clone, Default)]
pub struct Swept {
    pub done: i64,
    pub failed: i64,
    pub more: bool,
    /// Something was due and was not tried, or not by itself.
    pub untried: bool,
    /// So the run has not ended: it comes before the others the next time.
    pub cut_short: bool,
    pub last_error: Option<String>,
    /// Where a pass over rows that fail ended before its end; the next one goes on there.
    pub reached: Option<String>,
}

impl Swept {
    /// So many rows failed, for the same reason.
    pub fn failure(rows: usize, reason: &str) -> Swept {
        Swept {
            failed: rows as i64,
            last_error: Some(reason.to_owned()),
            ..Swept::default()
        }
    }

    /// Its end could not be noted.
    pub fn not_noted(mut self, why: &str) -> Swept {
        let said = self.last_error.as_deref().unwrap_or("the run has ended");
        let said = format!("{said} (not noted: {why})");
        self.add(Swept::failure(1, &said));
        self
    }

    pub fn add(&mut self, other: Swept) {
        self.done += other.done;
        self.failed += other.failed;
        self.more |= other.more;
        self.untried |= other.untried;
        self.last_error = other.last_error.or(self.last_error.take());
        self.reached = other.reached.or(self.reached.take());
    }
}

/// What a task needs to have, or nothing of it is done.
pub struct Tables {
    pub written: &'static [Name],
    pub read: &'static [Name],
}

/// One of the sweep's tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Task {
    ActionRelease,
    KeyReap,
    KeyTombstone,
    OutboxRequeue,
    InboxReap,
    DedupeReap,
    /// Last: what it truncates is locked until the transaction ends.
    OutboxRetire,
}

impl Task {
    pub const ALL: [Task; 7] = [
        Task::ActionRelease,
        Task::KeyReap,
        Task::KeyTombstone,
        Task::OutboxRequeue,
        Task::InboxReap,
        Task::DedupeReap,
        Task::OutboxRetire,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Task::ActionRelease => actions::TASK,
            Task::KeyReap => "key_reap",
            Task::KeyTombstone => "key_tombstone",
            Task::OutboxRequeue => requeue::TASK,
            Task::InboxReap => "inbox_reap",
            Task::DedupeReap => "dedupe_reap",
            Task::OutboxRetire => retire::TASK,
        }
    }

    /// What a read-only transaction keeps it from writing.
    pub fn table(self) -> Name {
        match self {
            Task::ActionRelease => c"action_lease",
            Task::KeyReap | Task::KeyTombstone => c"key",
            Task::OutboxRequeue => c"batch",
            Task::InboxReap => c"inbox",
            Task::DedupeReap => c"dedupe",
            Task::OutboxRetire => c"segment",
        }
    }
}

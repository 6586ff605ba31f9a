//! The tasks, in the order in which a sweep runs them.

use crate::call::shown;
use crate::error::{Error, Result};
use crate::swept::ACTION_RELEASE;
use crate::table::Name;

/// One of the sweep's tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Task {
    ActionRelease,
    KeyAbandon,
    KeyReap,
    KeyTombstone,
    OutboxRequeue,
    InboxReap,
    DedupeReap,
    DeadReap,
    HistoryReap,
    /// Runs last, because a truncated segment stays locked until the transaction ends.
    OutboxRetire,
}

impl Task {
    pub const ALL: [Task; 10] = [
        Task::ActionRelease,
        Task::KeyAbandon,
        Task::KeyReap,
        Task::KeyTombstone,
        Task::OutboxRequeue,
        Task::InboxReap,
        Task::DedupeReap,
        Task::DeadReap,
        Task::HistoryReap,
        Task::OutboxRetire,
    ];

    /// Raises 22023 for an unknown name.
    pub fn named(name: &[u8]) -> Result<Task> {
        let found = Task::ALL.into_iter().find(|t| t.name().as_bytes() == name);
        found.ok_or_else(|| {
            Error::bad_argument(
                "task",
                format!("\"{}\" is no task of the sweep", shown(name)),
                format!("The tasks are {}.", Task::ALL.map(Task::name).join(", ")),
            )
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Task::ActionRelease => ACTION_RELEASE,
            Task::KeyAbandon => "key_abandon",
            Task::KeyReap => "key_reap",
            Task::KeyTombstone => "key_tombstone",
            Task::OutboxRequeue => "outbox_requeue",
            Task::InboxReap => "inbox_reap",
            Task::DedupeReap => "dedupe_reap",
            Task::DeadReap => "dead_reap",
            Task::HistoryReap => "history_reap",
            Task::OutboxRetire => "outbox_retire",
        }
    }

    /// Before the task runs, these tables must be writable and have no rule or trigger that can suppress writes.
    pub fn tables(self) -> &'static [Name] {
        match self {
            Task::ActionRelease => &[c"action_lease"],
            Task::KeyAbandon => &[c"key", c"key_mark", c"key_locked"],
            Task::KeyReap | Task::KeyTombstone => &[c"key", c"key_step"],
            Task::OutboxRequeue => &[c"batch", c"receipt", c"retry", c"dead", c"delivery"],
            Task::InboxReap => &[c"inbox"],
            Task::DedupeReap => &[c"dedupe"],
            Task::DeadReap => &[c"dead", c"delivery"],
            Task::HistoryReap => &[c"machine_move"],
            Task::OutboxRetire => &[c"segment", c"event_kept", c"batch", c"receipt", c"delivery"],
        }
    }
}

//! The tasks, in the order in which a sweep runs them.

use super::reap::{From, Reap};
use crate::action::sweep as actions;
use crate::error::Result;
use crate::key::passing;
use crate::outbox::{requeue, retire};
use crate::subxact;
use crate::table::Name;

/// What one run of a task did.
#[derive(Default)]
pub struct Swept {
    pub done: i64,
    pub failed: i64,
    pub more: bool,
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

    pub fn add(&mut self, other: Swept) {
        self.done += other.done;
        self.failed += other.failed;
        self.more |= other.more;
        self.last_error = other.last_error.or(self.last_error.take());
        self.reached = other.reached.or(self.reached.take());
    }
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

    /// One pass of at most `max` rows; None: over all of them.
    pub fn work(self, max: i32, from: Option<From>) -> Result<Swept> {
        let swept = match (self, self.reap(), from) {
            (_, Some(reap), Some(from)) => reap.isolate(max, from)?,
            (_, Some(reap), None) => reap.sweep(max)?,
            (_, None, Some(From::Failed(failure, _))) => Swept::failure(1, &failure),
            (Task::ActionRelease, ..) => actions::sweep(max.into(), None)?,
            (Task::OutboxRequeue, ..) => requeue::sweep(max.into())?,
            (_, None, _) => retire::sweep(max.into())?,
        };
        match self {
            Task::KeyTombstone => pass_bookmarks(swept, max),
            _ => Ok(swept),
        }
    }

    /// Locks the tables of tasks that leave out rows which fail. True: somebody has put triggers or foreign keys on them,
    /// and what these leave for the transaction's end would undo everybody's work.
    pub fn meets_triggers(self) -> Result<bool> {
        self.reap().map_or(Ok(false), Reap::meets_triggers)
    }

    fn reap(self) -> Option<Reap> {
        match self {
            Task::KeyReap => Some(Reap::Key),
            Task::KeyTombstone => Some(Reap::Tombstone),
            Task::InboxReap => Some(Reap::Inbox),
            Task::DedupeReap => Some(Reap::Dedupe),
            Task::ActionRelease | Task::OutboxRequeue | Task::OutboxRetire => None,
        }
    }
}

/// What key_tombstone does besides.
fn pass_bookmarks(mut swept: Swept, max: i32) -> Result<Swept> {
    match subxact::attempt(|| passing::pass(max))? {
        Ok(more) => swept.more |= more,
        Err(failure) => swept.add(Swept::failure(1, &failure)),
    }
    Ok(swept)
}

//! `sweep()`: every task, or one alone.

use super::task::Task;
use super::{foreign, reap};
use crate::action::sweep as actions;
use crate::call::{Call, SCOPE_MAX};
use crate::caller;
use crate::cancel::pending;
use crate::clock::DAY_US;
use crate::error::{Error, Result};
use crate::key::abandon::key_abandon;
use crate::machine::history;
use crate::machine::stored::StoredMachine;
use crate::outbox::{overdue, retire};
use crate::row::{self, Rows};
use crate::settings;
use crate::subxact;
use crate::swept::{self, Swept};
use crate::table;
use pgrx::pg_sys::Datum;

/// The argument `max` is at most this.
pub const MOST_SWEPT: i32 = 1_000_000;

/// Runs one bounded pass of a task in its own subtransaction, so an error is counted and undoes nothing else. The pass
/// waits for each lock no longer than once.sweep_lock_timeout. `only`: the one machine of an action_release. The task
/// action_release records its runs itself. Before this task begins, the caller's deferred constraints are checked.
pub fn run_task(task: Task, max: i32, only: Option<&[u8]>) -> Result<Swept> {
    (task.tables().iter()).try_for_each(|name| table::ensure_writable(name))?;
    if task == Task::ActionRelease {
        actions::prepare()?;
    }
    let noted = |swept| noted(task.name(), only.unwrap_or_default(), swept);
    match subxact::attempt_briefly(|| attempted(task, max.into(), only))? {
        Ok(None) => Ok(Swept::default()),
        Ok(Some(swept)) if task == Task::ActionRelease => Ok(swept),
        Ok(Some(swept)) => noted(swept),
        Err(failure) => noted(Swept::failure(1, &failure.message)),
    }
}

/// Runs one pass of a task. None: another session is running this task and records that run.
fn attempted(task: Task, max: i64, only: Option<&[u8]>) -> Result<Option<Swept>> {
    foreign::ensure_none(task.tables())?;
    match task {
        Task::ActionRelease => {
            let followed = subxact::attempt_briefly(caller::follow_renames)?;
            let mut swept = actions::sweep_leases(max, only, pending::close_orphaned)?;
            // A lock timeout is not counted as a failure: the next sweep updates the stored role names.
            if let Err(failure) = followed
                && !failure.is_wait
            {
                swept.add(Swept::failure(1, &failure.message));
            }
            Ok(Some(swept))
        }
        Task::KeyAbandon => key_abandon(max),
        Task::KeyReap => reap::DELETE_KEYS.run(max, &[DAY_US]).map(Some),
        Task::KeyTombstone => reap::EMPTY_LARGE_KEYS.run(max, &[DAY_US]).map(Some),
        Task::OutboxRequeue => overdue::requeue(max).map(Some),
        Task::InboxReap => reap::INBOX.run(max, &[]).map(Some),
        Task::DedupeReap => reap::DEDUPE.run(max, &[]).map(Some),
        Task::DeadReap => reap::DEAD.run(max, &[]).map(Some),
        Task::HistoryReap => history::reap(max).map(Some),
        Task::OutboxRetire => retire::retire_segments(max),
    }
}

fn noted(task: &str, machine: &[u8], mut swept: Swept) -> Result<Swept> {
    let is_good = swept.failed == 0;
    let run = swept.clone();
    swept::noting(&mut swept, || swept::record(task, machine, &run, is_good))?;
    Ok(swept)
}

/// `once.sweep`.
pub fn sweep(call: &Call) -> Result<Datum> {
    let max = call.limit(0, "max", MOST_SWEPT)?;
    let task = (call.opt_text(1, "task", SCOPE_MAX)?)
        .map(Task::named)
        .transpose()?;
    let machine = call.opt_text(2, "machine", SCOPE_MAX)?;
    if let Some(name) = machine {
        if task != Some(Task::ActionRelease) {
            return Err(Error::bad_argument(
                "machine",
                "is only for the task action_release",
                "Give task => 'action_release', too.",
            ));
        }
        settings::with_sweep_lock_timeout(|| StoredMachine::existing(name))?;
    }
    let rows = Rows::begin(call);
    for each in Task::ALL {
        if task.is_none_or(|only| only == each) {
            let swept = run_task(each, max, machine)?;
            rows.push(&[
                Some(row::text(each.name().as_bytes())),
                Some(Datum::from(swept.done)),
                Some(Datum::from(swept.failed)),
                Some(Datum::from(swept.more)),
            ]);
        }
    }
    Ok(call.return_null())
}

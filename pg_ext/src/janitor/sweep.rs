//! `sweep()` and each task alone.

use super::task::Task;
use super::{foreign, reap};
use crate::action::sweep as actions;
use crate::call::{Call, SCOPE_MAX};
use crate::caller;
use crate::cancel::pending;
use crate::error::Result;
use crate::machine::stored::Stored;
use crate::outbox::{requeue, retire};
use crate::row::{self, Rows, Shape};
use crate::settings;
use crate::subxact;
use crate::swept::{self, Swept};
use crate::table;
use pgrx::pg_sys::{self, Datum};

/// The largest `max`.
pub const MOST: i32 = 1_000_000;

thread_local! {
    static TASK: Shape = const { Shape::new(&[
        (c"task", pg_sys::TEXTOID),
        (c"done", pg_sys::INT8OID),
        (c"failed", pg_sys::INT8OID),
        (c"more", pg_sys::BOOLOID),
    ]) };
}

/// One bounded pass of a task in a subtransaction of its own: what it raises is counted, and undoes nothing else. It
/// waits for each lock no longer than once.sweep_lock_timeout.
pub fn run(task: Task, max: i32) -> Result<Swept> {
    run_for(task, max, None)
}

/// Of one machine alone, where the task is action_release: each has a row of its own in once.janitor, which that task
/// writes. What the caller has deferred is the caller's: it is done, and fails, outside the task.
fn run_for(task: Task, max: i32, only: Option<&[u8]>) -> Result<Swept> {
    (task.tables().iter()).try_for_each(|name| table::ensure_writable(name))?;
    if task == Task::ActionRelease {
        actions::prepare()?;
    }
    let noted = |swept| noted(task.name(), only.unwrap_or_default(), swept);
    match subxact::attempt_briefly(|| work(task, max.into(), only))? {
        Ok(None) => Ok(Swept::default()),
        Ok(Some(swept)) if task == Task::ActionRelease => Ok(swept),
        Ok(Some(swept)) => noted(swept),
        Err(failure) => noted(Swept::failure(1, &failure.message)),
    }
}

/// None: another session is at it, and notes it when it ends.
fn work(task: Task, max: i64, only: Option<&[u8]>) -> Result<Option<Swept>> {
    foreign::ensure_none(task.tables())?;
    match task {
        Task::ActionRelease => {
            caller::follow_renames()?;
            actions::sweep(max, only, pending::close_orphaned).map(Some)
        }
        Task::KeyReap => reap::keys(max).map(Some),
        Task::KeyTombstone => reap::tombstones(max).map(Some),
        Task::OutboxRequeue => requeue::sweep(max).map(Some),
        Task::InboxReap => reap::inbox(max).map(Some),
        Task::DedupeReap => reap::dedupe(max).map(Some),
        Task::OutboxRetire => retire::sweep(max),
    }
}

/// With its end noted; one in which nothing failed is good.
fn noted(task: &str, machine: &[u8], mut swept: Swept) -> Result<Swept> {
    let is_good = swept.failed == 0;
    let run = swept.clone();
    swept::noting(&mut swept, || swept::record(task, machine, &run, is_good))?;
    Ok(swept)
}

/// Notes that a task has failed as a whole, with the transaction that it was in. An error where it cannot.
pub fn failed(task: Task, failure: &str) -> Result<()> {
    settings::with_sweep_lock_timeout(|| {
        swept::record(task.name(), b"", &Swept::failure(1, failure), false)
    })
}

/// `once.sweep`.
pub fn sweep(call: &Call) -> Result<Datum> {
    let max = call.limit(0, "max", MOST)?;
    let rows = Rows::begin(call);
    for task in Task::ALL {
        rows.push(&told(task, &run(task, max)?));
    }
    Ok(call.return_null())
}

/// `once.sweep_action_release`.
pub fn sweep_action_release(call: &Call) -> Result<Datum> {
    let max = call.limit(0, "max", MOST)?;
    let machine = call.opt_text(1, "machine", SCOPE_MAX)?;
    if let Some(name) = machine {
        settings::with_sweep_lock_timeout(|| Stored::of(name))?;
    }
    let swept = run_for(Task::ActionRelease, max, machine)?;
    Ok(TASK.with(|shape| shape.row(&told(Task::ActionRelease, &swept))))
}

/// Every other task alone.
pub fn alone(call: &Call, task: Task) -> Result<Datum> {
    let swept = run(task, call.limit(0, "max", MOST)?)?;
    Ok(TASK.with(|shape| shape.row(&told(task, &swept))))
}

fn told(task: Task, swept: &Swept) -> [Option<Datum>; 4] {
    [
        Some(row::text(task.name().as_bytes())),
        Some(Datum::from(swept.done)),
        Some(Datum::from(swept.failed)),
        Some(Datum::from(swept.more)),
    ]
}

//! `sweep()` and each task alone.

use super::task::{Swept, Task};
use super::{foreign, reap, runs};
use crate::action::sweep as actions;
use crate::call::{Call, SCOPE_MAX};
use crate::error::Result;
use crate::machine::stored::Stored;
use crate::outbox::{requeue, retire};
use crate::row::{self, Rows, Shape};
use crate::settings;
use crate::subxact;
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
    match task {
        Task::ActionRelease => release_actions(max, None),
        _ => {
            ensure_writable(task)?;
            match subxact::attempt_briefly(|| work(task, max.into()))? {
                Ok(None) => Ok(Swept::default()),
                Ok(Some(swept)) => noted(task.name(), b"", swept),
                Err(failure) => noted(task.name(), b"", Swept::failure(1, &failure.message)),
            }
        }
    }
}

/// None: another session is at it, and notes it when it ends.
fn work(task: Task, max: i64) -> Result<Option<Swept>> {
    foreign::ensure_none(task.tables())?;
    match task {
        Task::ActionRelease => actions::sweep(max, None).map(Some),
        Task::KeyReap => reap::keys(max).map(Some),
        Task::KeyTombstone => reap::tombstones(max).map(Some),
        Task::OutboxRequeue => requeue::sweep(max).map(Some),
        Task::InboxReap => reap::inbox(max).map(Some),
        Task::DedupeReap => reap::dedupe(max).map(Some),
        Task::OutboxRetire => retire::sweep(max),
    }
}

fn ensure_writable(task: Task) -> Result<()> {
    task.tables()
        .iter()
        .try_for_each(|name| table::ensure_writable(name))
}

/// Of all machines, or of one. Each has a row of its own in once.janitor. What the caller has deferred is the caller's:
/// it is done, and fails, outside the task.
fn release_actions(max: i32, only: Option<&[u8]>) -> Result<Swept> {
    let task = Task::ActionRelease;
    ensure_writable(task)?;
    actions::prepare()?;
    let swept = subxact::attempt_briefly(|| {
        foreign::ensure_none(task.tables())?;
        actions::sweep(max.into(), only)
    })?;
    swept.or_else(|failure| {
        let failed = Swept::failure(1, &failure.message);
        noted(task.name(), only.unwrap_or_default(), failed)
    })
}

/// With its end noted; one in which nothing failed is good.
fn noted(task: &str, machine: &[u8], mut swept: Swept) -> Result<Swept> {
    let is_good = swept.failed == 0;
    let run = swept.clone();
    noting(&mut swept, || runs::record(task, machine, &run, is_good))?;
    Ok(swept)
}

/// Notes the end of a run; where that cannot be, its result says so, and what was done stays done.
pub fn noting(swept: &mut Swept, note: impl FnOnce() -> Result<()>) -> Result<()> {
    if let Err(why) = subxact::attempt_briefly(note)? {
        let said = swept.last_error.as_deref().unwrap_or("the run has ended");
        let said = format!("{said} (not noted: {})", why.message);
        swept.add(Swept::failure(1, &said));
    }
    Ok(())
}

/// Notes that a task has failed as a whole, with the transaction that it was in. An error where it cannot.
pub fn failed(task: Task, failure: &str) -> Result<()> {
    settings::with_sweep_lock_timeout(|| {
        runs::record(task.name(), b"", &Swept::failure(1, failure), false)
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
    let Some(machine) = call.opt_text(1, "machine", SCOPE_MAX)? else {
        return alone(call, Task::ActionRelease);
    };
    settings::with_sweep_lock_timeout(|| Stored::of(machine))?;
    let swept = release_actions(max, Some(machine))?;
    let values = told(Task::ActionRelease, &swept);
    Ok(TASK.with(|shape| shape.row(&values)))
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

//! `sweep()` and each task alone.

use super::reap::Reap;
use super::runs::{reached, record, record_end};
use super::task::{Swept, Task};
use crate::action::sweep as actions;
use crate::call::{Call, SCOPE_MAX};
use crate::error::{Error, Kind, Result};
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

/// One bounded pass of a task; what it raises is counted, and undoes nothing else.
pub fn run(task: Task, max: i32) -> Result<Swept> {
    table::ensure_writable(task.table())?;
    let reap = |reap: Reap| reap.pass(max, reached(task.name())?);
    let swept = match task {
        Task::ActionRelease => return release_actions(max, None),
        Task::KeyReap => reap(Reap::Key)?,
        Task::KeyTombstone => reap(Reap::Tombstone)?,
        Task::InboxReap => reap(Reap::Inbox)?,
        Task::DedupeReap => reap(Reap::Dedupe)?,
        Task::OutboxRequeue => attempt(|| requeue::sweep(max.into()))?,
        Task::OutboxRetire => attempt(|| settings::patiently(|| retire::sweep(max.into())))?,
    };
    record(task.name(), b"", &swept)?;
    Ok(swept)
}

/// Of all machines, or of one. Each has a row of its own in once.janitor. What the caller has deferred is the caller's:
/// it is done, and fails, outside the task.
fn release_actions(max: i32, only: Option<&[u8]>) -> Result<Swept> {
    if let Ok(true) = subxact::attempt(|| actions::is_due(only))? {
        actions::prepare()?;
    }
    let swept = match subxact::attempt(|| actions::sweep(max.into(), only))? {
        Ok(swept) => swept,
        Err(failure) => {
            let swept = Swept::failure(1, &failure);
            record(actions::TASK, only.unwrap_or_default(), &swept)?;
            return Ok(swept);
        }
    };
    if only.is_none() {
        record_end(actions::TASK, swept.failed == 0)?;
    }
    Ok(swept)
}

fn attempt(work: impl FnOnce() -> Result<Swept>) -> Result<Swept> {
    let swept = subxact::attempt(work)?;
    Ok(swept.unwrap_or_else(|failure| Swept::failure(1, &failure)))
}

/// Notes that a task has failed as a whole, with the transaction that it was in. An error where it cannot.
pub fn failed(task: Task, failure: &str) -> Result<()> {
    let swept = Swept {
        reached: reached(task.name())?,
        ..Swept::failure(1, failure)
    };
    match record(task.name(), b"", &swept)? {
        true => Ok(()),
        false => Err(Error::new(Kind::InUse, "another session notes its own run")),
    }
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
    table::ensure_writable(Task::ActionRelease.table())?;
    Stored::of(machine)?;
    let swept = release_actions(max, Some(machine))?;
    let values = told(Task::ActionRelease, &swept);
    Ok(TASK.with(|shape| shape.row(&values)))
}

/// `once.sweep_key_reap`.
pub fn sweep_key_reap(call: &Call) -> Result<Datum> {
    alone(call, Task::KeyReap)
}

/// `once.sweep_key_tombstone`.
pub fn sweep_key_tombstone(call: &Call) -> Result<Datum> {
    alone(call, Task::KeyTombstone)
}

/// `once.sweep_outbox_requeue`.
pub fn sweep_outbox_requeue(call: &Call) -> Result<Datum> {
    alone(call, Task::OutboxRequeue)
}

/// `once.sweep_inbox_reap`.
pub fn sweep_inbox_reap(call: &Call) -> Result<Datum> {
    alone(call, Task::InboxReap)
}

/// `once.sweep_dedupe_reap`.
pub fn sweep_dedupe_reap(call: &Call) -> Result<Datum> {
    alone(call, Task::DedupeReap)
}

/// `once.sweep_outbox_retire`.
pub fn sweep_outbox_retire(call: &Call) -> Result<Datum> {
    alone(call, Task::OutboxRetire)
}

fn alone(call: &Call, task: Task) -> Result<Datum> {
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

//! `sweep()` and each task alone.

use super::reap::From;
use super::runs::{reached, record, record_end};
use super::task::{Swept, Task};
use crate::action::sweep as actions;
use crate::call::{Call, SCOPE_MAX};
use crate::error::{Error, Kind, Result};
use crate::machine::stored::Stored;
use crate::row::{self, Rows, Shape};
use crate::settings;
use crate::subxact;
use crate::table;
use pgrx::pg_sys::{self, Datum};
use std::time::Instant;

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
    if task != Task::ActionRelease {
        let swept = pass(task, max)?;
        record(task.name(), b"", &swept)?;
        return Ok(swept);
    }
    let swept = match release_actions(max, None)? {
        Ok(swept) => swept,
        Err(failure) => {
            let swept = Swept::failure(1, &failure);
            record(task.name(), b"", &swept)?;
            return Ok(swept);
        }
    };
    // Each machine has its own row.
    record_end(task.name(), swept.failed == 0)?;
    Ok(swept)
}

/// A pass that waits for nobody for long, but for what puts off what it could not do: that, and what the caller has
/// deferred, waits as long as the caller would.
fn pass(task: Task, max: i32) -> Result<Swept> {
    if task == Task::OutboxRequeue {
        let swept = subxact::attempt(|| task.work(max, None))?;
        return Ok(swept.unwrap_or_else(|failure| Swept::failure(1, &failure)));
    }
    let reached = reached(task.name())?;
    let meets_triggers = || settings::patiently(|| task.meets_triggers());
    match subxact::attempt(meets_triggers)? {
        Ok(true) => actions::prepare()?,
        Ok(false) => {}
        // The tables cannot be had: no row's fault.
        Err(failure) => {
            return Ok(Swept {
                reached,
                ..Swept::failure(1, &failure)
            });
        }
    }
    let begin = Instant::now();
    settings::patiently(
        || match subxact::attempt(|| task.work(max, reached.map(From::Reached)))? {
            Ok(swept) => Ok(swept),
            Err(failure) => task.work(max, Some(From::Failed(failure, begin.elapsed()))),
        },
    )
}

/// What the caller has deferred is the caller's: it is done, and fails, outside the task.
fn release_actions(
    max: i32,
    only: Option<&[u8]>,
) -> Result<std::result::Result<Swept, subxact::Failure>> {
    if let Ok(true) = subxact::attempt(|| actions::is_due(only))? {
        actions::prepare()?;
    }
    subxact::attempt(|| actions::sweep(max.into(), only))
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
    let swept = match release_actions(max, Some(machine))? {
        Ok(swept) => swept,
        Err(failure) => {
            let swept = Swept::failure(1, &failure);
            record(actions::TASK, machine, &swept)?;
            swept
        }
    };
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

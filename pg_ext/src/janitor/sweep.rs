//! `sweep()` and each task alone.

use super::reap::Reap;
use super::runs::{is_first_schema, record};
use super::task::{Swept, Tables, Task};
use super::{reached, runs};
use crate::action::sweep as actions;
use crate::call::{Call, SCOPE_MAX};
use crate::error::{Error, Kind, Result};
use crate::machine::stored::Stored;
use crate::outbox::{requeue, retire};
use crate::patience::Patience;
use crate::row::{self, Rows, Shape};
use crate::settings;
use crate::subxact::Failure;
use crate::table::{self, Table};
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

/// One bounded pass of a task, in a transaction of its own; what it raises is counted, and undoes nothing else. It waits
/// for nobody for long, and the result tells also what could not be noted.
pub fn run(task: Task, max: i32) -> Result<Swept> {
    run_among(task, max, &Patience::default())
}

/// The same among others, which all have their rows locked until the transaction ends.
fn run_among(task: Task, max: i32, patience: &Patience) -> Result<Swept> {
    table::ensure_writable(task.table())?;
    patience.renew();
    let swept = match task {
        Task::ActionRelease => return release_actions(max, None, patience),
        Task::KeyReap => return reap(task, Reap::Key, max, patience),
        Task::KeyTombstone => return reap(task, Reap::Tombstone, max, patience),
        Task::InboxReap => return reap(task, Reap::Inbox, max, patience),
        Task::DedupeReap => return reap(task, Reap::Dedupe, max, patience),
        Task::OutboxRequeue => requeue::sweep(max.into(), patience)?,
        Task::OutboxRetire => match retire::sweep(max.into(), patience)? {
            Some(swept) => swept,
            // Another session is at it, and notes it when it ends.
            None => return Ok(Swept::default()),
        },
    };
    noted(task.name(), b"", swept, patience)
}

/// A pass over rows that time has made due, from where the last one ended.
fn reap(task: Task, reap: Reap, max: i32, patience: &Patience) -> Result<Swept> {
    let task = task.name();
    let noted = patience.attempt(|| runs::noted(task))?;
    let known = noted.as_ref().ok();
    let swept = reap.pass(max, reached::start(task, known), patience)?;
    let ended = match &noted {
        Ok(_) => patience.attempt(|| record(task, b"", &swept))?,
        Err(failure) => Err(failure.clone()),
    };
    match ended {
        Ok(true) if !is_first_schema()? => reached::forget(task),
        _ => reached::remember(task, known, swept.reached.clone()),
    }
    Ok(told_of(ended, swept))
}

/// Of all machines, or of one. Each has a row of its own in once.janitor. What the caller has deferred is the caller's:
/// it is done, and fails, outside the task.
fn release_actions(max: i32, only: Option<&[u8]>, patience: &Patience) -> Result<Swept> {
    let failed = |failure: &Failure| {
        let whose = only.unwrap_or_default();
        noted(actions::TASK, whose, Swept::failure(1, failure), patience)
    };
    match patience.attempt(|| actions::is_due(only))? {
        Ok(true) => actions::prepare()?,
        Ok(false) => {}
        // It would fail at the same.
        Err(failure) => return failed(&failure),
    }
    match patience.attempt(|| actions::sweep(max.into(), only, patience))? {
        Ok(swept) => Ok(swept),
        Err(failure) => failed(&failure),
    }
}

/// Notes the end of a run of a task; where that cannot be, its result says so.
fn noted(task: &str, machine: &[u8], swept: Swept, patience: &Patience) -> Result<Swept> {
    let ended = patience.attempt(|| record(task, machine, &swept))?;
    Ok(told_of(ended, swept))
}

/// What a task did, and why that could not be noted.
fn told_of(ended: std::result::Result<bool, Failure>, swept: Swept) -> Swept {
    match ended {
        Ok(_) => swept,
        Err(failure) => swept.not_noted(&failure),
    }
}

/// Locks the tables that a task writes; Err: it cannot have them. True: somebody has put triggers or foreign keys on them,
/// and what these leave for the transaction's end would undo everybody's work: nothing is deferred from here on. What the
/// caller has deferred waits as long as the caller would.
pub fn lock_tables(
    tables: &Tables,
    patience: &Patience,
) -> Result<std::result::Result<bool, Failure>> {
    let locked = patience.attempt(|| open_tables(tables))?;
    if locked == Ok(true) {
        actions::prepare()?;
    }
    Ok(locked)
}

/// Locks them, for as long as lock_timeout says each. True: somebody has put triggers on those that are written.
pub fn open_tables(tables: &Tables) -> Result<bool> {
    let mut watched = false;
    for table in tables.written {
        watched |= Table::to_write(table)?.has_triggers();
    }
    for table in tables.read {
        Table::to_read(table)?;
    }
    Ok(watched)
}

/// Notes that a task has failed as a whole, with the transaction that it was in. An error where it cannot.
pub fn failed(task: Task, failure: &str) -> Result<()> {
    let swept = Swept {
        reached: runs::noted(task.name())?.reached,
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
    let patience = Patience::default();
    for task in Task::ALL {
        rows.push(&told(task, &run_among(task, max, &patience)?));
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
    settings::patiently(|| Stored::of(machine))?;
    let swept = release_actions(max, Some(machine), &Patience::default())?;
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

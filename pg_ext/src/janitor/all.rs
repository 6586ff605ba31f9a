//! `CALL once.sweep_all()`: rounds over all tasks until they find little to do, with a commit after each batch.
//!
//! The procedure is not written in PL/pgSQL, which would look names up by the caller's search_path. PL/pgSQL also
//! cannot check before the first batch whether it may commit.

use super::sweep::{MOST_SWEPT, run_task};
use super::task::Task;
use crate::call::Call;
use crate::error::{Error, Kind, Result};
use crate::swept::Swept;
use pgrx::pg_sys::{self, Datum};
use std::time::{Duration, Instant};

/// The least time between two NOTICEs on the progress of a task.
const NOTICE_AFTER: Duration = Duration::from_secs(5);
/// sweep_all ends after this many rounds in which no task filled a batch.
const SMALL_ROUNDS: u32 = 3;
const MOST_ROUNDS: u32 = 20;

/// `once.sweep_all`.
pub fn sweep_all(call: &Call) -> Result<Datum> {
    let max = call.limit(0, "max", MOST_SWEPT)?;
    if call.is_atomic() {
        return Err(Error::new(
            Kind::TransactionBlock,
            "once.sweep_all() cannot run inside a transaction block or a function",
        )
        .hint("It commits between batches: CALL it outside BEGIN. Inside a transaction, SELECT * FROM once.sweep() runs one batch of each task."));
    }
    let mut small = 0;
    for _ in 0..MOST_ROUNDS {
        let most = round(max)?;
        small += u32::from(most < i64::from(max));
        if most == 0 || small == SMALL_ROUNDS {
            break;
        }
    }
    Ok(call.return_null())
}

/// Runs batches of each task until `more` is false. Returns the largest number of rows that one task processed.
/// sweep_all runs several rounds, because a task can make rows due for other tasks, and sessions can release row locks.
fn round(max: i32) -> Result<i64> {
    let mut most = 0;
    for task in Task::ALL {
        most = most.max(finish_task(task, max)?);
    }
    Ok(most)
}

/// Runs batches of one task until `more` is false. Returns how many rows the task processed.
fn finish_task(task: Task, max: i32) -> Result<i64> {
    let mut all = Swept::default();
    let mut noticed = Instant::now();
    loop {
        let swept = batch(task, max)?;
        commit();
        let more = swept.more;
        all.add(swept);
        if !more {
            break;
        }
        if noticed.elapsed() >= NOTICE_AFTER {
            noticed = Instant::now();
            notify(task, &all, " so far");
        }
        pgrx::check_for_interrupts!();
    }
    if all.done > 0 || all.failed > 0 {
        notify(task, &all, "");
    }
    Ok(all.done)
}

fn notify(task: Task, swept: &Swept, when: &str) {
    let (name, done, failed) = (task.name(), swept.done, swept.failed);
    match failed {
        0 => pgrx::notice!("{name}: {done} done{when}"),
        _ => pgrx::notice!("{name}: {done} done, {failed} failed{when}"),
    }
}

/// Runs one batch, in memory that is freed with its transaction.
fn batch(task: Task, max: i32) -> Result<Swept> {
    // SAFETY: after a commit the CALL has no snapshot until it asks for one. The transaction's memory lives until the
    // next commit; the context from before is restored below.
    let before = unsafe {
        pg_sys::EnsurePortalSnapshotExists();
        pg_sys::MemoryContextSwitchTo(pg_sys::TopTransactionContext)
    };
    let swept = run_task(task, max, None);
    // SAFETY: the context from before; after an error of the server, the server itself restores the context.
    unsafe { pg_sys::MemoryContextSwitchTo(before) };
    swept
}

fn commit() {
    // SAFETY: the call is not atomic; SPI keeps the current memory context and begins the next transaction.
    unsafe {
        pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32);
        pg_sys::SPI_commit();
        pg_sys::SPI_finish();
    }
}

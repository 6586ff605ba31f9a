//! janitor: the sweeps. Each task is one bounded pass over due rows. Any number of sessions may sweep at once: a task
//! either skips locked rows, or does nothing if another session is running it.
//!
//! `sweep()`, `sweep_all()` and the background worker all call [`sweep::run_task`], which runs the task in a
//! subtransaction and records the result in once.janitor (`swept.rs`). A failed task stops no other task. `run_task`
//! itself fails only on a cancellation, a shutdown, a lost race above READ COMMITTED or a read-only transaction. For
//! action_release it also fails if an earlier write of the caller's transaction violates a deferred constraint.
//!
//! A task that raises an error is undone as a whole and counts 1 in `failed`. Otherwise `failed` counts the parts that
//! failed, such as rows (action_release) or subscribers (outbox_requeue). `sweep()` retries a failed task at the next
//! call, the worker after once.janitor_naptime. `action/revert.rs` defers a row that cannot be reverted.

mod all;
mod foreign;
mod next;
mod reap;
mod status;
mod sweep;
mod task;
mod worker;

pub use all::sweep_all;
pub use status::{janitor_status, waited_us};
pub use sweep::sweep;
pub use task::Task;
pub use worker::{databases, late_at, register as register_worker};

//! janitor: the sweeps. Each task is one bounded pass over due rows, taken with SKIP LOCKED, so that any number of
//! sessions may sweep at once.
//!
//! `sweep()`, `sweep_all()` and the background worker all call [`sweep::run_task`]. It runs the task in a
//! subtransaction, so that an error stops no other task, and records the end of the task in once.janitor (`swept.rs`).
//!
//! A task that raises is undone as a whole and counts as failed. `sweep()` tries it again at the next call, the worker
//! after a nap (`worker/serve.rs`). A row that cannot be reverted is deferred alone, for 10 s and then twice as long
//! each time up to an hour (`action/revert.rs`); a locked row or key is tried again by the next sweep.

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

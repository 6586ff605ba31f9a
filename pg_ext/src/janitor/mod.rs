//! janitor: the sweeps. Each task is one bounded pass over due rows, taken with SKIP LOCKED, so that any number of
//! sessions may sweep at once.
//!
//! `sweep()`, `sweep_all()` and the background worker all call [`sweep::run_task`]. That function runs the task in a
//! subtransaction and records the result in once.janitor (`swept.rs`). A failed task stops no other task. The whole
//! call fails only by a cancellation, a shutdown, a lost race above READ COMMITTED, or a check before the
//! subtransaction: of a read-only transaction, and for action_release of the caller's deferred constraints.
//!
//! A task that raises is undone as a whole and counts 1 in `failed`; otherwise `failed` counts rows of action_release
//! and subscribers of outbox_requeue. `sweep()` tries a failed task again at the next call, the worker after
//! once.janitor_naptime (`troubles_of_next_pass` in `worker/schedule.rs`). A row that cannot be reverted is deferred
//! alone: for 10 s, then for twice as long each time up to an hour; after a lock timeout for as long as before
//! (`action/revert.rs`). A locked row or key is tried again by the next sweep.

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

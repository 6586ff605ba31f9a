//! janitor: the sweeps. Each task is one bounded pass over rows that time has made due, taken with SKIP
//! LOCKED, so that any number of sessions may sweep at once.
//!
//! Whoever sweeps (`sweep()`, `sweep_all()`, the background worker) goes through [`sweep::run_task`]: the
//! task in a subtransaction of its own, so that one that raises stops no other, and its end noted in
//! once.janitor (`swept.rs`, which the tasks of other nouns share).

mod all;
mod foreign;
mod reap;
mod status;
mod sweep;
mod task;
mod worker;

pub use all::sweep_all;
pub use status::{janitor_status, waited_us};
pub use sweep::sweep;
pub use task::Task;
pub use worker::{databases, register as register_worker};

//! janitor: the sweeps. Each task is one bounded pass over rows that time has made due, taken with SKIP
//! LOCKED, so that any number of sessions may sweep at once.
//!
//! Whoever sweeps (`sweep()`, one task alone, `sweep_all()`, the background worker) goes through [`run`]: the
//! task in a subtransaction of its own, so that one that raises stops no other, and its end noted in
//! once.janitor.

mod all;
mod foreign;
mod preview;
mod reap;
mod runs;
mod status;
mod sweep;
mod task;

pub use all::sweep_all;
pub use preview::{Due, sweep_preview, waited_us};
pub use runs::{covers, last_end, last_error, record};
pub use status::janitor_status;
pub use sweep::{alone, failed, noting, run, sweep, sweep_action_release};
pub use task::{Swept, Task};

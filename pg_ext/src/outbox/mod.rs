//! outbox: events that leave the database. `sql/outbox.sql` opens with how the log works.
//!
//! emit writes the log (event.rs), take reads it lane by lane (lane.rs) from where the lane's last batch
//! (batch.rs) says it has come (window.rs, seen.rs), receipts (receipt.rs) say what became of a batch, and
//! what failed goes one by one (leave.rs, retry.rs) until it is dead (dead.rs).

pub mod ack;
pub mod batch;
pub mod dead;
pub mod delivery;
mod draft;
pub mod due;
pub mod emit;
pub mod event;
pub mod extend;
mod lane;
mod leave;
pub mod nack;
pub mod options;
mod overdue;
mod quiet;
pub mod receipt;
pub mod requeue;
pub mod retire;
pub mod retry;
pub mod seen;
pub mod series;
pub mod take;
pub mod topic;
pub mod window;

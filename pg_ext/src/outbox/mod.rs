//! outbox: events for other systems. `sql/outbox.sql` begins with an overview of the log.
//!
//! emit writes the log (event.rs). take reads the log lane by lane (lane.rs), from the position that the lane's last
//! batch stores (batch.rs, window.rs, seen.rs). Receipts (receipt.rs) say how events left a batch. Failed events go to
//! the table once.retry (leave.rs, retry.rs) and are delivered again until they are acked or dead (dead.rs). leave.rs
//! computes the time of a retry, for a nack (nack.rs) and for an expired batch of one event (overdue.rs).

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
pub mod overdue;
pub mod peek;
mod quiet;
pub mod receipt;
pub mod retire;
pub mod retry;
pub mod seen;
pub mod series;
pub mod take;
pub mod topic;
pub mod window;

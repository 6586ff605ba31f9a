//! cancel: a teardown whose terminal state comes last. Told at the top of `sql/cancel.sql`.
//!
//! `record` names the columns of a teardown's row, `stand` asks how far the user's row is; then a file for
//! each call; `adopt` gives leases and teardowns to rows that have none.

pub mod adopt;
pub mod audit;
pub mod cleanup;
pub mod finish;
pub mod pending;
pub mod record;
pub mod refund;
pub mod request;

mod items;
mod numeric;
mod stand;

pub use stand::holder_of;

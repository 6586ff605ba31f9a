//! cancel: a row is torn down, and then moves to its terminal state. `sql/cancel.sql` begins with an overview.
//!
//! `record` has the rows of once.cancel and once.refund, `items` the statements on items, `numeric` sums of money.
//! `torn_row` says whether the teardown of a row can go on. The other files have the SQL functions.

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
mod torn_row;

pub use torn_row::holder_of;

//! inbox: messages and saga steps that are handled once. The top of `sql/inbox.sql` describes the life of a row.
//!
//! `entry` is a message or a step and its row. `meet` finds or writes the row, and waits for an open transaction that
//! has written it. `accept` and `barrier` contain the SQL functions.

pub mod accept;
pub mod barrier;

mod entry;
mod meet;

//! inbox: messages and saga steps that are handled once. The life of a row is told at the top of
//! `sql/inbox.sql`.
//!
//! `entry` names what a call is about and its row, `meet` finds or writes the row and waits for whoever is at
//! it, `accept` and `barrier` are the functions.

pub mod accept;
pub mod barrier;

mod entry;
mod meet;

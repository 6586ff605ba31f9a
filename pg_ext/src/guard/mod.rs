//! guard: triggers on the user's tables that refuse writes against the machine's definition, whoever writes.
//!
//! `row` refuses an undeclared status change, or one whose `when` is not met; a change of status that leaves a terminal
//! status, enters or leaves a claim state or the cancelled state without our call, or comes during a teardown; a change of
//! the cancel flag, and of the id of a claimed or cancelled row; an INSERT in a claim state, cancelled or flagged; a DELETE
//! during the teardown; a move out of a partition that was attached later. `item` refuses the marker from anybody but a
//! refund, any change of a marked item's amount, row or `when`, its deletion before the row is cancelled, and undecided
//! items of a cancelled row.
//! Other INSERTs and DELETEs pass. `docs/how-to/batch-job.md` says what the guard cannot see.
//!
//! `install` puts them on and takes them off, `standing` says whether they are there. `event` reads the write that fired
//! a trigger, `row` and `item` judge it, and `memory` keeps a table's columns from one row to the next. A write of our own
//! passes by its permit (`machine/permit.rs`). `define` stores, changes and drops machines.

pub mod define;
pub mod install;
pub mod item;
pub mod row;
pub mod standing;

mod event;
mod memory;

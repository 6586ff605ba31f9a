//! guard: triggers on the user's tables that refuse writes against the machine's definition, whoever writes.
//!
//! `row` refuses, on the machine's table:
//! - a change of status that is not declared, or whose `when` is not met;
//! - a change of status from a terminal status, or during a teardown;
//! - a change into or out of a claim state, or into the cancelled state, without a call of pg_once;
//! - setting the cancel flag without cancel_request, and clearing it at all;
//! - a change of the id of a claimed, flagged or cancelled row;
//! - an INSERT in a claim state, in the cancelled state or with the cancel flag set;
//! - a DELETE during the teardown;
//! - a move out of a partition whose guard was put on before the table became a partition.
//!
//! `item` refuses, on the items table:
//! - the refund marker, except from cancel_refund;
//! - a change of a marked item's marker, amount or row, or of whether its `when` is true. After the row was cancelled
//!   or deleted, the item may lose its row by ON DELETE SET NULL;
//! - the deletion of a marked item before its row is cancelled;
//! - an undecided item of a cancelled row.
//!
//! Other INSERTs and DELETEs pass. `docs/how-to/batch-job.md` says what the guard cannot see.
//!
//! `install` creates and drops the triggers, `standing` says whether they are there. `event` reads the write that fired
//! a trigger, `row` and `item` judge it, and `memory` keeps a table's columns from one row to the next. A write of
//! pg_once passes by its permit (`machine/permit.rs`). `define` stores, changes and drops machines.

pub mod define;
pub mod install;
pub mod item;
pub mod row;
pub mod standing;

mod event;
mod memory;

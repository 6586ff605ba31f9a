//! guard: triggers on the user's tables that refuse writes against the machine's definition, whoever writes.
//!
//! `docs/reference/guard.md` lists what `row` refuses on the machine's table and `item` on the items table. Besides:
//! - `row` refuses a move out of a partition whose guard was put on before the table became a partition;
//! - after a row was cancelled or deleted, a marked item may lose its row by ON DELETE SET NULL.
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

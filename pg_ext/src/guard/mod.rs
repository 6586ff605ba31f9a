//! guard: triggers on the user's tables that refuse every write that its machine does not declare.
//! The COMMENT of machine_guard lists what they refuse, `sql/examples/batch_job.md` what they cannot see.
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

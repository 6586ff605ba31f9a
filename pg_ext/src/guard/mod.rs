//! guard: triggers on the user's tables that refuse, for every role, writes against the machine's definition.
//!
//! `docs/reference/guard.md` lists what `row` refuses on the machine's table and `item` on the items table. Not listed:
//! - `row` refuses a move out of a partition whose guard was created before the table became a partition;
//! - `item` lets a marked item's reference to the machine's row become NULL if that row is cancelled or deleted.
//!
//! `docs/how-to/batch-job.md` lists the writes that the guard does not see.
//!
//! `install` creates and drops the triggers, `standing` reports whether they are present. `event` reads the write that
//! fired a trigger, `row` and `item` judge it, and `memory` caches a table's columns from one row to the next.
//! pg_once's own writes have a permit (`machine/permit.rs`) and pass. `define` stores, changes and drops machines.

pub mod define;
pub mod install;
pub mod item;
pub mod row;
pub mod standing;

mod event;
mod memory;

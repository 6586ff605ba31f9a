//! guard: triggers on the user's tables that refuse whatever a machine does not declare, whoever writes.
//! `sql/machine.sql` says what they refuse and what they cannot see.
//!
//! `install` puts them on and takes them off (`lock` locks the tables for that), `standing` says whether they are there,
//! `event` reads what fired one (`memory` keeps what that took), `row` and `item` judge it. What one of our own statements
//! does at the moment passes by its permit (`machine/permit.rs`). `define` changes a machine, its
//! leases, teardowns and guards permitting.

pub mod define;
pub mod install;
pub mod item;
pub mod row;
pub mod standing;

mod event;
mod lock;
mod memory;

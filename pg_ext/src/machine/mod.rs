//! machine: the declared states and moves of one of the user's tables. Told at the top of `sql/machine.sql`.
//!
//! `definition` is what a machine declares, `stored` its row, `shape` that definition fitted to the tables as
//! they are, `model` what a backend keeps of it, and `changes` when that has to be looked up again;
//! `moves`, `patch`, `id`, `relation` and `sql` are what statements on the user's tables are made of;
//! `transition` moves a row. `define` stores what `validate` has made of JSON, or every fault that it has
//! found (`draft`, `rules`, `fit`, `money`; `predicate` reads a `when`), and `inspect` shows it again.

pub mod changes;
pub mod define;
pub mod definition;
mod direct;
pub mod id;
pub mod inspect;
pub mod model;
pub mod patch;
pub mod relation;
pub mod shape;
pub mod sql;
pub mod statement;
pub mod stored;
pub mod transition;

pub mod check;
pub mod columns;
pub mod permit;

mod draft;
mod faults;
mod fit;
mod members;
mod money;
pub mod moves;
mod predicate;
mod qualify;
mod rules;
mod validate;

use crate::digest::first_64_bits;
use sha2::{Digest, Sha256};

/// The lock that claims hold shared to the end of their transaction, and a change of the definition
/// exclusively: what is claimed meanwhile is seen by it.
pub fn lock_of(machine: &str) -> u64 {
    let digest = Sha256::new()
        .chain_update("machine\0")
        .chain_update(machine)
        .finalize();
    first_64_bits(&digest)
}

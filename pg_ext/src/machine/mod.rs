//! machine: the declared states and moves of one of the user's tables. Told at the top of `sql/machine.sql`.
//!
//! `definition` is what a machine declares, `stored` its row, `shape` that definition fitted to the tables as
//! they are, `model` what a backend keeps of it, and `changes` when that has to be looked up again;
//! `moves`, `patch`, `id`, `relation` and `sql` are what statements on the user's tables are made of;
//! `user_row` reads and moves one row for leases and teardowns, `transition` for everybody. `read` makes a
//! definition of JSON, `validate` finds all that is wrong with it (`rules`, `fit`, `money`; `predicate` reads a `when`),
//! and `inspect` shows it again. machine_define itself is in `guard/define.rs`, machine_check in `doctor/check.rs`: they ask
//! nouns that import this one.

pub mod changes;
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
pub mod user_row;

pub mod columns;
pub mod permit;

pub mod faults;
mod fit;
mod money;
pub mod moves;
mod predicate;
mod qualify;
pub mod read;
mod rules;
pub mod validate;

use crate::digest::first_64_bits;
use crate::error::{Error, Kind, Result};
use crate::settings;
use crate::trylock::{wait_exclusive, wait_or};
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

/// Takes a machine's lock exclusively to the end of this transaction, once the open claims have ended.
pub fn wait_for_claims(machine: &str) -> Result<()> {
    wait_bounded(
        || wait_exclusive(lock_of(machine)),
        || format!("machine \"{machine}\" has open claims, or another session is changing it"),
    )
}

/// Lets the definitions of one table follow each other: the next one waits for the end of the first one's transaction.
fn wait_for_definitions(table: &columns::DefinedTable) -> Result<()> {
    // No machine's name begins with NUL.
    let lock = lock_of(&format!("\0table {}", table.oid.to_u32()));
    wait_bounded(
        || wait_exclusive(lock),
        || format!("table {} is being defined by another session", table.name),
    )
}

/// Waits for a lock at most lock_timeout, or a second more than deadlock_timeout where that is 0; then raises 55P03.
pub fn wait_bounded(wait: impl FnOnce(), problem: impl FnOnce() -> String) -> Result<()> {
    let late = || {
        Error::new(Kind::LockNotAvailable, problem()).hint(
            "Roll back and call it again once the transactions that use the machine or its tables have ended, or SET \
             lock_timeout for longer (0 means a second more than deadlock_timeout).",
        )
    };
    settings::with_table_lock_timeout(|| wait_or(wait, late))
}

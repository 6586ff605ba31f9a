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

/// Has a machine's lock to itself to the end of this transaction, once the open claims have ended. 55P03 where it takes
/// too long.
pub fn wait_for_claims(machine: &str) -> Result<()> {
    wait_bounded(lock_of(machine), || {
        Error::new(
            Kind::LockNotAvailable,
            format!("machine \"{machine}\" has open claims, or is being changed by another session"),
        )
        .hint(
            "Call it again once the transactions that called action_claim or changed the machine have ended, or SET \
             lock_timeout for longer (where it is 0, a second more than deadlock_timeout): claims answer that somebody \
             is at it meanwhile.",
        )
    })
}

/// Two definitions of one table come one after the other, to the end of the first one's transaction. 55P03 where it takes
/// too long.
fn wait_for_definitions(table: &columns::DefinedTable) -> Result<()> {
    // No machine's name begins with NUL: the lock is no machine's.
    let lock = lock_of(&format!("\0table {}", table.oid.to_u32()));
    wait_bounded(lock, || {
        Error::new(
            Kind::LockNotAvailable,
            format!("table {} is being defined by another session", table.name),
        )
        .hint(
            "Call it again once the transaction that called machine_define for this table has ended, or SET \
             lock_timeout for longer (where it is 0, a second more than deadlock_timeout).",
        )
    })
}

/// Waits for a lock of ours as long as for a table's.
fn wait_bounded(lock: u64, late: impl FnOnce() -> Error) -> Result<()> {
    settings::with_table_lock_timeout(|| wait_or(|| wait_exclusive(lock), late))
}

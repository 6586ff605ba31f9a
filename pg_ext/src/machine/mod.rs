//! machine: the declared states and moves of one of the user's tables. `sql/machine.sql` begins with an overview.
//!
//! `definition` is a definition as a tree, `stored` its row in once.machine. `shape` looks up the definition's names in
//! the catalog, `model` caches a machine in a backend, and `changes` counts the messages that make the cache stale.
//! `moves`, `patch`, `id`, `relation` and `sql` make parts of statements on the user's tables. Leases and teardowns
//! read and move a row with `user_row`; `transition` and `transition_many` are SQL functions. `after` records a move
//! for `history` and emits its event. `read` makes a definition from JSON, `inspect` and `diagram` show a definition,
//! and `validate` finds its faults (`rules`, `check_table`, `money`; `predicate` reads a `when`). machine_define is in
//! `guard/define.rs` and machine_check in `doctor/check.rs`, because both use modules that import `machine`.

pub mod after;
pub mod changes;
mod check_table;
pub mod columns;
pub mod definition;
pub mod diagram;
mod direct;
pub mod faults;
pub mod history;
pub mod id;
pub mod inspect;
pub mod model;
mod money;
pub mod moves;
pub mod patch;
pub mod permit;
mod predicate;
mod qualify;
pub mod read;
pub mod relation;
mod rules;
mod scalar;
pub mod shape;
pub mod sql;
pub mod statement;
pub mod stored;
pub mod transition;
pub mod transition_many;
pub mod user_row;
pub mod validate;

use crate::digest::first_64_bits;
use crate::error::{Error, Kind, Result};
use crate::settings;
use crate::trylock::{TryLock, wait_or};
use sha2::{Digest, Sha256};

/// The number of a machine's lock. Claims share it to their transaction's end; a change of the machine holds it alone.
pub fn lock_of(machine: &str) -> u64 {
    let digest = Sha256::new()
        .chain_update("machine\0")
        .chain_update(machine)
        .finalize();
    first_64_bits(&digest)
}

/// Takes a machine's lock exclusively to the end of this transaction. Waits for the other transactions that hold it.
pub fn wait_for_claims(machine: &str) -> Result<()> {
    wait_bounded(
        || TryLock::wait(lock_of(machine)).keep(),
        || format!("machine \"{machine}\" has open claims, or another session is changing it"),
    )
}

/// Makes machine_define wait while another session's open transaction defines a machine of this table.
fn wait_for_definitions(table: &columns::DefinedTable) -> Result<()> {
    // No machine's name begins with NUL.
    let lock = lock_of(&format!("\0table {}", table.oid.to_u32()));
    wait_bounded(
        || TryLock::wait(lock).keep(),
        || format!("table {} is being defined by another session", table.name),
    )
}

/// Waits for a lock at most lock_timeout (if that is 0, a second more than deadlock_timeout), then raises 55P03.
pub fn wait_bounded(wait: impl FnOnce(), problem: impl FnOnce() -> String) -> Result<()> {
    let late = || {
        Error::new(Kind::LockNotAvailable, problem()).hint(
            "Roll back and call it again once the transactions that use the machine or its tables have ended, or SET \
             lock_timeout to a longer time (0 means a second more than deadlock_timeout).",
        )
    };
    settings::with_table_lock_timeout(|| wait_or(wait, late))
}

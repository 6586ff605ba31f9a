//! Locks a machine's tables for the DDL on their guards.
//!
//! By PostgreSQL's own means: in the order of their oids, each with its partitions, as LOCK TABLE does; lock_timeout
//! bounds each wait, and a deadlock is the server's 40P01.

use super::install::got_another_name;
use crate::error::{Error, Kind, Result};
use crate::machine::relation::{self, Relation};
use crate::settings;
use crate::trylock::wait_or;

/// Waits for these tables with these modes; each is to have its name afterwards.
pub fn lock_all(machine: &str, mut tables: Vec<(Relation, u32)>) -> Result<()> {
    tables.sort_by_key(|(table, _)| table.oid.to_u32());
    settings::with_table_lock_timeout(|| {
        for (table, mode) in &tables {
            lock(machine, table, *mode)?;
            for partition in table.partitions().into_iter().filter_map(Relation::of) {
                lock(machine, &partition, *mode)?;
            }
        }
        Ok(())
    })?;
    let is_named = |(table, _): &(Relation, u32)| Relation::of(table.oid).as_ref() == Some(table);
    match tables.iter().all(is_named) {
        true => Ok(()),
        false => Err(got_another_name(machine)),
    }
}

fn lock(machine: &str, table: &Relation, mode: u32) -> Result<()> {
    wait_or(
        || relation::lock(table.oid, mode),
        || {
            let name = &table.name;
            Error::new(
            Kind::LockNotAvailable,
            format!("could not lock table {name} of machine \"{machine}\" within the lock_timeout"),
        )
        .hint(
            "Roll back and call it again while fewer transactions use the table, or SET lock_timeout for longer (where \
             it is 0, a second more than deadlock_timeout): writers of the table queue behind the wait.",
        )
        },
    )
}

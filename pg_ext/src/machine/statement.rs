//! A prepared statement over a machine's tables.
//!
//! The server looks the tables' names up again after a wait for a lock, and when it plans again. By then another table
//! may have one of these names, or a column may have another type. So the tables are locked by their oids before the
//! statement runs; after that they do not change. A schema can still be renamed, so the names are checked once more
//! after the run.

use super::changes;
use super::relation::{Relation, UserColumn};
use super::shape::MachineShape;
use crate::error::{Error, Kind, Result};
use crate::spi::{Plan, Row};
use crate::table::Snapshot;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::Cell;

pub struct Statement {
    plan: Plan,
    tables: Vec<NamedTable>,
    /// The count of [`changes::TABLES`] when the names were last checked.
    seen: Cell<u64>,
}

/// The locks on the tables of the machine, its items and the wallets. Do not take a weaker lock first: its upgrade
/// could deadlock with another session's upgrade.
pub type Locks = [u32; 3];

/// The statement does not name the table.
pub const NO: u32 = pg_sys::NoLock;
/// The statement reads the table.
pub const READ: u32 = pg_sys::AccessShareLock;
/// The statement locks rows of the table.
pub const ROW_SHARE: u32 = pg_sys::RowShareLock;
/// The statement updates rows of the table.
pub const WRITE: u32 = pg_sys::RowExclusiveLock;

/// A table of a statement, the columns that the statement may use, and the lock that it takes.
struct NamedTable {
    table: Relation,
    columns: Vec<UserColumn>,
    mode: u32,
}

impl Statement {
    /// `row` names the row in the message of a serialization failure (40001).
    pub fn prepare(
        sql: &str,
        types: &[Oid],
        row: String,
        shape: &MachineShape,
        locks: Locks,
    ) -> Result<Statement> {
        let named = shape.tables().zip(locks).filter(|(_, mode)| *mode != NO);
        let tables: Vec<_> = named
            .map(|((table, columns), mode)| NamedTable {
                table: table.clone(),
                columns: columns.into_iter().cloned().collect(),
                mode,
            })
            .collect();
        for NamedTable { table, mode, .. } in &tables {
            table.lock(*mode);
        }
        let seen = changes::TABLES.count();
        ensure_named(&tables)?;
        Ok(Statement {
            plan: Plan::prepare(sql, types, row)?,
            tables,
            seen: Cell::new(seen),
        })
    }

    /// Locks the tables and all tables below them. Take a new snapshot afterwards: an older snapshot shows no row of a
    /// table that ALTER TABLE rewrote during the wait.
    pub fn hold(&self) -> Result<()> {
        for NamedTable { table, mode, .. } in &self.tables {
            table.lock_with_all_below(*mode);
        }
        self.ensure_still_named()
    }

    /// See [`Plan::query`]. The server takes the snapshot after it has locked all tables.
    pub fn query(&self, args: &[Option<Datum>]) -> Result<Vec<Row>> {
        for NamedTable { table, mode, .. } in &self.tables {
            table.lock(*mode);
        }
        self.ensure_still_named()?;
        self.run(|| self.plan.query(args))
    }

    /// Reads in the latest snapshot, at every isolation level.
    pub fn query_latest(&self, args: &[Option<Datum>]) -> Result<Vec<Row>> {
        self.hold()?;
        self.query_with(args, &Snapshot::latest())
    }

    /// See [`Plan::query_with`]. Lock the tables before you make the snapshot.
    pub fn query_with(&self, args: &[Option<Datum>], snapshot: &Snapshot) -> Result<Vec<Row>> {
        self.run(|| self.plan.query_with(args, snapshot))
    }

    /// See [`Plan::stream`]. Lock the tables before you make the snapshot.
    pub fn stream(
        &self,
        args: &[Option<Datum>],
        snapshot: &Snapshot,
        chunk: i64,
        each: impl FnMut(Vec<Row>) -> Result<bool>,
    ) -> Result<()> {
        self.run(|| self.plan.stream(args, snapshot, chunk, each))
    }

    fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work()?;
        self.ensure_still_named()?;
        Ok(done)
    }

    fn ensure_still_named(&self) -> Result<()> {
        let changes = changes::TABLES.count();
        if self.seen.get() != changes {
            ensure_named(&self.tables)?;
            self.seen.set(changes);
        }
        Ok(())
    }
}

fn ensure_named(tables: &[NamedTable]) -> Result<()> {
    tables.iter().try_for_each(|named| {
        let table = &named.table;
        let is_same = |c: &UserColumn| table.column(&c.plain).as_ref() == Some(c);
        let what = match () {
            () if !table.is_still_named() => "another name",
            () if !named.columns.iter().all(is_same) => "other columns",
            () => return Ok(()),
        };
        Err(Error::new(
            Kind::RetryTransaction,
            format!(
                "table {} got {what}, or was dropped, during the call",
                table.name
            ),
        )
        .hint("Roll back and run the whole transaction again."))
    })
}

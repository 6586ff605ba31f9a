//! A statement over a machine's tables, kept.
//!
//! It names the tables, and the server looks names up again when it has waited for a lock or prepares the statement anew.
//! By then a table may have another name, and another table its name. So the tables are locked by their oids first:
//! none of them gets another name after that. Schemas can; so the names are looked at once more when it has run.

use super::changes;
use super::relation::Relation;
use crate::error::{Error, Kind, Result};
use crate::spi::{Plan, Row};
use crate::table::Snapshot;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::Cell;

pub struct Statement {
    plan: Plan,
    tables: Vec<Named>,
    /// The count of [`changes::of_tables`] when each of them last had its name.
    seen: Cell<u64>,
}

/// A table that a statement names, and the lock that it takes.
struct Named {
    table: Relation,
    mode: u32,
}

impl Statement {
    /// `tables` are those that it may name; `row` is how errors of a lost race name what it is about.
    pub fn prepare<'a>(
        sql: &str,
        types: &[Oid],
        row: String,
        tables: impl Iterator<Item = &'a Relation>,
    ) -> Result<Statement> {
        let tables: Vec<_> = tables.filter_map(|t| Named::of(t, sql)).collect();
        lock(&tables);
        let seen = changes::of_tables();
        ensure_named(&tables)?;
        Ok(Statement {
            plan: Plan::prepare(sql, types, row)?,
            tables,
            seen: Cell::new(seen),
        })
    }

    /// Waits for the tables. What looks under a snapshot of its own makes that afterwards: an ALTER TABLE that it waited for
    /// may have rewritten the table, and an older snapshot shows no row of it.
    pub fn hold(&self) -> Result<()> {
        lock(&self.tables);
        self.ensure_still_named()
    }

    /// See [`Plan::query`].
    pub fn query(&self, args: &[Option<Datum>]) -> Result<Vec<Row>> {
        self.run(|| self.plan.query(args))
    }

    /// What is committed now and what we wrote, whatever the isolation level.
    pub fn look_latest(&self, args: &[Option<Datum>]) -> Result<Vec<Row>> {
        self.hold()?;
        self.look(args, &Snapshot::latest())
    }

    /// See [`Plan::look`].
    pub fn look(&self, args: &[Option<Datum>], snapshot: &Snapshot) -> Result<Vec<Row>> {
        self.run(|| self.plan.look(args, snapshot))
    }

    /// See [`Plan::stream`].
    pub fn stream(
        &self,
        args: &[Option<Datum>],
        snapshot: &Snapshot,
        step: i64,
        each: impl FnMut(Vec<Row>) -> Result<bool>,
    ) -> Result<()> {
        self.run(|| self.plan.stream(args, snapshot, step, each))
    }

    fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.hold()?;
        let done = work()?;
        self.ensure_still_named()?;
        Ok(done)
    }

    fn ensure_still_named(&self) -> Result<()> {
        let changes = changes::of_tables();
        if self.seen.get() != changes {
            ensure_named(&self.tables)?;
            self.seen.set(changes);
        }
        Ok(())
    }
}

impl Named {
    /// None: the statement does not name it.
    fn of(table: &Relation, sql: &str) -> Option<Named> {
        let says = |what: &str| sql.contains(&format!("{what} {}", table.name));
        let mode = match () {
            () if !sql.contains(&table.name) => return None,
            () if says("UPDATE") || says("LOCK TABLE") => pg_sys::RowExclusiveLock,
            () if ["FOR NO KEY UPDATE", "FOR UPDATE", "FOR KEY SHARE"]
                .iter()
                .any(|f| sql.contains(f)) =>
            {
                pg_sys::RowShareLock
            }
            () => pg_sys::AccessShareLock,
        };
        Some(Named {
            table: table.clone(),
            mode,
        })
    }
}

/// As the statement will: no weaker, or who holds the table and wants more of it would wait for us, and we for him.
fn lock(tables: &[Named]) {
    for Named { table, mode } in tables {
        table.lock(*mode);
    }
}

fn ensure_named(tables: &[Named]) -> Result<()> {
    for Named { table, .. } in tables {
        if Relation::of(table.oid).is_none_or(|now| now.name != table.name) {
            return Err(Error::new(
                Kind::RetryTransaction,
                format!(
                    "table {} got another name meanwhile, or is gone",
                    table.name
                ),
            )
            .hint("Roll back and run the whole transaction again."));
        }
    }
    Ok(())
}

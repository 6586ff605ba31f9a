//! Owns the execution of calls: each call is one statement on the caller's own executor.
//!
//! Invariant: over tokio-postgres a call is one round trip, the Parse-Bind-Execute-Sync of an unnamed statement. The
//! call leaves nothing behind in the session, so it works through a transaction-mode pooler. If a call has waited for a
//! second (`SUSPICIOUS`) and is dropped before its answer comes, its pooled connection is closed.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Object;
use tokio::time::Instant;
use tokio_postgres::types::{FromSql, ToSql, Type};

use crate::Error;

/// If a call has no answer after this time, its server may have vanished (a failover, a firewall). TCP alone reports
/// that only after a quarter of an hour.
const SUSPICIOUS: Duration = Duration::from_secs(1);

/// The arguments of a call, each with the PostgreSQL type that it is sent as.
pub type Args<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// A row of an answer, from any driver.
#[derive(Debug)]
pub struct Row(Brought);

/// A column of a row: its name, its type, and its value in the binary wire format.
type Column = (String, Type, Option<Vec<u8>>);

#[derive(Debug)]
enum Brought {
    TokioPostgres(tokio_postgres::Row),
    Columns(Vec<Column>),
}

impl Row {
    /// Makes a row from its columns, for an executor over another driver. Each column has a name, a type, and a value
    /// in the binary wire format.
    pub fn of_columns(columns: impl IntoIterator<Item = (String, Type, Option<Vec<u8>>)>) -> Self {
        Self(Brought::Columns(columns.into_iter().collect()))
    }
}

impl From<tokio_postgres::Row> for Row {
    fn from(row: tokio_postgres::Row) -> Self {
        Self(Brought::TokioPostgres(row))
    }
}

/// Something that runs a statement: a connection, a transaction, a pool.
///
/// Pass a transaction to make a call part of it; pass a pool or a connection to commit each call by itself.
/// Implement the trait for a wrapper of your own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` runs no statements for pg_once",
    label = "not an executor",
    note = "pass a reference to a `deadpool_postgres::Pool`, a `tokio_postgres::Client`, or a transaction of either: `&pool`",
    note = "with the feature `sqlx` also to a `sqlx::PgPool`, or `&Sqlx::on(&mut transaction)`"
)]
pub trait Executor: Sync {
    /// Runs one statement and returns its rows.
    ///
    /// # Errors
    /// Any error of the connection or the server.
    fn query(
        &self,
        sql: &str,
        args: &Args<'_>,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;
}

/// An executor on which each call commits by itself.
///
/// Helpers that make several calls with other work in between, such as [`Key::run`](crate::Key::run), require such an
/// executor: the claim must be committed before the work, so that other sessions see it.
#[diagnostic::on_unimplemented(
    message = "the calls on `{Self}` do not commit by themselves",
    label = "neither a pool nor a connection",
    note = "pass `&pool` or `&client`; inside your own transaction use the single calls: `key.claim`, `lease.complete`"
)]
pub trait Autocommit: Executor {}

impl<E: Executor> Executor for &E {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        (**self).query(sql, args).await
    }
}

impl<E: Autocommit> Autocommit for &E {}

impl<E: Executor + Send> Executor for Arc<E> {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        (**self).query(sql, args).await
    }
}

impl<E: Autocommit + Send> Autocommit for Arc<E> {}

macro_rules! over_tokio_postgres {
    ($($connection:ty),*) => {$(
        impl Executor for $connection {
            async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
                let rows = self.query_typed(sql, args).await?;
                Ok(rows.into_iter().map(Row::from).collect())
            }
        }
    )*};
}

over_tokio_postgres!(tokio_postgres::Client, tokio_postgres::Transaction<'_>);
over_tokio_postgres!(
    deadpool_postgres::Client,
    deadpool_postgres::Transaction<'_>
);

impl Autocommit for tokio_postgres::Client {}

impl Autocommit for deadpool_postgres::Client {}

impl Executor for deadpool_postgres::Pool {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        let mut asked = Asked {
            connection: Some(self.get().await?),
            at: Instant::now(),
            close: |connection| drop(Object::take(connection)),
        };
        let connection = asked.connection.as_ref().ok_or(Error::TimedOut)?;
        let answer = connection.query(sql, args).await;
        asked.connection = None; // back to the pool
        answer
    }
}

impl Autocommit for deadpool_postgres::Pool {}

/// A pooled connection that waits for an answer; if dropped after `SUSPICIOUS`, it is closed.
pub(crate) struct Asked<C> {
    pub(crate) connection: Option<C>,
    pub(crate) at: Instant,
    pub(crate) close: fn(C),
}

impl<C> Drop for Asked<C> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && self.at.elapsed() >= SUSPICIOUS
        {
            tracing::debug!("no answer; the connection is closed");
            (self.close)(connection);
        }
    }
}

/// Runs one call. Its first arguments are `names` (such as scope and key), the others are `own`.
pub(crate) async fn call<E: Executor>(
    exec: &E,
    sql: &str,
    names: &[&str],
    own: &Args<'_>,
) -> Result<Vec<Row>, Error> {
    let named = names.iter().map(|name| (name as _, Type::TEXT));
    let args: Vec<_> = named.chain(own.iter().cloned()).collect();
    exec.query(sql, &args).await
}

/// Returns the only row of an answer; any other number of rows is an error.
pub(crate) fn only<T>(rows: Vec<T>) -> Result<T, Error> {
    match <[T; 1]>::try_from(rows) {
        Ok([row]) => Ok(row),
        Err(rows) => Err(Error::Answer(format!(
            "one row expected, {} came",
            rows.len()
        ))),
    }
}

/// Reads a row whose columns are the fields of a struct.
macro_rules! of_row {
    ($name:ident: $($field:ident),* $(; $unset:ident)?) => {
        impl $name {
            pub(super) fn of_row(row: &crate::Row) -> Result<Self, crate::Error> {
                Ok(Self {
                    $($field: crate::executor::column(row, stringify!($field))?,)*
                    $($unset: None,)?
                })
            }
        }
    };
}
pub(crate) use of_row;

/// Reads one column; a missing column or another type is an error, never a panic.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, Error> {
    match &row.0 {
        Brought::TokioPostgres(row) => Ok(row.try_get(name)?),
        Brought::Columns(columns) => read(columns.iter().find(|column| column.0 == name), name),
    }
}

pub(crate) fn value<'a, T: FromSql<'a>>(row: &'a Row) -> Result<T, Error> {
    match &row.0 {
        Brought::TokioPostgres(row) => Ok(row.try_get(0)?),
        Brought::Columns(columns) => read(columns.first(), "0"),
    }
}

fn read<'a, T: FromSql<'a>>(column: Option<&'a Column>, name: &str) -> Result<T, Error> {
    let wrong = |why: &dyn Display| Error::Answer(format!("column {name}: {why}"));
    match column {
        None => Err(wrong(&"missing")),
        Some((_, of, _)) if !T::accepts(of) => Err(wrong(of)),
        Some((_, of, value)) => {
            T::from_sql_nullable(of, value.as_deref()).map_err(|error| wrong(&error))
        }
    }
}

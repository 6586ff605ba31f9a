//! Owns the way to the server: through the caller's own executor, one round trip a call.
//!
//! Invariant: a call is one Parse-Bind-Execute-Sync of an unnamed statement. Nothing is left behind
//! in the session, so every executor works through a transaction-mode pooler. A pooled connection on
//! which a call timed out is not used again.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use deadpool_postgres::Object;
use tokio::time::Instant;
pub(crate) use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;
use tokio_postgres::types::{FromSql, ToSql, Type};

use crate::Error;

/// After this time without an answer the server of a call may have vanished (a failover, a firewall), which TCP
/// alone reports only after a quarter of an hour.
const SUSPICIOUS: Duration = Duration::from_secs(1);

/// The arguments of a call: each with the type it is sent as.
pub type Args<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// Something that runs a statement: a connection, a transaction, a pool.
///
/// Pass a transaction to make a call part of it; pass a pool or a connection to commit each call by itself.
/// Implement it for a wrapper of your own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` runs no statements for pg_once",
    label = "not an executor",
    note = "pass a reference to a `deadpool_postgres::Pool`, a `tokio_postgres::Client`, or a transaction of either: `&pool`"
)]
pub trait Executor: Sync {
    /// Runs one statement in one round trip.
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
/// The helpers that make several calls with other work in between ([`Key::run`](crate::Key::run)) ask for it,
/// because inside one open transaction no other session sees their claim.
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

impl Executor for tokio_postgres::Client {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        Ok(self.query_typed(sql, args).await?)
    }
}

impl Autocommit for tokio_postgres::Client {}

impl Executor for tokio_postgres::Transaction<'_> {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        Ok(self.query_typed(sql, args).await?)
    }
}

impl Executor for deadpool_postgres::Client {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        Ok(self.query_typed(sql, args).await?)
    }
}

impl Autocommit for deadpool_postgres::Client {}

impl Executor for deadpool_postgres::Transaction<'_> {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        Ok(self.query_typed(sql, args).await?)
    }
}

impl Executor for deadpool_postgres::Pool {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        let mut asked = Asked {
            client: Some(self.get().await?),
            at: Instant::now(),
        };
        let client = asked.client.as_ref().ok_or(Error::TimedOut)?;
        let answer = client.query_typed(sql, args).await;
        asked.client = None; // back to the pool
        Ok(answer?)
    }
}

impl Autocommit for deadpool_postgres::Pool {}

/// A pooled connection that waits for an answer.
struct Asked {
    client: Option<Object>,
    at: Instant,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(client) = self.client.take()
            && self.at.elapsed() >= SUSPICIOUS
        {
            tracing::debug!("no answer; the connection is closed");
            drop(Object::take(client));
        }
    }
}

/// One call about a subject: the names of the subject first, then the call's own arguments.
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

/// The only row of an answer that always has one.
pub(crate) fn only(rows: Vec<Row>) -> Result<Row, Error> {
    match <[Row; 1]>::try_from(rows) {
        Ok([row]) => Ok(row),
        Err(rows) => Err(Error::Answer(format!(
            "one row expected, {} came",
            rows.len()
        ))),
    }
}

/// Reads a row whose columns are the fields of a struct.
macro_rules! of_row {
    ($name:ident: $($field:ident),*) => {
        impl $name {
            pub(super) fn of_row(row: &tokio_postgres::Row) -> Result<Self, crate::Error> {
                Ok(Self { $($field: crate::executor::column(row, stringify!($field))?),* })
            }
        }
    };
}
pub(crate) use of_row;

/// Reads one column; a missing one or another type is an error, never a panic.
pub(crate) fn column<'a, T: FromSql<'a>>(
    row: &'a Row,
    name: impl RowIndex + fmt::Display,
) -> Result<T, Error> {
    Ok(row.try_get(name)?)
}

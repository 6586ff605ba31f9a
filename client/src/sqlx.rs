//! Runs calls over sqlx: on a pool, a connection or a transaction of sqlx.
//!
//! Invariant: like the caller's own statements, each statement is prepared once for a connection and then cached. The
//! first call of a statement on a connection takes two round trips, a later call one (`test_before_acquire` of a pool
//! adds one). If a call has no answer for a second and is then dropped, its pooled connection is not used again.

use ::sqlx::encode::{Encode, IsNull};
use ::sqlx::error::BoxDynError;
use ::sqlx::postgres::types::Oid;
use ::sqlx::postgres::{PgArgumentBuffer, PgArguments, PgConnection, PgPool, PgRow, PgTypeInfo};
use ::sqlx::{Arguments, Column, Connection, Postgres};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{self, ToSql};

use crate::executor::Asked;
use crate::{Args, Autocommit, Error, Executor, Row};

/// The SQLSTATE of a stale statement: its function now returns other columns.
const STALE: &str = "0A000";

/// An executor over a connection or transaction of sqlx: `lease.complete(&Sqlx::on(&mut transaction), &answer)`.
#[derive(Debug)]
pub struct Sqlx<'c>(Mutex<&'c mut PgConnection>);

impl<'c> Sqlx<'c> {
    /// Makes an executor of a connection (`&mut connection`) or an open transaction (`&mut transaction`).
    pub fn on(connection: &'c mut PgConnection) -> Self {
        Self(Mutex::new(connection))
    }
}

impl Executor for Sqlx<'_> {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        ask(*self.0.lock().await, sql, args).await
    }
}

impl Executor for PgPool {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        let mut asked = Asked {
            connection: Some(self.acquire().await?),
            at: Instant::now(),
            close: |mut connection| connection.close_on_drop(),
        };
        let connection = asked.connection.as_mut().ok_or(Error::TimedOut)?;
        let answer = ask(connection, sql, args).await;
        asked.connection = None; // back to the pool
        answer
    }
}

impl Autocommit for PgPool {}

/// Runs a statement. After an update of the extension, a cached statement may be stale; then it is prepared again. In
/// an open transaction the call still fails, because the stale statement has aborted the transaction.
async fn ask(connection: &mut PgConnection, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
    match fetch(connection, sql, args).await {
        Err(stale) if stale.code() == Some(STALE) => {
            connection.clear_cached_statements().await?;
            fetch(connection, sql, args).await.or(Err(stale))
        }
        answer => answer,
    }
}

async fn fetch(
    connection: &mut PgConnection,
    sql: &str,
    args: &Args<'_>,
) -> Result<Vec<Row>, Error> {
    let mut arguments = PgArguments::default();
    for (value, of) in args {
        let argument = Argument(*value, of);
        arguments.add(argument).map_err(::sqlx::Error::Encode)?;
    }
    let query = ::sqlx::query_with(sql, arguments);
    let rows = query.fetch_all(connection).await?;
    Ok(rows.iter().map(row_of).collect::<Result<_, _>>()?)
}

fn row_of(row: &PgRow) -> Result<Row, ::sqlx::Error> {
    use ::sqlx::Row as _;
    let columns = row.columns().iter().map(|column| {
        let oid = column.type_info().oid().unwrap_or_default();
        let of = types::Type::from_oid(oid.0).unwrap_or(types::Type::UNKNOWN);
        let value = row.try_get_raw(column.ordinal())?;
        let bytes = value.as_bytes().ok(); // an error means NULL
        Ok((column.name().to_owned(), of, bytes.map(<[u8]>::to_vec)))
    });
    let columns: Result<Vec<_>, ::sqlx::Error> = columns.collect();
    columns.map(Row::of_columns)
}

/// An argument of a call; it is sent in the binary wire format.
struct Argument<'a>(&'a (dyn ToSql + Sync), &'a types::Type);

impl ::sqlx::Type<Postgres> for Argument<'_> {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid::default())
    }
}

impl Encode<'_, Postgres> for Argument<'_> {
    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.1.oid())))
    }

    fn encode_by_ref(&self, out: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let mut bytes = BytesMut::new();
        Ok(match self.0.to_sql_checked(self.1, &mut bytes)? {
            types::IsNull::Yes => IsNull::Yes,
            types::IsNull::No => {
                out.extend_from_slice(&bytes);
                IsNull::No
            }
        })
    }
}

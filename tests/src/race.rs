//! What tests of races need: to see that a backend waits, and what a call wrote.
//!
//! A race is provoked by watching for the lock wait and then letting go, never by sleeping.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, GenericClient, Row, SimpleQueryMessage, SimpleQueryRow};

use crate::pooler::NAMED;

/// How long a race may take to come about.
const PATIENCE: Duration = Duration::from_secs(90);

const BACKEND_PID: &str =
    "select pg_catalog.pg_backend_pid(), pg_catalog.current_setting('application_name')";

/// Without a transaction id nothing was written and no row was locked.
const XID_UNASSIGNED: &str = "select pg_catalog.pg_current_xact_id_if_assigned() is null";

/// `pg_stat_activity` alone is not enough: a backend shows `Lock` a moment before its lock request
/// is in the table that the deadlock detector and `pg_blocking_pids` read.
const WAITS: &str = "\
select a.state, a.wait_event_type, a.wait_event, a.query,
       a.wait_event_type = 'Lock' and pg_catalog.cardinality(pg_catalog.pg_blocking_pids(a.pid)) > 0
  from pg_catalog.pg_stat_activity as a
 where a.pid = $1 or ($2 <> '' and a.application_name = $2 and a.state <> 'idle')
 order by 5 desc
 limit 1";

/// A position in the write-ahead log, in bytes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Where the next record will be written. If it has not moved between two looks, nobody in the whole cluster wrote
    /// anything, not even autovacuum or a checkpoint.
    ///
    /// # Errors
    /// If the server is a standby or not there.
    pub async fn inserted(client: &Client) -> Result<Self> {
        Self::of(client, "pg_current_wal_insert_lsn").await
    }

    pub(crate) async fn of(client: &Client, function: &str) -> Result<Self> {
        let sql = format!("select (pg_catalog.{function}() - '0/0'::pg_lsn)::bigint");
        let bytes = look(client, &sql).await?;
        Ok(Self(bytes.get(0).context("NULL")?.parse()?))
    }

    /// Bytes written since `earlier`.
    #[must_use]
    pub fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The session to watch: a backend's pid. Behind a pooler, a client's name, since its next statement may run in another
/// backend.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Session {
    pid: i32,
    name: String,
}

impl Session {
    /// The session of `client`.
    ///
    /// # Errors
    /// If the connection is gone.
    pub async fn of(client: &Client) -> Result<Self> {
        let row = look(client, BACKEND_PID).await?;
        let (pid, name) = (number(&row, 0)?, row.get(1).unwrap_or_default());
        if name.starts_with(NAMED) {
            let name = name.to_owned();
            return Ok(Self { pid: 0, name });
        }
        Ok(Self::from(pid))
    }
}

impl From<i32> for Session {
    /// The backend of this process id.
    fn from(pid: i32) -> Self {
        let name = String::new();
        Self { pid, name }
    }
}

/// The process id of the backend that serves `client` now; behind a pooler another backend may serve its next
/// transaction.
///
/// # Errors
/// If the connection is gone.
pub async fn backend_pid(client: &Client) -> Result<i32> {
    number(&look(client, BACKEND_PID).await?, 0)
}

/// The one row of a query without parameters, without a prepared statement.
async fn look(client: &impl GenericClient, sql: &str) -> Result<SimpleQueryRow> {
    let messages = client.simple_query(sql).await?;
    let row = messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    row.context("no row")
}

fn number(row: &SimpleQueryRow, column: usize) -> Result<i32> {
    Ok(row.get(column).context("NULL")?.parse()?)
}

async fn waits(admin: &Client, session: &Session) -> Result<Option<Row>> {
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&session.pid, Type::INT4), (&session.name, Type::TEXT)];
    let rows = admin.query_typed(WAITS, &parameters).await?;
    Ok(rows.into_iter().next())
}

/// Waits until the session waits for a lock that another backend holds.
///
/// # Errors
/// If it does not wait within a bounded time; the error says what it does instead.
pub async fn wait_until_waiting(admin: &Client, session: impl Into<Session>) -> Result<()> {
    let session = session.into();
    let mut seen = String::from("is not there");
    let waiting = poll_async("a backend to wait for a lock", async || {
        let Some(row) = waits(admin, &session).await? else {
            return Ok(None);
        };
        let text = |column: usize| row.get::<_, Option<String>>(column).unwrap_or_default();
        seen = format!(
            "is {}, wait event {}/{}, query: {}",
            text(0),
            text(1),
            text(2),
            text(3)
        );
        Ok((row.get::<_, Option<bool>>(4) == Some(true)).then_some(()))
    })
    .await;
    waiting.with_context(|| format!("{session:?} {seen}"))
}

/// Whether the session waits at this moment for a lock that another backend holds.
///
/// # Errors
/// If the connection of `admin` is gone.
pub async fn is_waiting(admin: &Client, session: &Session) -> Result<bool> {
    let row = waits(admin, session).await?;
    Ok(row.is_some_and(|row| row.get::<_, Option<bool>>(4) == Some(true)))
}

/// Whether the present transaction of `client` has no transaction id, and so has written nothing.
/// Ask inside the transaction that made the calls in question.
///
/// # Errors
/// If the connection is gone or its transaction failed.
pub async fn xid_unassigned(client: &impl GenericClient) -> Result<bool> {
    Ok(look(client, XID_UNASSIGNED).await?.get(0) == Some("t"))
}

/// The SQLSTATE of a failed call; an empty text when it did not fail, and `"-"` when the failure
/// did not come from the server.
pub fn sqlstate<T>(result: &Result<T, Error>) -> &str {
    match result {
        Ok(_) => "",
        Err(error) => error
            .code()
            .map_or("-", tokio_postgres::error::SqlState::code),
    }
}

/// Asks `look` again and again until it has an answer; the error of a timeout names `what`.
///
/// # Errors
/// When `look` fails, or has no answer in time.
pub async fn poll_async<T>(
    what: &str,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bail!("waited {} s for {what}", PATIENCE.as_secs())
}

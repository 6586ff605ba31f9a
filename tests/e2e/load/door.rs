//! The way to the server, wherever it is now, and what a statement can come to while servers die.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pg_once_tests::through_pooler;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// How long a server may be away, and how long one statement may run.
const PATIENCE: Duration = Duration::from_secs(60);

/// A row as text; None: NULL.
pub type Row = Vec<Option<String>>;

/// Why a statement gave no rows.
#[derive(Debug)]
pub enum Fault {
    /// The connection is gone: nobody knows whether the statement was committed.
    Gone,
    /// ON001: what the token covered is somebody else's.
    Lost,
    /// ON006: an earlier transaction of this token, whose answer was lost, has done it.
    Done,
    /// The transaction lost a race and may be tried again.
    Again,
    /// ON002, ON005: not now, somebody else is further.
    NotNow,
}

/// Where the server is, and whether there is still something to do.
pub struct Door {
    url: Mutex<String>,
    /// Nothing new is begun.
    quiet: AtomicBool,
    /// Everybody leaves.
    closed: AtomicBool,
    /// Statements that were answered; tells that the load goes on.
    answered: AtomicU64,
}

impl Door {
    pub fn to(url: String) -> Door {
        Door {
            url: Mutex::new(url),
            quiet: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            answered: AtomicU64::new(0),
        }
    }

    /// From now on the server is there.
    pub fn move_to(&self, url: String) {
        *self.url.lock().unwrap() = url;
    }

    pub fn hush(&self) {
        self.quiet.store(true, Ordering::Relaxed);
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    pub fn close(&self) {
        self.hush();
        self.closed.store(true, Ordering::Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// A session, as soon as the server lets one in.
    pub async fn enter(&self) -> Session<'_> {
        let begin = Instant::now();
        loop {
            let url = self.url.lock().unwrap().clone();
            let why = match timeout(PATIENCE, answering(&url)).await {
                Ok(Ok(client)) => return Session { client, door: self },
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            assert!(begin.elapsed() < PATIENCE, "nobody lets us in: {why}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A connection that has been answered once: a pooler lets clients in before it knows whether the server is there.
async fn answering(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move {
        // The client's own calls report what goes wrong.
        let _ = connection.await;
    });
    client.simple_query("select 1").await?;
    Ok(client)
}

/// A connection of one client.
pub struct Session<'a> {
    client: Client,
    door: &'a Door,
}

impl Session<'_> {
    /// Comes in again after the connection was lost, or rolls back what a failed statement left open.
    pub async fn recover(&mut self, fault: &Fault) {
        let open = !matches!(fault, Fault::Gone);
        if !open || self.client.batch_execute("rollback").await.is_err() {
            *self = self.door.enter().await;
        }
    }

    /// The rows of all statements in `sql`; an answer that no client should ever get ends the test.
    pub async fn rows(&self, sql: &str) -> Result<Vec<Row>, Fault> {
        self.rows_within(PATIENCE, sql).await
    }

    /// The same for a statement whose work is not bounded.
    pub async fn rows_within(&self, patience: Duration, sql: &str) -> Result<Vec<Row>, Fault> {
        let answer = timeout(patience, self.client.simple_query(sql)).await;
        let Ok(answer) = answer else {
            panic!("no answer within {patience:?}: {sql}");
        };
        match answer {
            Ok(messages) => {
                self.door.answered.fetch_add(1, Ordering::Relaxed);
                Ok(messages.iter().filter_map(row).collect())
            }
            Err(error) => Err(fault(&error, sql)),
        }
    }

    /// The first row.
    pub async fn row(&self, sql: &str) -> Result<Row, Fault> {
        let mut rows = self.rows(sql).await?;
        assert!(!rows.is_empty(), "no row: {sql}");
        Ok(rows.swap_remove(0))
    }

    /// The first column of the first row.
    pub async fn text(&self, sql: &str) -> Result<String, Fault> {
        Ok(text(&self.row(sql).await?, 0).to_owned())
    }
}

fn row(message: &SimpleQueryMessage) -> Option<Row> {
    match message {
        SimpleQueryMessage::Row(row) => Some(
            (0..row.len())
                .map(|i| row.get(i).map(str::to_owned))
                .collect(),
        ),
        _ => None,
    }
}

fn fault(error: &tokio_postgres::Error, sql: &str) -> Fault {
    let Some(refusal) = error.as_db_error() else {
        return Fault::Gone;
    };
    match refusal.code().code() {
        // A server that ends, starts, or is still a standby; the janitor's slot is its own affair. With 08P01 a pooler
        // tells that the server is gone. A cancelled statement, too, may have been the last of its transaction.
        "57P01" | "57P02" | "57P03" | "25006" | "57014" => Fault::Gone,
        "08P01" if through_pooler() => Fault::Gone,
        "ON001" => Fault::Lost,
        "ON006" => Fault::Done,
        "40001" | "40P01" | "55P03" => Fault::Again,
        "ON002" | "ON005" => Fault::NotNow,
        code => panic!("{code} {}\n{sql}", refusal.message()),
    }
}

/// A column that is not NULL.
pub fn text(row: &Row, column: usize) -> &str {
    let Some(text) = row[column].as_deref() else {
        panic!("column {column} is NULL: {row:?}");
    };
    text
}

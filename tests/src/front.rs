//! How the tests' sessions connect: through PgBouncer in transaction mode where `PG_ONCE_POOLER=1` asks for that, else
//! directly.
//!
//! A cluster has one pooler, started by the first session that comes, and it stays while the server is killed,
//! restarted and promoted, as in production. `Cluster::connect` is direct in any case: to look at other sessions, to do
//! what a pooler in transaction mode cannot do, and to see that a server is gone, which a pooler hides.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio_postgres::{Client, Error};

use crate::builder::SUPERUSER;
use crate::cluster::Cluster;
use crate::pooler::{PgBouncer, PoolMode};

/// Asks for the pooler.
const VARIABLE: &str = "PG_ONCE_POOLER";

/// Server sessions for each role in each database: more than any test has in transactions at a time.
const SERVERS: u32 = 100;

/// How long a pooler may take to find a server again that was away.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether sessions are to go through a pooler.
#[must_use]
pub fn through_pooler() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value != "0")
}

impl Cluster {
    /// The pooler in front of this cluster; none where sessions go directly.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn front(&self) -> Result<Option<&PgBouncer>> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        if !through_pooler() {
            return Ok(None);
        }
        let _one = ONE_AT_A_TIME.lock();
        let front = self.front_door();
        if front.get().is_none() {
            let pooler = self.pgbouncer(PoolMode::Transaction, SERVERS, &[])?;
            // The lock keeps others out, so this cannot fail.
            let _ = front.set(pooler);
        }
        Ok(front.get())
    }

    /// Where a client of `db` goes in as superuser.
    ///
    /// # Errors
    /// As [`Cluster::front`].
    pub fn front_url(&self, db: &str) -> Result<String> {
        Ok(match self.front()? {
            Some(pooler) => pooler.url(db),
            None => self.url(db),
        })
    }

    /// A session that connects this way. Through a pooler it has a name of its own (`race::Session`), and it has been
    /// answered once: a pooler lets clients in before it knows that the server is back.
    ///
    /// # Errors
    /// If the server refuses, or is not there.
    pub async fn enter_as(&self, role: &str, db: &str) -> Result<Client> {
        let Some(pooler) = self.front()? else {
            return self.connect_as(role, db).await;
        };
        let begin = Instant::now();
        loop {
            let why = match pooler.connect_named(role, db).await {
                Ok(client) => match client.simple_query("select 1").await {
                    Ok(_) => return Ok(client),
                    Err(why) => why,
                },
                Err(why) => why.downcast::<Error>()?,
            };
            if !is_away(&why) || begin.elapsed() > PATIENCE {
                return Err(why).with_context(|| format!("{role} enters {db} through the pooler"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Like [`Cluster::enter_as`], for the superuser.
    ///
    /// # Errors
    /// As [`Cluster::enter_as`].
    pub async fn enter(&self, db: &str) -> Result<Client> {
        self.enter_as(SUPERUSER, db).await
    }
}

/// Whether this says that the connection or the server is gone, and not what was wrong with the call.
fn is_away(error: &Error) -> bool {
    let code = error.code().map(tokio_postgres::error::SqlState::code);
    code.is_none_or(|code| code.starts_with("08") || code.starts_with("57P"))
}

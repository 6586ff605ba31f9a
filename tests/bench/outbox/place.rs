//! A database of its own for a group of cases: the extension in it, and pgmq's functions beside it.
//!
//! Invariant: no case finds events of another group, nor is anything of another group vacuumed or written to disk while
//! it runs.

use std::path::Path;

use anyhow::{Context, Result};
use tokio_postgres::Client;

use crate::database::Database;
use crate::outbox::side::Side;

/// All tables of the extension, their indexes and TOAST included.
const ON_DISK: &str = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class \
    WHERE relnamespace = 'once'::regnamespace AND relkind = 'r'";

/// The database and one connection to it, for what is not measured.
pub struct Place<'a> {
    pub database: &'a Database,
    pub client: Client,
    name: String,
}

impl<'a> Place<'a> {
    pub async fn make(database: &'a Database, name: &str) -> Result<Self> {
        let client = database.create(name).await?;
        install_pgmq(database, &client).await?;
        Ok(Self {
            database,
            client,
            name: name.to_owned(),
        })
    }

    pub async fn connect(&self) -> Result<Client> {
        self.database.connect_to(&self.name).await
    }

    /// Both sides, or only ours where pgmq is not here.
    pub fn sides(&self) -> &'static [Side] {
        if self.database.settings.pgmq().is_some() {
            &Side::BOTH
        } else {
            &Side::BOTH[..1]
        }
    }

    /// Bytes of the extension's tables.
    pub async fn on_disk(&self) -> Result<u64> {
        let row = self.client.query_one(ON_DISK, &[]).await?;
        Ok(u64::try_from(row.get::<_, i64>(0))?)
    }

    /// Drops it, and writes to disk what is left to write.
    pub async fn remove(self) -> Result<()> {
        let name = &self.name;
        let drop = format!("DROP DATABASE {name} WITH (FORCE)");
        let client = &self.database.client;
        client.batch_execute(&drop).await.context(drop)?;
        Ok(client.batch_execute("CHECKPOINT").await?)
    }

    /// Sweeps, as the janitor does in a service.
    pub async fn sweep(&self) -> Result<()> {
        sweep(&self.client).await
    }

    /// Sweeps until there is nothing more to do, and tells the size of the tables then.
    pub async fn sweep_to_the_end(&self) -> Result<u64> {
        const PASS: &str = "SELECT sum(done)::bigint FROM once.sweep(10000)";
        // A segment is emptied when no transaction is left from before it was drained: each pass is one.
        let mut idle = 0;
        while idle < 3 {
            let done: i64 = self.client.query_one(PASS, &[]).await?.get(0);
            idle = if done == 0 { idle + 1 } else { 0 };
        }
        self.on_disk().await
    }
}

/// Passes of all sweep tasks, until nothing more is waiting.
pub async fn sweep(client: &Client) -> Result<()> {
    const PASS: &str = "SELECT coalesce(bool_or(more), false) FROM once.sweep(10000)";
    while client.query_one(PASS, &[]).await?.get(0) {}
    Ok(())
}

/// Makes pgmq's schema, where its SQL is here.
pub async fn install_pgmq(database: &Database, client: &Client) -> Result<()> {
    let Some(path) = database.settings.pgmq() else {
        return Ok(());
    };
    let sql = read(path)?;
    client.batch_execute(&sql).await.context("pgmq.sql")
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

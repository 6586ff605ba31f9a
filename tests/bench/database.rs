//! The private server with the extension and the other sides' tables beside it.
//!
//! Invariant: what is measured is a release build of the extension, and all sides but the lean one have the same
//! table: the same columns, indexes and fillfactor.

use std::path::Path;

use anyhow::{Context, Result, bail};
use pg_once_tests::{Cluster, Output};
use tokio_postgres::Client;

use crate::settings::Settings;

/// The database's name.
pub const NAME: &str = "bench";

/// The largest release build; a debug build is many times that.
const LARGEST_RELEASE: i64 = 10_000_000;

/// Commits are as in a service that has chosen speed; checkpoints and autovacuum are kept out of the
/// rounds because they would hit one side's run and not the other's.
const SERVER: &[(&str, &str)] = &[
    ("shared_buffers", "1GB"),
    ("synchronous_commit", "off"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "1h"),
    ("autovacuum", "off"),
];

/// Tables and functions of the other sides.
const OTHER_SIDES: &str = concat!(
    include_str!("sql/tables.sql"),
    include_str!("sql/plpgsql.sql")
);

/// Every side's table.
pub const TABLES: [&str; 5] = [
    "once.key",
    "raw.key",
    "raw.lean",
    "plpgsql.key",
    "application.key",
];

/// Begins a transaction that holds its snapshot.
pub const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";

/// A running server and one connection to it.
pub struct Database {
    cluster: Cluster,
    /// For what is not measured: stocks, counters, tables.
    pub client: Client,
    /// The settings of this run.
    pub settings: Settings,
}

impl Database {
    /// Starts the server and makes every side's tables.
    pub async fn launch(settings: &Settings) -> Result<Self> {
        Self::launch_with(settings, &[]).await
    }

    /// The same, with settings of the server besides the usual ones.
    pub async fn launch_with(settings: &Settings, more: &[(&str, &str)]) -> Result<Self> {
        let mut builder = Cluster::builder().fsync(true);
        for (name, value) in SERVER.iter().chain(more) {
            builder = builder.setting(name, value);
        }
        let cluster = builder.launch()?;
        let client = cluster.create_database_with_extension(NAME).await?;
        refuse_debug_build(&client).await?;
        client.batch_execute(OTHER_SIDES).await?;
        let database = Self {
            cluster,
            client,
            settings: settings.clone(),
        };
        database.copy_storage_options().await?;
        Ok(database)
    }

    /// LIKE copies columns and indexes, but not fillfactor.
    async fn copy_storage_options(&self) -> Result<()> {
        let options: Option<String> = self
            .client
            .query_one(
                "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = 'once.key'::regclass",
                &[],
            )
            .await?
            .get(0);
        let Some(options) = options else {
            return Ok(());
        };
        for table in TABLES.iter().filter(|t| **t != "raw.lean") {
            self.client
                .batch_execute(&format!("ALTER TABLE {table} SET ({options})"))
                .await?;
        }
        Ok(())
    }

    /// Runs one of the server's client programs on a database.
    pub fn run_in(&self, name: &str, program: &str, arguments: &[&str]) -> Result<Output> {
        let mut arguments = arguments.to_vec();
        arguments.push(name);
        self.cluster.run(program, &arguments)
    }

    /// Another connection.
    pub async fn connect(&self) -> Result<Client> {
        self.connect_to(NAME).await
    }

    /// Where it is, for a pool of the client's.
    pub fn url(&self) -> String {
        self.cluster.url(NAME)
    }

    /// A connection to another database of this server.
    pub async fn connect_to(&self, name: &str) -> Result<Client> {
        self.cluster.connect(name).await
    }

    /// Another database with the extension in it.
    pub async fn create(&self, name: &str) -> Result<Client> {
        self.cluster.create_database_with_extension(name).await
    }

    /// Autovacuum on or off; it is off where nothing else is said.
    pub async fn set_autovacuum(&self, on: bool) -> Result<()> {
        let on = if on { "on" } else { "off" };
        let set = format!("ALTER SYSTEM SET autovacuum = {on}");
        self.client.batch_execute(&set).await?;
        let reload = "SELECT pg_reload_conf()";
        Ok(self.client.batch_execute(reload).await?)
    }

    /// A directory that the server's programs may read.
    pub fn directory(&self) -> &Path {
        self.cluster.directory()
    }

    /// The postmaster's process id.
    pub fn postmaster(&self) -> Result<u32> {
        let path = self.cluster.data_directory().join("postmaster.pid");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let line = text.lines().next().context("postmaster.pid is empty")?;
        Ok(line.trim().parse()?)
    }

    /// One number.
    pub async fn number(&self, query: &str) -> Result<i64> {
        let row = self.client.query_one(query, &[]).await;
        Ok(row.with_context(|| query.to_owned())?.get(0))
    }
}

/// `cargo pgrx test` leaves a debug build in the server, which is several times slower.
async fn refuse_debug_build(client: &Client) -> Result<()> {
    let row = client
        .query_one(
            "SELECT f.path, (pg_stat_file(f.path)).size FROM \
             (SELECT setting || '/pg_once.so' AS path FROM pg_config WHERE name = 'PKGLIBDIR') f",
            &[],
        )
        .await
        .context("find pg_once.so")?;
    let (path, size): (String, i64) = (row.get(0), row.get(1));
    if size > LARGEST_RELEASE {
        bail!(
            "{path} has {} MB, so it is a debug build: nothing measured with it would mean anything. \
             `make bench` installs a release build first; so does \
             `make install PG_CONFIG=...` for the server that PG_ONCE_PG_CONFIG names",
            size / 1_000_000
        );
    }
    Ok(())
}

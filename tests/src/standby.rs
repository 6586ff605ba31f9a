//! A hot standby beside a running cluster.

use anyhow::{Context, Result};

use crate::builder::append_settings;
use crate::cluster::Cluster;
use crate::place::{Place, free_port};
use crate::programs::run;
use crate::race::{Lsn, poll_async};

/// Flushes everything that was written so far and says where the log ends then: a commit that
/// waits for its flush pulls the commits of asynchronous neighbours along.
const FLUSHED: &str = "\
select pg_catalog.pg_logical_emit_message(true, 'pg_once_tests', '')";

impl Cluster {
    /// A copy of this cluster that follows it and answers read-only queries.
    ///
    /// # Errors
    /// If the copy cannot be made or does not start.
    pub fn standby(&self) -> Result<Self> {
        let place = Place::new(self.programs().user())?;
        let data = place.data();
        run(self
            .command("pg_basebackup")
            .args([
                "--write-recovery-conf",
                "--wal-method=stream",
                "--checkpoint=fast",
                "--no-sync",
            ])
            .arg("--pgdata")
            .arg(&data))?;
        append_settings(&place, "hot_standby = on\n")?;
        let mut standby = Self::new(self.programs().clone(), place, free_port()?);
        standby.start()?;
        Ok(standby)
    }

    /// Waits until this standby has replayed everything that `primary` has committed so far.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn wait_caught_up(&self, primary: &Self) -> Result<()> {
        let on_primary = primary.connect("postgres").await?;
        on_primary
            .batch_execute("set synchronous_commit = local")
            .await?;
        on_primary.batch_execute(FLUSHED).await?;
        let target = Lsn::of(&on_primary, "pg_current_wal_flush_lsn").await?;
        let here = self.connect("postgres").await?;
        poll_async("the standby to catch up", async || {
            let replayed = Lsn::of(&here, "pg_last_wal_replay_lsn").await?;
            Ok((replayed >= target).then_some(()))
        })
        .await
        .with_context(|| self.log_tail())
    }

    /// Makes this standby a primary of its own, as a failover does, and waits until it is one.
    ///
    /// # Errors
    /// If this cluster is no standby.
    pub async fn promote(&self) -> Result<()> {
        let client = self.connect("postgres").await?;
        client
            .batch_execute("select pg_catalog.pg_promote(true, 60)")
            .await?;
        Ok(())
    }
}

//! A hot standby beside a running cluster.

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::place::{Place, free_port};
use crate::programs::run;
use crate::race::{Lsn, poll_async};

/// Commits a message, which flushes everything that was written before it.
const FLUSHED: &str = "\
select pg_catalog.pg_logical_emit_message(true, 'pg_once_tests', '')";

/// Where a cluster archives its WAL, in its directory.
const ARCHIVE: &str = "archive";

impl Cluster {
    /// A copy of this cluster that follows it and answers read-only queries.
    ///
    /// # Errors
    /// If the copy cannot be made or does not start.
    pub fn standby(&self) -> Result<Self> {
        let mut standby = self.base_backup(&["--write-recovery-conf"])?;
        standby.append_settings("hot_standby = on\n")?;
        standby.start()?;
        Ok(standby)
    }

    /// A copy of this cluster that was not started yet.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn base_backup(&self, more: &[&str]) -> Result<Self> {
        let place = Place::new(self.programs().user())?;
        run(self
            .command("pg_basebackup")
            .args(["--wal-method=stream", "--checkpoint=fast", "--no-sync"])
            .args(more)
            .arg("--pgdata")
            .arg(place.data()))?;
        Ok(Self::new(self.programs().clone(), place, free_port()?))
    }

    /// Keeps the write-ahead log from now on, for copies to recover from; `archive_mode` must be on.
    ///
    /// # Errors
    /// If the archive cannot be made.
    pub fn archive(&self) -> Result<()> {
        let archive = self.directory().join(ARCHIVE);
        std::fs::create_dir(&archive)?;
        self.programs().user().own(&archive)?;
        let archive = archive.display();
        self.append_settings(&format!("archive_command = 'cp %p {archive}/%f'\n"))?;
        self.psql("postgres", "select pg_reload_conf()")?;
        Ok(())
    }

    /// Recovers this base backup from the archive of `original` up to a restore point, and makes it a primary there.
    ///
    /// # Errors
    /// If it does not get there.
    pub async fn recover_to(&mut self, point: &str, original: &Self) -> Result<()> {
        // The point is in a segment that is not full.
        let last = original.psql("postgres", "select pg_walfile_name(pg_switch_wal())")?;
        let archived = format!("select last_archived_wal >= '{last}' from pg_stat_archiver");
        poll_async("the archive to be complete", async || {
            Ok((original.psql("postgres", &archived)? == "t").then_some(()))
        })
        .await?;
        let archive = original.directory().join(ARCHIVE);
        std::fs::write(self.data_directory().join("recovery.signal"), "")?;
        self.append_settings(&format!(
            "archive_mode = off\nrestore_command = 'cp {}/%f %p'\nrecovery_target_name = '{point}'\n\
             recovery_target_action = promote\n",
            archive.display()
        ))?;
        self.start()?;
        poll_async("the end of the recovery", async || {
            let over = self.psql("postgres", "select not pg_is_in_recovery()")?;
            Ok((over == "t").then_some(()))
        })
        .await
        .with_context(|| self.log_tail())
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

    /// Makes this standby a primary of its own, as a failover does, and waits until it is a primary.
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

//! 16 shards behind PgBouncer, a service process for each; they are moved by the script that operators use, and the
//! pooler and a cluster are killed meanwhile.
//!
//! Invariant: whatever stops the script, the operator's answer is the same command again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::statvfs::statvfs;
use pg_once_tests::{Cluster, PgBouncer, PoolMode, free_port};
use tokio_postgres::Client;

use super::case::{Lanes, PATIENCE, Servers};
use super::database::{found, stored};
use crate::database::{SERVICE_ROLE, create_roles};
use crate::ground::Ground;
use crate::orders::bank_process::Bank;
use crate::orders::database::ORDERS;
use crate::settings::SCOPE;
use crate::supervisor::Program;

/// The names of the lanes that are killed.
pub const POOLER: &str = "pooler";
pub const CLUSTER: &str = "cluster 1";

const SHARDS: usize = 16;
const CONNECTIONS: u32 = 6;
/// What both clusters need, several times over, in bytes.
const ROOM: u64 = 2 << 30;
/// How often the operator runs one command.
const RUNS: usize = 5;

pub struct ByShards {
    cluster: Cluster,
    pooler: PgBouncer,
    /// The port of the second cluster.
    second: u16,
}

fn shop(shard: usize) -> String {
    format!("shop_{shard:02}")
}

/// In memory, where it has room: a split copies eight thousand files and flushes each, on a slow disk for a minute.
fn memory() -> Option<&'static Path> {
    let memory = Path::new("/dev/shm");
    let free = statvfs(memory).map(|found| found.blocks_available() * found.fragment_size());
    free.is_ok_and(|free| free > ROOM).then_some(memory)
}

impl ByShards {
    pub async fn build() -> Result<Self> {
        let cluster = tokio::task::block_in_place(|| {
            let builder = Cluster::builder().fsync(true).below(memory());
            let builder = builder.setting("shared_preload_libraries", "pg_once");
            // A first copy of so little data takes less than this wait.
            let builder = builder.setting("wal_retrieve_retry_interval", "200ms");
            builder.setting("wal_level", "logical").launch()
        })?;
        create_roles(&cluster).await?;
        let first = cluster.create_database_with_extension(&shop(0)).await?;
        first.batch_execute(ORDERS).await?;
        let grant = format!("select once.grant_role('{SERVICE_ROLE}', 'use')");
        first.batch_execute(&grant).await?;
        drop(first);
        for shard in (0..SHARDS).rev() {
            let database = shop(shard);
            if shard > 0 {
                let copy = format!("create database {database} template {}", shop(0));
                cluster.psql("postgres", &copy)?;
            }
            let set = format!(
                "select once.shard_set({shard}, {SHARDS});
                 alter table orders add check (once.shard_of(customer, {SHARDS}) = {shard})"
            );
            cluster.psql(&database, &set)?;
        }
        let pooler = cluster.pgbouncer(PoolMode::Transaction, CONNECTIONS, &[SERVICE_ROLE])?;
        pooler.map(&cluster, (0..SHARDS).map(shop)).await?;
        let second = free_port()?;
        Ok(Self {
            cluster,
            pooler,
            second,
        })
    }

    /// Runs the script until it comes to its end; `trouble` hears of each step that begins.
    fn run(
        &mut self,
        words: &str,
        mut trouble: impl FnMut(&mut Self, &str) -> Result<()>,
    ) -> Result<()> {
        let mut said = String::new();
        for _ in 0..RUNS {
            let (cluster, ports) = (&self.cluster, [self.cluster.port(), self.second]);
            let mut script =
                cluster.shards_script(cluster.programs(), &self.pooler, words, ports)?;
            let script = script.arg("--yes").stdout(Stdio::piped());
            let mut script = script.stderr(Stdio::piped()).spawn()?;
            let steps = script.stdout.take().context("no standard output")?;
            for line in BufReader::new(steps).lines() {
                // Such as "step 7 of 13, fence: at ..."
                let line = line?;
                let step = line
                    .strip_prefix("step ")
                    .and_then(|line| line.split_once(", "));
                if let Some((name, _)) = step.and_then(|(_, step)| step.split_once(':')) {
                    trouble(self, name)?;
                }
            }
            let output = script.wait_with_output()?;
            if output.status.success() {
                return Ok(());
            }
            said = String::from_utf8_lossy(&output.stderr).into_owned();
        }
        bail!("shards.sh {words}: {said}")
    }

    fn grow_now(mut self, lanes: &Lanes, window: Duration) -> Result<Self> {
        // Where they stand in LANES.
        let [pooler, cluster, second, split, mover] = [0, 1, 2, 3, 4];
        lanes.up(pooler);
        lanes.up(cluster);
        std::thread::sleep(window / 9);
        lanes.up(split);
        let upper: Vec<String> = (SHARDS / 2..SHARDS).map(shop).collect();
        self.run(&format!("split {}", upper.join(" ")), |_, step| {
            if step == "names" {
                lanes.up(second);
            }
            Ok(())
        })?;
        lanes.ended(split);
        std::thread::sleep(window / 18);
        lanes.up(mover);
        let (mut pooler_dies, mut cluster_dies) = (true, true);
        self.run(&format!("move-logical {}", shop(0)), |world, step| {
            if step == "fence" && std::mem::take(&mut pooler_dies) {
                lanes.killed(pooler);
                world.pooler.kill_9_and_start()?;
                lanes.up(pooler);
            }
            if step == "drain" && std::mem::take(&mut cluster_dies) {
                lanes.killed(cluster);
                world.cluster.kill_9()?;
                world.cluster.start()?;
                lanes.up(cluster);
            }
            Ok(())
        })?;
        lanes.ended(mover);
        Ok(self)
    }
}

impl Servers for ByShards {
    const SHARDS: usize = SHARDS;
    const LANES: &[&'static str] = &[POOLER, CLUSTER, "cluster 2", "the split", "the move"];

    fn programs(&self, ground: &Ground<'_>, bank: &Bank) -> Result<Vec<(String, Program)>> {
        let program = |shard| {
            let arguments = vec![
                format!(
                    "--database-url={}",
                    self.pooler.url_as(SERVICE_ROLE, &shop(shard))
                ),
                format!("--bank-url={}", bank.url()),
                format!("--scope={SCOPE}"),
                format!("--lease-ms={}", ground.settings.lease_ms),
                "--bank-dedupes=false".to_owned(),
                PATIENCE.to_owned(),
                format!("--connections={CONNECTIONS}"),
            ];
            let program = Program {
                path: ground.paths.pg_once.clone(),
                arguments,
                directory: ground.work.to_owned(),
            };
            (format!("service {shard}"), program)
        };
        Ok((0..SHARDS).map(program).collect())
    }

    async fn grow(self, lanes: Lanes, window: Duration) -> Result<Self> {
        // The load goes on meanwhile.
        tokio::task::spawn_blocking(move || self.grow_now(&lanes, window)).await?
    }

    /// By the way that clients go.
    async fn collect(&self, owner: &Client, keys: &[String]) -> Result<()> {
        for shard in 0..SHARDS {
            let home = self.pooler.connect(&shop(shard)).await?;
            found(owner, shard, &home).await?;
            stored(owner, (shard, SHARDS), &home, keys).await?;
        }
        Ok(())
    }
}

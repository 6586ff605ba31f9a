//! A cluster of many databases behind PgBouncer, whose map has a line for each, and the script that moves them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use pg_once_tests::{Cluster, PgBouncer, PoolMode, Programs, free_port, is_long};
use tokio_postgres::{Client, NoTls};

use crate::content::{self, Tokens};
use crate::janitor::preloaded;
use crate::playground::Playground;

/// The databases of the storm are shop_0 to shop_7, and more in the long form.
pub fn shards() -> usize {
    if is_long() { 16 } else { 8 }
}

/// Databases with everything at once, each for one kind of move.
pub const DAYS: [&str; 3] = ["day_split", "day_logical", "day_dump"];

/// A name that must be quoted.
pub const ODD: &str = "Odd-Shop";

pub struct World {
    pub cluster: Cluster,
    pub pooler: PgBouncer,
    /// The port of the other cluster, such as the one that the split makes.
    pub half: u16,
    /// Those that the script finds on its PATH.
    programs: Programs,
    /// What is held in each of the days.
    pub tokens: Tokens,
}

/// Nobody waits for it where the first copy takes longer than it, as it does outside of tests.
const RETRY: (&str, &str) = ("wal_retrieve_retry_interval", "200ms");

/// A session at a port of this machine, past the pooler.
pub async fn at(port: u16, role: &str, database: &str) -> Option<Client> {
    let url = format!("postgresql://{role}@127.0.0.1:{port}/{database}");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
    tokio::spawn(async move {
        // The client's own calls report what goes wrong.
        let _ = connection.await;
    });
    Some(client)
}

pub async fn play(port: u16, role: &str, database: &str) -> Playground {
    Playground::of(at(port, role, database).await.unwrap(), database)
}

/// Everything at once in a database, and what is held there.
async fn a_day(cluster: &Cluster, database: &str) -> Tokens {
    let day = play(cluster.port(), "postgres", database).await;
    day.show(content::JOBS).await;
    content::a_working_day(&day).await
}

/// A template is copied once its last session is gone.
fn copy(cluster: &Cluster, from: &str, to: &str) {
    let sql = format!("create database \"{to}\" template {from} strategy file_copy");
    cluster.psql("postgres", &sql).unwrap();
}

impl World {
    /// None where PgBouncer is missing and nobody promised it.
    pub async fn prepare() -> Option<World> {
        let cluster = Cluster::builder()
            .setting("wal_level", "logical")
            // A move must flush what clients have committed. (The long form kills the source, which may lose it.)
            .setting("synchronous_commit", if is_long() { "on" } else { "off" })
            .setting("wal_writer_delay", "1s")
            .setting("allow_in_place_tablespaces", "on")
            .setting(RETRY.0, RETRY.1)
            .launch()
            .unwrap();
        cluster.psql("postgres", content::ROLES).unwrap();
        cluster.psql("postgres", "create database shop_0").unwrap();
        cluster.psql("shop_0", "create extension pg_once").unwrap();
        for shard in (0..shards()).rev() {
            let database = format!("shop_{shard}");
            if shard != 0 {
                copy(&cluster, "shop_0", &database);
            }
            let orders = format!(
                "create table orders (id bigint generated always as identity primary key, key text not null,
                     tenant text not null check (once.shard_of(tenant, {n}) = {shard}));
                 select once.shard_set({shard}, {n})",
                n = shards()
            );
            cluster.psql(&database, &orders).unwrap();
        }
        copy(&cluster, "shop_0", ODD);
        copy(&cluster, "shop_0", DAYS[0]);
        let drop = "drop table orders; truncate once.shard";
        cluster.psql(DAYS[0], drop).unwrap();
        let tokens = a_day(&cluster, DAYS[0]).await;
        for database in &DAYS[1..] {
            copy(&cluster, DAYS[0], database);
        }
        let half = free_port().unwrap();
        let programs = cluster.programs().clone();
        World::of(cluster, half, tokens, programs).await
    }

    /// A day in a cluster of an older server, and a cluster of the one under test that is to take it over. Its janitor
    /// has shop_0 to serve.
    pub async fn of_two_servers(older: Programs) -> Option<(World, Cluster)> {
        let older = Cluster::builder()
            .programs(older)
            .setting("wal_level", "logical");
        let older = older.launch().unwrap();
        let newer = preloaded("postgres, shop_0").setting(RETRY.0, RETRY.1);
        let newer = newer.launch().unwrap();
        newer.psql("postgres", "create extension pg_once").unwrap();
        older.psql("postgres", content::ROLES).unwrap();
        older.copy_roles(&newer).unwrap();
        older.create_database_with_extension(DAYS[1]).await.unwrap();
        older
            .create_database_with_extension("shop_0")
            .await
            .unwrap();
        let claim = "select once.key_claim('s', 'k', lease => '1 microsecond')";
        older.psql("shop_0", claim).unwrap();
        // Where Debian's 15 marks columns, the mark stands beside other options, too.
        let options = "create table counted (a integer primary key, b integer); alter table counted alter b set (n_distinct = 5)";
        older.psql("shop_0", options).unwrap();
        let tokens = a_day(&older, DAYS[1]).await;
        let world = World::of(older, newer.port(), tokens, newer.programs().clone()).await?;
        Some((world, newer))
    }

    async fn of(cluster: Cluster, half: u16, tokens: Tokens, programs: Programs) -> Option<World> {
        let pooler = mapped(&cluster).await?;
        Some(World {
            cluster,
            pooler,
            half,
            programs,
            tokens,
        })
    }

    /// `back`: from the half to the first cluster.
    fn script(&self, words: &str, back: bool) -> Command {
        let mut ports = [self.cluster.port(), self.half];
        if back {
            ports.reverse();
        }
        self.script_between(words, ports)
    }

    fn script_between(&self, words: &str, ports: [u16; 2]) -> Command {
        let (cluster, programs) = (&self.cluster, &self.programs);
        let script = cluster.shards_script(programs, &self.pooler, words, ports);
        script.unwrap()
    }

    /// Runs the script to its end; what it said.
    pub fn run(&self, words: &str, back: bool) -> String {
        run(&mut self.script(words, back), words)
    }

    pub fn run_between(&self, words: &str, ports: [u16; 2]) {
        run(&mut self.script_between(words, ports), words);
    }

    /// What the script says where it refuses.
    pub fn refused(&self, words: &str, back: bool) -> String {
        let output = self.script(words, back).arg("--yes").output().unwrap();
        assert!(!output.status.success(), "{words}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// While another run waits for the answer to its first question.
    pub fn beside_another<T>(&self, words: &str, action: impl FnOnce() -> T) -> T {
        let mut other = self.script(words, false);
        let other = other.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = other.spawn().unwrap();
        let mut said = BufReader::new(other.stdout.take().unwrap()).lines();
        assert!(said.next().unwrap().unwrap().starts_with("step 1 of"));
        let did = action();
        kill(&mut other);
        did
    }

    /// What it says where a person answers its first question so.
    pub fn answered(&self, answer: &str, words: &str) -> String {
        let mut script = self.script(words, false);
        let script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.stderr(Stdio::piped()).spawn().unwrap();
        let mut person = script.stdin.take().unwrap();
        person.write_all(answer.as_bytes()).unwrap();
        drop(person);
        let output = script.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8(said).unwrap()
    }

    /// Kills it with all that it started, within each step; then it runs to its end, and once more. In the long form
    /// the cluster that the databases leave is killed with it.
    pub fn run_killed_in_each_step(&mut self, words: &str, back: bool) {
        let mut step = 1;
        while self.killed_in(step, words, back) {
            if is_long() && !back {
                self.cluster.kill_9().unwrap();
                self.cluster.start().unwrap();
            }
            step += 1;
        }
        assert!(step > 4, "{words}: {step} steps");
        let again = self.run(words, back);
        assert!(!again.contains("PAUSE"), "{again}");
    }

    /// Runs it while the pooler is killed once in each step, and started again as a supervisor would. A script that
    /// misses the pooler stops, and is run again.
    pub fn run_while_the_pooler_dies(&mut self, words: &str) {
        let mut kills = 0;
        loop {
            let mut script = self.begun(words, false);
            for line in BufReader::new(script.stdout.take().unwrap()).lines() {
                if line.unwrap().starts_with(&format!("step {} of", kills + 1)) {
                    self.pooler.kill_9_and_start().unwrap();
                    kills += 1;
                }
            }
            let output = script.wait_with_output().unwrap();
            if output.status.success() {
                break;
            }
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(errors.contains("pooler"), "{words}: {errors}");
        }
        assert!(kills > 4, "{words}: {kills} kills");
    }

    fn begun(&self, words: &str, back: bool) -> Child {
        let mut script = self.script(words, back);
        let script = script.arg("--yes").stdout(Stdio::piped());
        script.stderr(Stdio::piped()).spawn().unwrap()
    }

    /// False: it has come to its end without that step.
    pub fn killed_in(&self, step: u32, words: &str, back: bool) -> bool {
        let mut script = self.begun(words, back);
        let begins = format!("step {step} of");
        let mut said = Vec::new();
        for line in BufReader::new(script.stdout.take().unwrap()).lines() {
            said.push(line.unwrap());
            if said.last().is_some_and(|line| line.starts_with(&begins)) {
                // Somewhere within the step, or within the next one where it is short.
                std::thread::sleep(Duration::from_millis(u64::from(step * 7 % 25)));
                kill(&mut script);
                return true;
            }
        }
        let output = script.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}\n{said:#?}\n{errors}");
        false
    }
}

fn run(script: &mut Command, words: &str) -> String {
    let output = script.arg("--yes").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}\n{said}{errors}");
    said
}

fn kill(script: &mut Child) {
    let group = Pid::from_raw(i32::try_from(script.id()).unwrap());
    // It may have ended by itself.
    let _ = killpg(group, Signal::SIGKILL);
    script.wait().unwrap();
}

/// A pooler with a line for each database, as the script needs it.
pub async fn mapped(cluster: &Cluster) -> Option<PgBouncer> {
    let pooler = match cluster.pgbouncer(PoolMode::Transaction, 8, &[]) {
        Ok(pooler) => pooler,
        Err(error) if std::env::var_os("CI").is_none() && error.to_string().contains("apt-get") => {
            eprintln!("NOT TESTED: {error}");
            return None;
        }
        Err(error) => panic!("{error:?}"),
    };
    let names = (0..shards()).map(|shard| format!("shop_{shard}"));
    let names = names.chain(DAYS.map(str::to_owned)).chain([ODD.to_owned()]);
    pooler.map(cluster, names).await.unwrap();
    Some(pooler)
}

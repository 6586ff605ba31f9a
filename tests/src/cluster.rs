//! One private PostgreSQL: start, stop, kill, connect.
//!
//! A cluster keeps its port over restarts unless somebody takes it, so clients find it. Nothing outlives the value:
//! `Drop` stops the cluster, and the leash stops it when no `Drop` runs. When a test has passed, `Drop` asks
//! `once.verify()` in each database first, and under `make test-assert` looks at the database's files.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_postgres::{Client, NoTls};

use crate::builder::{Builder, SUPERUSER, append_settings};
use crate::leash::{kill_all_in, processes_in};
use crate::pages;
use crate::place::{Place, free_port, poll};
use crate::pooler::PgBouncer;
use crate::programs::{Output, Programs, run};

/// Names the directory where the log of each server's start stays; without it logs go with their clusters.
const KEEP_LOGS: &str = "PG_ONCE_KEEP_LOGS";

/// Lists the invariants between the extension's tables that a test has broken.
pub(crate) const BROKEN: &str =
    "select string_agg(invariant || ': ' || detail, '; ') from once.verify(1000)";

/// The settings of the session that asks `BROKEN`, whatever the test has set for its role and database.
const OWN: &str =
    "-c lock_timeout=10s -c statement_timeout=60s -c default_transaction_read_only=off";

/// How the server is told to stop; the names are `pg_ctl`'s.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StopMode {
    /// Waits for the clients to leave.
    Smart,
    /// Rolls open transactions back and writes a checkpoint.
    Fast,
    /// Ends at once; the next start replays the log.
    Immediate,
}

/// A private PostgreSQL; see the file's head.
#[derive(Debug)]
pub struct Cluster {
    programs: Programs,
    place: Place,
    port: u16,
    postmaster: Option<Child>,
    /// The pooler, where the cluster's sessions go through one (`front`).
    front: OnceLock<PgBouncer>,
    /// The test has damaged the extension's tables by hand, or takes the extension's files away.
    damaged: AtomicBool,
}

impl Cluster {
    /// Asks for a cluster with settings of its own.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A new, running cluster of the server that `PG_ONCE_PG_CONFIG` names.
    ///
    /// # Errors
    /// With the program's own words, if `initdb` or the server fails.
    pub fn launch() -> Result<Self> {
        Self::builder().launch()
    }

    pub(crate) fn new(programs: Programs, place: Place, port: u16) -> Self {
        Self {
            programs,
            place,
            port,
            postmaster: None,
            front: OnceLock::new(),
            damaged: AtomicBool::new(false),
        }
    }

    pub(crate) fn front_door(&self) -> &OnceLock<PgBouncer> {
        &self.front
    }

    /// The installation that this cluster runs.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The major version, such as 18.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.programs.version()
    }

    /// The port on 127.0.0.1, the same after a restart unless somebody took it meanwhile.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the unix socket.
    #[must_use]
    pub fn socket_directory(&self) -> &Path {
        self.place.sockets()
    }

    /// A directory that the server may read and write, gone with the cluster.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.place.directory()
    }

    /// The data directory.
    #[must_use]
    pub fn data_directory(&self) -> PathBuf {
        self.place.data()
    }

    /// Where a client reaches the database `db` as superuser over TCP.
    #[must_use]
    pub fn url(&self, db: &str) -> String {
        self.url_as(SUPERUSER, db)
    }

    /// Like [`Cluster::url`], for another role.
    #[must_use]
    pub fn url_as(&self, user: &str, db: &str) -> String {
        format!("postgresql://{user}@127.0.0.1:{}/{db}", self.port)
    }

    /// Connects as superuser, never through a pooler; the connection's task runs until the client is dropped.
    ///
    /// # Errors
    /// If the server refuses or is not there.
    pub async fn connect(&self, db: &str) -> Result<Client> {
        self.connect_as(SUPERUSER, db).await
    }

    /// Connects as another role.
    ///
    /// # Errors
    /// If the server refuses or is not there.
    pub async fn connect_as(&self, user: &str, db: &str) -> Result<Client> {
        connect(&self.url_as(user, db)).await
    }

    /// Makes the database, creates the extension in it, and connects to it, directly.
    ///
    /// # Errors
    /// If the database exists already or the server does not have the extension.
    pub async fn create_database_with_extension(&self, name: &str) -> Result<Client> {
        let admin = self.connect("postgres").await?;
        let quoted = name.replace('"', "\"\"");
        admin
            .batch_execute(&format!("create database \"{quoted}\""))
            .await?;
        let client = self.connect(name).await?;
        client
            .batch_execute("create extension pg_once")
            .await
            .context(
                "create extension pg_once (make install PG_CONFIG=... puts it into the server)",
            )?;
        Ok(client)
    }

    /// Starts the server, after crash recovery where needed, and waits until it lets clients in.
    ///
    /// # Errors
    /// If it runs already; with the end of the server's log, if it does not start.
    pub fn start(&mut self) -> Result<()> {
        if self.is_running() {
            bail!("the cluster on port {} runs already", self.port);
        }
        for _ in 0..5 {
            self.spawn()?;
            if self.wait_until_ready()? {
                return Ok(());
            }
            if !self
                .log_tail()
                .contains("could not create any TCP/IP sockets")
            {
                bail!("the server did not start:\n{}", self.log_tail());
            }
            // Somebody took the port between our look and the server's bind.
            self.port = free_port()?;
            self.front = OnceLock::new();
        }
        bail!("found no free port for the server:\n{}", self.log_tail())
    }

    fn spawn(&mut self) -> Result<()> {
        let log = self.new_log()?;
        let mut command = self.programs.command("postgres", self.place.directory());
        command
            .arg("-D")
            .arg(self.data_directory())
            .args(["-p", &self.port.to_string(), "-k"])
            .arg(self.socket_directory())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for the test program; the leash ends the server after it.
            .process_group(0);
        self.postmaster = Some(command.spawn().context("start postgres")?);
        Ok(())
    }

    /// False: the server has ended instead.
    fn wait_until_ready(&mut self) -> Result<bool> {
        let status_file = self.data_directory().join("postmaster.pid");
        let mut child = self.postmaster.take().context("no server was started")?;
        let id = child.id().to_string();
        let ready = poll("the server to let clients in", || {
            if child.try_wait()?.is_some() {
                return Ok(Some(false));
            }
            let text = std::fs::read_to_string(&status_file).unwrap_or_default();
            let mut lines = text.lines();
            // The file of a killed predecessor also says "ready": look whose it is.
            let ours = lines.next() == Some(id.as_str());
            Ok((ours && lines.last().is_some_and(|line| line.trim() == "ready")).then_some(true))
        });
        self.postmaster = Some(child);
        match ready {
            Ok(true) => Ok(true),
            Ok(false) => {
                self.postmaster = None;
                Ok(false)
            }
            Err(error) => Err(error.context(self.log_tail())),
        }
    }

    /// Whether the postmaster is alive.
    pub fn is_running(&mut self) -> bool {
        self.postmaster
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Stops the server and waits for its end.
    ///
    /// # Errors
    /// If it does not end in time.
    pub fn stop(&mut self, mode: StopMode) -> Result<()> {
        let Some(mut child) = self.postmaster.take() else {
            return Ok(());
        };
        let signal = match mode {
            StopMode::Smart => Signal::SIGTERM,
            StopMode::Fast => Signal::SIGINT,
            StopMode::Immediate => Signal::SIGQUIT,
        };
        if child.try_wait()?.is_some() {
            // The pid may be another process's by now.
            return Ok(());
        }
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        kill(pid, signal).with_context(|| format!("send {signal} to the postmaster {pid}"))?;
        let ended = poll("the server to stop", || Ok(child.try_wait()?.map(|_| ())));
        if ended.is_err() {
            self.postmaster = Some(child);
        }
        ended.with_context(|| self.log_tail())
    }

    /// Stops (fast) and starts again on the same port.
    ///
    /// # Errors
    /// As [`Cluster::stop`] and [`Cluster::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.stop(StopMode::Fast)?;
        self.start()
    }

    /// Kills the postmaster and every process of the cluster with SIGKILL, as a machine that runs
    /// out of memory would; [`Cluster::start`] then goes through crash recovery.
    ///
    /// # Errors
    /// If a process outlives SIGKILL.
    pub fn kill_9(&mut self) -> Result<()> {
        if let Some(mut child) = self.postmaster.take() {
            // The postmaster first: it would treat a backend's death as a crash and start over.
            child.kill()?;
            child.wait()?;
        }
        kill_all_in(&self.data_directory())
    }

    /// The process ids of the cluster's server processes.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        processes_in(&self.data_directory())
            .into_iter()
            .map(Pid::as_raw)
            .collect()
    }

    /// Adds settings to `postgresql.conf`; [`Cluster::restart`] or `pg_reload_conf()` applies them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn append_settings(&self, text: &str) -> Result<()> {
        append_settings(&self.place, text)
    }

    /// A command for one of the server's client programs (`psql`, `pg_dump`, `pg_restore`,
    /// `pgbench`, ...), pointed at this cluster.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.programs.command(program, self.directory());
        command
            .env("PGHOST", self.socket_directory())
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", SUPERUSER);
        command
    }

    /// Runs one of the server's client programs to its end.
    ///
    /// # Errors
    /// With what the program wrote, if it ends with a status other than 0.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<Output> {
        run(self.command(program).args(arguments))
    }

    /// Runs `sql` through `psql` and returns its bare output (no header, no alignment).
    ///
    /// # Errors
    /// At the first statement that fails.
    pub fn psql(&self, db: &str, sql: &str) -> Result<String> {
        let fixed = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"];
        let output = run(self.command("psql").args(fixed).args(["-d", db, "-c", sql]))?;
        Ok(output.stdout.trim_end().to_owned())
    }

    /// An empty log; where logs are kept, a link to a file there.
    fn new_log(&self) -> Result<File> {
        static LOGS: AtomicU32 = AtomicU32::new(0);
        let path = self.log_path();
        let Some(directory) = std::env::var_os(KEEP_LOGS) else {
            return Ok(File::create(path)?);
        };
        let (number, process) = (LOGS.fetch_add(1, Ordering::Relaxed), std::process::id());
        let kept = Path::new(&directory).join(format!("{process}-{number}.log"));
        let _ = std::fs::remove_file(&path);
        symlink(&kept, path)?;
        Ok(File::create(kept)?)
    }

    fn log_path(&self) -> PathBuf {
        self.directory().join("server.log")
    }

    /// This test damages the extension's tables or files by hand: `once.verify` would find the damage at the end.
    pub fn expect_damage(&self) {
        self.damaged.store(true, Ordering::Relaxed);
    }

    /// What `once.verify` finds in the databases of a running primary that have the extension.
    fn broken(&mut self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        if self.damaged.load(Ordering::Relaxed) || !self.is_running() {
            return Ok(found);
        }
        let names =
            "select datname from pg_database where datallowconn and not pg_is_in_recovery()";
        for name in self.psql("postgres", names)?.lines() {
            let plain = ["-X", "-q", "-A", "-t", "-v", "VERBOSITY=verbose"];
            let mut psql = self.command("psql");
            psql.args(plain)
                .args(["-v", "ON_ERROR_STOP=1", "-c", "set role none", "-c", BROKEN])
                .env("PGDATABASE", name)
                .env("PGOPTIONS", OWN);
            if pages::are_checked() {
                for sql in [pages::ALONE, pages::MODULES, pages::SOUND] {
                    psql.args(["-c", sql]);
                }
            }
            match run(&mut psql) {
                Ok(output) if output.stdout.trim().is_empty() => {}
                Ok(output) => found.push(format!("{name}: {}", output.stdout)),
                // No such schema or function: a database without the extension.
                Err(error)
                    if ["3F000", "42883"]
                        .iter()
                        .any(|c| error.to_string().contains(c)) => {}
                Err(error) => return Err(error.context(name.to_owned())),
            }
        }
        Ok(found)
    }

    /// The end of the log since the last start.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(self.log_path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- log of the server on port {}\n{}",
                self.port,
                self.log_tail()
            );
        } else {
            let broken = self.broken();
            assert!(
                matches!(&broken, Ok(found) if found.is_empty()),
                "once.verify() at the end: {broken:?}"
            );
        }
        // A clean shutdown would write a checkpoint of data that is about to be deleted, and a killed server
        // would leave its shared memory behind. The leash removes the directory, and finishes what may be left.
        let _ = self.stop(StopMode::Immediate);
        let _ = self.kill_9();
    }
}

/// Connects to any URL; the connection's task runs until the client is dropped.
pub(crate) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .with_context(|| format!("connect to {url}"))?;
    tokio::spawn(async move {
        // The client's own calls report what goes wrong; a server that was killed is no news here.
        let _ = connection.await;
    });
    Ok(client)
}

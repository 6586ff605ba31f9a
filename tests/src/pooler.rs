//! PgBouncer in front of a cluster.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use tokio_postgres::Client;

use crate::builder::SUPERUSER;
use crate::cluster::{Cluster, connect};
use crate::leash::kill_all_in;
use crate::os_user::OsUser;
use crate::place::{Place, free_port, poll};
use crate::programs::unprivileged;

/// The prefix of the client names that `connect_named` gives.
pub(crate) const NAMED: &str = "pooled-";

/// When a server connection goes back to the pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoolMode {
    /// When the client leaves.
    Session,
    /// After each transaction.
    Transaction,
    /// After each statement.
    Statement,
}

impl PoolMode {
    fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        }
    }
}

/// A running PgBouncer, stopped when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    process: Child,
    port: u16,
    place: Place,
    user: OsUser,
}

impl Cluster {
    /// Starts a PgBouncer in front of every database of this cluster, with `pool_size` server connections for each, for
    /// the superuser and the roles in `users`. PgBouncer asks the server about other roles.
    ///
    /// # Errors
    /// If PgBouncer is not on this machine (the error names the command that installs it) or does
    /// not start.
    pub fn pgbouncer(&self, mode: PoolMode, pool_size: u32, users: &[&str]) -> Result<PgBouncer> {
        let user = self.programs().user();
        let place = Place::new(user)?;
        let port = free_port()?;
        let directory = place.directory();
        let mut names = String::new();
        for name in [SUPERUSER].iter().chain(users) {
            writeln!(names, "\"{name}\" \"\"")?;
        }
        std::fs::write(directory.join("users.txt"), names)?;
        std::fs::write(
            directory.join("pgbouncer.ini"),
            self.pooler_settings(mode, pool_size, port, &place),
        )?;
        let mut pooler = PgBouncer {
            process: start(user, directory)?,
            port,
            place,
            user,
        };
        pooler.wait_until_ready()?;
        Ok(pooler)
    }

    fn pooler_settings(&self, mode: PoolMode, pool_size: u32, port: u16, place: &Place) -> String {
        format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir = {}\nauth_type = trust\nauth_file = users.txt\n\
             auth_user = {SUPERUSER}\nadmin_users = {SUPERUSER}\n\
             auth_query = select rolname, 'x' from pg_catalog.pg_roles where rolname = $1\n\
             server_idle_timeout = 10\n\
             pool_mode = {}\ndefault_pool_size = {pool_size}\nmax_client_conn = 1000\n\
             server_login_retry = 0.1\nquery_wait_timeout = 30\nignore_startup_parameters = extra_float_digits\n",
            self.port(),
            place.sockets().display(),
            mode.name(),
        )
    }
}

impl PgBouncer {
    /// The program. Debian puts it into /usr/sbin, which is not on every user's PATH.
    ///
    /// # Errors
    /// If it is not on this machine; the error names the command that installs it.
    pub fn find() -> Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain([PathBuf::from("/usr/sbin")])
            .map(|directory| directory.join("pgbouncer"))
            .find(|program| program.is_file())
            .context("pgbouncer is not on this machine: apt-get install -y pgbouncer")
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its files are: `pgbouncer.ini` is read again at a RELOAD.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.place.directory()
    }

    /// Where a client reaches the database `db` as superuser through the pooler.
    #[must_use]
    pub fn url(&self, db: &str) -> String {
        self.url_as(SUPERUSER, db)
    }

    /// Like [`PgBouncer::url`], for another role.
    #[must_use]
    pub fn url_as(&self, user: &str, db: &str) -> String {
        format!("postgresql://{user}@127.0.0.1:{}/{db}", self.port)
    }

    /// Connects as another role through the pooler, under a name of its own: the server session that serves it
    /// at the moment has that name (`race::Session`).
    ///
    /// # Errors
    /// If the pooler refuses or is not there.
    pub async fn connect_named(&self, user: &str, db: &str) -> Result<Client> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = self.url_as(user, db);
        connect(&format!("{url}?application_name={NAMED}{n}")).await
    }

    /// Connects as superuser through the pooler.
    ///
    /// # Errors
    /// If the pooler refuses or is not there.
    pub async fn connect(&self, db: &str) -> Result<Client> {
        connect(&self.url(db)).await
    }

    /// Ends it at once, as a crash would, and starts it again with the files that are there.
    ///
    /// # Errors
    /// If it does not start.
    pub fn kill_9_and_start(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        self.process = start(self.user, self.place.directory())?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let Self {
            process,
            port,
            place,
            ..
        } = self;
        poll("pgbouncer to listen", || {
            if let Some(status) = process.try_wait()? {
                let log = std::fs::read_to_string(place.directory().join("pgbouncer.log"));
                bail!(
                    "pgbouncer ended with {status}:\n{}",
                    log.unwrap_or_default()
                );
            }
            Ok(std::net::TcpStream::connect(("127.0.0.1", *port))
                .ok()
                .map(|_| ()))
        })
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // Best effort: the leash finishes what is left.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = kill_all_in(self.place.directory());
    }
}

/// Its words go to the end of `pgbouncer.log`.
fn start(user: OsUser, directory: &Path) -> Result<Child> {
    let mut log = File::options();
    log.create(true).append(true);
    let log = log.open(directory.join("pgbouncer.log"))?;
    let mut command = Command::new(PgBouncer::find()?);
    unprivileged(&mut command, user, directory);
    command
        .arg("pgbouncer.ini")
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    command.spawn().context("start pgbouncer")
}

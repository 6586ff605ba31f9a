//! Describes a cluster and makes it: `initdb`, settings, first start.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::place::{Place, free_port};
use crate::programs::{Programs, run};
use crate::template::Template;

/// The superuser of every private cluster.
pub(crate) const SUPERUSER: &str = "postgres";

/// The settings of every private cluster; the caller's settings come after these and win. Dynamic shared memory lies in
/// the data directory and goes with that directory, also when the server was killed.
const BASE: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_permissions = 0777
max_connections = 200
shared_buffers = 64MB
dynamic_shared_memory_type = mmap
fsync = off
wal_level = replica
max_wal_senders = 8
max_prepared_transactions = 16
log_min_messages = warning
log_line_prefix = '%m [%p] %q%u@%d '
";

/// The description of a private cluster.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    programs: Option<Programs>,
    settings: Vec<(String, String)>,
    initdb: Vec<String>,
    below: Option<PathBuf>,
}

impl Builder {
    /// A server other than the one that `PG_ONCE_PG_CONFIG` names.
    #[must_use]
    pub fn programs(mut self, programs: Programs) -> Self {
        self.programs = Some(programs);
        self
    }

    /// A line of `postgresql.conf`; the value is quoted here.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Flushes writes as in production: to the disk, if the run's directory is on a disk. Off by default: without
    /// flushes a killed server loses nothing; only a power failure would.
    #[must_use]
    pub fn fsync(self, on: bool) -> Self {
        self.setting("fsync", if on { "on" } else { "off" })
    }

    /// A further argument for `initdb`.
    #[must_use]
    pub fn initdb(mut self, argument: &str) -> Self {
        self.initdb.push(argument.to_owned());
        self
    }

    /// Where its directory is made, in place of the usual one.
    #[must_use]
    pub fn below(mut self, directory: Option<&Path>) -> Self {
        self.below = directory.map(Path::to_owned);
        self
    }

    /// Makes the cluster and starts it.
    ///
    /// # Errors
    /// With the program's own words, if `initdb` or the server fails.
    pub fn launch(self) -> Result<Cluster> {
        let programs = self.programs.clone().map_or_else(Programs::from_env, Ok)?;
        let place = match &self.below {
            Some(directory) => Place::below(directory, programs.user())?,
            None => Place::new(programs.user())?,
        };
        self.make(&programs, &place)?;
        let mut text = BASE.to_owned();
        for (name, value) in &self.settings {
            writeln!(text, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        append_settings(&place, &text)?;
        let mut cluster = Cluster::new(programs, place, free_port()?);
        cluster.start()?;
        Ok(cluster)
    }

    fn make(&self, programs: &Programs, place: &Place) -> Result<()> {
        let template = match self.initdb[..] {
            [] => Template::of(programs),
            _ => None,
        };
        if let Some(template) = &template
            && template.copy_to(programs, place)?
        {
            return Ok(());
        }
        run(programs
            .command("initdb", place.directory())
            .args([
                "--no-sync",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
            ])
            .arg(format!("--username={SUPERUSER}"))
            .args(&self.initdb)
            .arg("--pgdata")
            .arg(place.data()))?;
        template.map_or(Ok(()), |template| template.keep(programs, place))
    }
}

/// Adds `text` to the end of the cluster's `postgresql.conf`, where the last word wins.
pub(crate) fn append_settings(place: &Place, text: &str) -> Result<()> {
    let path = place.data().join("postgresql.conf");
    let mut whole = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    whole.push_str(text);
    std::fs::write(&path, whole).with_context(|| path.display().to_string())
}

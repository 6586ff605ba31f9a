//! The first state of a cluster, made by `initdb` once and then copied.
//!
//! `initdb` takes most of a second of a processor, and a run of all tests wants hundreds of clusters. A copy gets an
//! identity of its own, as `initdb` would have given it: restores and upgrades tell clusters apart by it.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::place::{Place, copy};
use crate::programs::{Programs, run};

/// Names the directory where first states are kept, of one installation of each version; without it there are none.
const VARIABLE: &str = "PG_ONCE_TEMPLATES";

/// Where a version's first state is kept, or will be.
pub(crate) struct Template(PathBuf);

impl Template {
    /// None: each cluster is to be made by `initdb`.
    pub(crate) fn of(programs: &Programs) -> Option<Self> {
        let directory = PathBuf::from(std::env::var_os(VARIABLE)?);
        Some(Self(directory.join(programs.version().to_string())))
    }

    /// False: there is none yet.
    pub(crate) fn copy_to(&self, programs: &Programs, place: &Place) -> Result<bool> {
        if !self.0.exists() {
            return Ok(false);
        }
        let data = place.data();
        copy(&self.0, &data)?;
        new_identity(programs, &data)?;
        Ok(true)
    }

    /// Keeps the state of a cluster that has never run. If two programs do so at the same time, the first program wins.
    pub(crate) fn keep(&self, programs: &Programs, place: &Place) -> Result<()> {
        let aside = Place::new(programs.user())?;
        copy(&place.data(), &aside.data())?;
        match std::fs::rename(aside.data(), &self.0) {
            Err(error) if !self.0.exists() => Err(error).context(self.0.display().to_string()),
            _ => Ok(()),
        }
    }
}

/// The control file begins with the system identifier. `pg_resetwal` gives the log the same identifier. With `--force`
/// it accepts a control file with a wrong checksum.
fn new_identity(programs: &Programs, data: &Path) -> Result<()> {
    let path = data.join("global/pg_control");
    let identity = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
    OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| file.write_all(&identity.to_ne_bytes()))
        .with_context(|| path.display().to_string())?;
    run(programs
        .command("pg_resetwal", data)
        .args(["--force", "--pgdata"])
        .arg(data))?;
    Ok(())
}

//! Under which OS user server programs run.
//!
//! PostgreSQL and PgBouncer refuse to run as root. An ordinary user runs them as himself; root
//! runs them under an unprivileged user that is already there, without `su` or `sudo`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::unistd::{Gid, Uid, User, chown, geteuid};

/// Names the user for servers when root runs the tests; `make` sets it.
const VARIABLE: &str = "PG_ONCE_OS_USER";

/// Tried in this order when the variable is not set.
const CANDIDATES: [&str; 3] = ["pgonce", "postgres", "nobody"];

/// The user that owns data directories and runs servers.
#[derive(Clone, Copy, Debug)]
pub struct OsUser {
    /// `None`: we are not root, and run servers as ourselves.
    ids: Option<(Uid, Gid)>,
}

impl OsUser {
    /// The user for this process: its own user, or an unprivileged user if it runs as root.
    ///
    /// # Errors
    /// If this process is root, and the variable names no unprivileged user, or none can be found.
    pub fn for_servers() -> Result<Self> {
        if !geteuid().is_root() {
            return Ok(Self { ids: None });
        }
        let user = match std::env::var(VARIABLE) {
            Ok(name) => User::from_name(&name)?.with_context(|| {
                format!("{VARIABLE} names the OS user \"{name}\", who does not exist")
            })?,
            Err(_) => first_candidate()?,
        };
        if user.uid.is_root() {
            bail!("{VARIABLE} names root, and PostgreSQL does not run as root");
        }
        Ok(Self {
            ids: Some((user.uid, user.gid)),
        })
    }

    /// Makes `command` run under this user.
    pub fn apply(&self, command: &mut Command) {
        if let Some((uid, gid)) = self.ids {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
    }

    /// Gives `path` to this user.
    ///
    /// # Errors
    /// If the path is missing or may not be given away.
    pub fn own(&self, path: &Path) -> Result<()> {
        if let Some((uid, gid)) = self.ids {
            chown(path, Some(uid), Some(gid))
                .with_context(|| format!("chown {}", path.display()))?;
        }
        Ok(())
    }
}

fn first_candidate() -> Result<User> {
    for name in CANDIDATES {
        if let Some(user) = User::from_name(name)? {
            return Ok(user);
        }
    }
    bail!("root needs an unprivileged OS user to run PostgreSQL: useradd --system pgonce")
}

//! The server's own programs (initdb, postgres, pg_dump, ...), found through `pg_config`.
//!
//! Each runs under the server's OS user, with none of the caller's `PG*` settings.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::os_user::OsUser;

/// Names the `pg_config` of the server to test.
pub(crate) const VARIABLE: &str = "PG_ONCE_PG_CONFIG";

/// What a program wrote before it ended with status 0.
#[derive(Clone, Debug)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// One PostgreSQL installation.
#[derive(Clone, Debug)]
pub struct Programs {
    bin: PathBuf,
    version: u32,
    user: OsUser,
}

impl Programs {
    /// The installation that the environment variable `PG_ONCE_PG_CONFIG` names.
    ///
    /// # Errors
    /// If the variable is not set or does not name a `pg_config` that works.
    pub fn from_env() -> Result<Self> {
        let Some(path) = std::env::var_os(VARIABLE) else {
            bail!(
                "{VARIABLE} must name the pg_config of a server that has pg_once installed; \
                 `make test` prepares one and sets it (`make test-e2e` for these tests alone)"
            );
        };
        Self::of(Path::new(&path))
    }

    /// The installation that `pg_config` describes.
    ///
    /// # Errors
    /// If `pg_config` cannot be run.
    pub fn of(pg_config: &Path) -> Result<Self> {
        let ask = |option: &str| -> Result<String> {
            let output = Command::new(pg_config)
                .arg(option)
                .output()
                .with_context(|| format!("run {} (from {VARIABLE})", pg_config.display()))?;
            Ok(String::from_utf8(output.stdout)?.trim().to_owned())
        };
        let version = ask("--version")?;
        let major = version
            .trim_start_matches(|c: char| !c.is_ascii_digit())
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .and_then(|digits| digits.parse().ok())
            .with_context(|| format!("no version in \"{version}\" from {}", pg_config.display()))?;
        Ok(Self {
            bin: ask("--bindir")?.into(),
            version: major,
            user: OsUser::for_servers()?,
        })
    }

    /// The major version, such as 18.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Where the programs are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.bin
    }

    /// The OS user under which the programs run.
    #[must_use]
    pub fn user(&self) -> OsUser {
        self.user
    }

    /// A command for one of the programs, to run in `directory`.
    #[must_use]
    pub fn command(&self, name: &str, directory: &Path) -> Command {
        let mut command = Command::new(self.bin.join(name));
        unprivileged(&mut command, self.user, directory);
        command
    }
}

/// Runs `command` under `user` in `directory`: a home it can read, and no settings of the caller.
pub(crate) fn unprivileged(command: &mut Command, user: OsUser, directory: &Path) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
    command
        .env("HOME", directory)
        .env("LC_MESSAGES", "C")
        .current_dir(directory);
    command.stdin(Stdio::null());
    user.apply(command);
}

/// Runs `command` to its end; a status other than 0 is an error with what the program wrote.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {name}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("{name} ended with {}\n{stdout}{stderr}", output.status);
    }
    Ok(Output { stdout, stderr })
}

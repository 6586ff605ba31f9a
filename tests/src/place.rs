//! Where a cluster or a pooler lives: a short directory owned by the server's OS user, and a port.
//!
//! Short, because the path of a unix socket has at most 107 bytes.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::leash::Leash;
use crate::os_user::OsUser;

/// Names the directory under which clusters are made; `/tmp` when it is not set.
const VARIABLE: &str = "PG_ONCE_RUN_DIR";

/// The longest directory that leaves room for `/.s.PGSQL.65535`.
const LONGEST_SOCKET_DIRECTORY: usize = 107 - 16;

/// How long a server may take for what it was told to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Below the range from which the kernel takes ports for outgoing connections, so that a server
/// that was killed finds its own port free again.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A directory of our own, on a leash.
#[derive(Debug)]
pub(crate) struct Place {
    leash: Leash,
    /// Kept apart when the directory's own path is too long for a socket.
    sockets: Option<Leash>,
}

impl Place {
    /// A new, empty directory that belongs to `user`.
    pub(crate) fn new(user: OsUser) -> Result<Self> {
        let base = std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        Self::below(&base, user)
    }

    /// The same below this one.
    pub(crate) fn below(base: &Path, user: OsUser) -> Result<Self> {
        let leash = leashed_directory(base, user)?;
        let sockets = if leash.directory().as_os_str().len() > LONGEST_SOCKET_DIRECTORY {
            Some(leashed_directory(Path::new("/tmp"), user)?)
        } else {
            None
        };
        Ok(Self { leash, sockets })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.leash.directory()
    }

    /// A cluster's data.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory().join("data")
    }

    pub(crate) fn sockets(&self) -> &Path {
        self.sockets.as_ref().unwrap_or(&self.leash).directory()
    }
}

fn leashed_directory(base: &Path, user: OsUser) -> Result<Leash> {
    let directory = nix::unistd::mkdtemp(&base.join("pgo.XXXXXX"))
        .with_context(|| format!("make a directory in {}", base.display()))?;
    let leash = Leash::on(&directory)?;
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o711))?;
    user.own(&directory)?;
    Ok(leash)
}

/// Copies a file or folder, owners and all, into a leashed directory: the program works there, and ends with the leash.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.current_dir(to.parent().unwrap_or(to));
    let status = command.arg("-a").args([from, to]).status()?;
    ensure!(status.success(), "cp {} {}", from.display(), to.display());
    Ok(())
}

/// A port on 127.0.0.1 that nobody listens on now. Processes start at different places, so that two test programs do
/// not race for the same port.
///
/// # Errors
/// If none is free.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let first = u16::try_from(std::process::id().wrapping_mul(61) % u32::from(span))?;
    for _ in 0..span {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + first.wrapping_add(step) % span;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free between {} and {}", PORTS.start, PORTS.end)
}

/// Asks `look` again and again until it has an answer; an error names `what` did not happen.
pub(crate) fn poll<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Some(found) = look()? {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("waited {} s for {what}", PATIENCE.as_secs())
}

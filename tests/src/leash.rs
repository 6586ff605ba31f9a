//! When a program is gone, however it went, kills everything that the program had started.
//!
//! A leash is a small shell that waits on a pipe whose other end only we hold. When we drop it, exit, panic or are
//! killed with SIGKILL, the kernel closes that end; the shell then kills every process whose working directory is
//! inside the leashed directory, and removes the directory. A server is asked first (SIGQUIT), because a killed server
//! leaves its shared memory behind. After a few thousand such segments no server starts on this machine any more.
//! `PR_SET_PDEATHSIG` would not do: it fires when the *thread* that started the server ends, and `Drop` alone would not
//! do either: nothing runs it for statics or after `kill -9`.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// `$1` is the directory. Working directories tell our processes from those of others even after
/// their parent died and their ids were used again. One `ls` reads them all: a program for each process of the
/// machine would cost more than the server's start.
const SCRIPT: &str = r#"
cat >/dev/null
[ -d "$1" ] || exit 0
IFS='
'
# Line by line: `of postmaster.pid 1` the server's process, `7` its segment.
of() { sed -sn "$1s/^.* //;$1p" "$2"/postmaster.pid "$2"/*/postmaster.pid 2>/dev/null; }
servers="
$(of 1 "$1")
"
set -f
for round in 1 2 3 4 5 6 7 8 9 10; do
    found=0
    for line in $(set +f; ls -ln /proc/[0-9]*/cwd 2>/dev/null); do
        case "$line" in
            *"/cwd -> $1" | *"/cwd -> $1/"*)
                id=${line#*/proc/}
                id=${id%%/*}
                signal=9
                [ "$round" -le 3 ] && case "$servers" in *"
$id
"*) signal=QUIT ;; esac
                kill "-$signal" "$id" 2>/dev/null && found=1
                ;;
        esac
    done
    [ "$found" = 0 ] && break
    sleep 0.1
done
set +f
for segment in $(of 7 "$1"); do ipcrm -m "$segment" 2>/dev/null; done
rm -rf "$1"
"#;

/// Holds a directory and all processes that work in it; see the file's head.
#[derive(Debug)]
pub struct Leash {
    directory: PathBuf,
    shell: Child,
}

impl Leash {
    /// Takes `directory` (an absolute path without symbolic links) on the leash.
    ///
    /// # Errors
    /// If the watching shell cannot be started.
    pub fn on(directory: &Path) -> Result<Self> {
        let directory = directory
            .canonicalize()
            .with_context(|| format!("{} is not there", directory.display()))?;
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "leash"])
            .arg(&directory)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own: Ctrl-C must reach us and not the shell that cleans up after us.
            .process_group(0)
            .spawn()
            .context("start the shell that cleans up after us")?;
        Ok(Self { directory, shell })
    }

    /// The directory on the leash.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Nothing can be done about a failure here, and the shell works alone anyway.
        let _ = self.shell.wait();
    }
}

/// Processes whose working directory is `directory` or below it.
pub(crate) fn processes_in(directory: &Path) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            // Fails for processes that just ended and for other users' processes: neither are ours.
            let cwd = std::fs::read_link(entry.path().join("cwd")).ok()?;
            cwd.starts_with(directory).then(|| Pid::from_raw(id))
        })
        .collect()
}

/// Sends SIGKILL to everything in `directory` until nothing is left there.
pub(crate) fn kill_all_in(directory: &Path) -> Result<()> {
    crate::place::poll("processes to die after SIGKILL", || {
        let left = processes_in(directory);
        for pid in &left {
            // It may have ended by itself between the look and the kill.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        Ok(left.is_empty().then_some(()))
    })
}

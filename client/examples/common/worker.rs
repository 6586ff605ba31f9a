//! Owns worker processes. The program starts itself a second time, with the argument `--work-for`. This second process
//! is the worker. It ends by a real `kill -9` between an effect and its record.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;

use super::Story;

/// The arguments that the examples share.
#[derive(Clone, Parser)]
#[command(version)]
pub struct Args {
    /// A database with the extension pg_once.
    #[arg(long, env = "PG_ONCE_URL")]
    pub database_url: String,
    /// For the worker process that is killed: the name of the run that it works for.
    #[arg(long, hide = true)]
    pub work_for: Option<String>,
    /// The URL of the foreign service.
    #[arg(long, hide = true, default_value = "")]
    pub foreign: String,
}

/// Kills this process; the examples call it between an effect and its record.
pub fn die() {
    // Cannot fail for a process's own id.
    let _ = kill(Pid::this(), Signal::SIGKILL);
}

/// Starts a worker process and waits for its death.
pub async fn run_until_killed(story: &Story, foreign: &str) -> Result<()> {
    let mut worker = Command::new(std::env::current_exe()?);
    worker
        .args(["--database-url", &story.url])
        .args(["--work-for", &story.name])
        .args(["--foreign", foreign])
        .stdout(Stdio::null())
        .kill_on_drop(true);
    let mut worker = worker.spawn()?;
    let ended = tokio::time::timeout(Duration::from_secs(60), worker.wait());
    let status = ended.await.context("the worker was not killed")??;
    ensure!(status.code().is_none(), "the worker exited: {status}");
    Ok(())
}

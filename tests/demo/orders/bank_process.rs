//! The bank as the orders meet it: a process of its own that nobody kills.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::{Child, Command};

use crate::supervisor::{Program, address};

const STARTS_WITHIN: Duration = Duration::from_secs(10);

pub struct Bank {
    child: Child,
    address: SocketAddr,
}

impl Bank {
    pub async fn start(program: &Program) -> Result<Self> {
        let mut child = Command::new(&program.path)
            .args(&program.arguments)
            .current_dir(&program.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.path.display()))?;
        let stdout = child.stdout.take().context("no standard output")?;
        let address = tokio::time::timeout(STARTS_WITHIN, address(stdout)).await??;
        Ok(Self { child, address })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn stop(mut self) -> Result<()> {
        self.child.kill().await?;
        Ok(())
    }
}

//! The bank as the demo runs it: a process of its own, whose ledger is asked for over HTTP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const STARTS_WITHIN: Duration = Duration::from_secs(10);

pub struct Bank {
    child: Child,
    address: SocketAddr,
}

/// A line of the ledger.
#[derive(Deserialize)]
pub struct Charge {
    pub charge_id: String,
    pub idempotency_key: Option<String>,
    pub reference: String,
    pub customer: String,
    pub amount_cents: i64,
    pub at_micros: u64,
}

/// The trouble that the bank made.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct BankTrouble {
    pub slow: u64,
    pub cut: u64,
    pub repeated: u64,
    pub looked_up: u64,
}

impl Bank {
    pub async fn start(
        program: &Path,
        directory: &Path,
        name: &str,
        dedupe: bool,
        seed: u64,
    ) -> Result<Self> {
        let ledger: PathBuf = directory.join(format!("{name}.ledger.jsonl"));
        let mut child = Command::new(program)
            .args([
                "--listen",
                "127.0.0.1:0",
                "--slow",
                "0.02",
                "--slow-ms",
                "1500",
                "--cut",
                "0.03",
            ])
            .args(["--dedupe", if dedupe { "true" } else { "false" }])
            .args(["--seed", &seed.to_string()])
            .arg("--ledger")
            .arg(ledger)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(STARTS_WITHIN, lines.next_line()).await??;
        let address = line
            .as_deref()
            .and_then(|line| line.strip_prefix("listening on "))
            .context("the bank does not say where it listens")?
            .parse()?;
        Ok(Self { child, address })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn ledger(&self) -> Result<Vec<Charge>> {
        self.get("/ledger").await
    }

    pub async fn trouble(&self) -> Result<BankTrouble> {
        self.get("/trouble").await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let answer = client.get(format!("{}{path}", self.url()).parse()?).await?;
        ensure!(
            answer.status().is_success(),
            "the bank answers {} to {path}",
            answer.status()
        );
        let body = answer.into_body().collect().await?.to_bytes();
        Ok(serde_json::from_slice(&body)?)
    }

    pub async fn stop(mut self) -> Result<()> {
        self.child.kill().await?;
        Ok(())
    }
}

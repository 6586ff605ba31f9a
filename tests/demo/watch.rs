//! What `once.metrics()` says while the demo runs, asked every second of each database that has it, as an exporter
//! would; written to `metrics.jsonl`.
//!
//! Invariant: watching never disturbs the run: a database that cannot be asked is left out for that second.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pg_once_tests::Cluster;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

const DATABASES: &str = "select datname from pg_database where datallowconn and not datistemplate";
const METRICS: &str = "select name, labels::text, value from once.metrics()";
const HAS_IT: &str = "select 1 from pg_extension where extname = 'pg_once'";

/// One number at one time.
pub struct Point {
    /// Since the beginning.
    pub seconds: f64,
    pub database: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Everything that was seen.
pub type Seen = Arc<Mutex<Vec<Point>>>;

/// Watches until it is ended.
pub struct Watch {
    seen: Seen,
    /// The error of the last time that a database could not be asked.
    failed: Arc<Mutex<Option<String>>>,
    task: JoinHandle<()>,
}

impl Watch {
    pub fn begin(cluster: &Cluster) -> Watch {
        let seen = Seen::default();
        let failed: Arc<Mutex<Option<String>>> = Arc::default();
        let (url, points) = (cluster.url("postgres"), Arc::clone(&seen));
        let told = Arc::clone(&failed);
        let task = tokio::spawn(async move {
            let begin = Instant::now();
            let mut clients = HashMap::new();
            loop {
                // A run takes its databases away, or kills their backends: the next second asks anew.
                if let Err(error) = look(&url, begin, &mut clients, &points).await {
                    *told.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(format!("{error:#}"));
                    clients.clear();
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        Watch { seen, failed, task }
    }

    /// What was seen; also written into `out`.
    pub fn end(self, out: &Path) -> Result<Vec<Point>> {
        self.task.abort();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let points = std::mem::take(&mut *seen);
        let failed = self
            .failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let (true, Some(failed)) = (points.is_empty(), failed) {
            bail!("once.metrics() was never answered: {failed}");
        }
        let mut text = String::new();
        for point in &points {
            let line = json!({
                "seconds": (point.seconds * 10.0).round() / 10.0,
                "database": point.database,
                "name": point.name,
                "labels": point.labels,
                "value": point.value,
            });
            writeln!(text, "{line}")?;
        }
        let file = out.join("metrics.jsonl");
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        Ok(points)
    }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn look(
    url: &str,
    begin: Instant,
    clients: &mut HashMap<String, Client>,
    points: &Seen,
) -> Result<()> {
    if !clients.contains_key("postgres") {
        clients.insert("postgres".to_owned(), connect(url).await?);
    }
    let admin = clients
        .get("postgres")
        .context("a client that was just put in")?;
    let databases: Vec<String> = admin
        .query(DATABASES, &[])
        .await?
        .iter()
        .map(|row| row.get(0))
        .collect();
    for database in databases {
        if !clients.contains_key(&database) {
            let (server, _) = url.rsplit_once('/').context("a URL with a database")?;
            let of_database = format!("{server}/{database}");
            clients.insert(database.clone(), connect(&of_database).await?);
        }
        let Some(client) = clients.get(&database) else {
            continue;
        };
        if client.query_opt(HAS_IT, &[]).await?.is_none() {
            continue;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let rows = client.query(METRICS, &[]).await?;
        let mut points = points.lock().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            points.push(Point {
                seconds,
                database: database.clone(),
                name: row.get(0),
                labels: serde_json::from_str(row.get(1))?,
                value: row.get(2),
            });
        }
    }
    Ok(())
}

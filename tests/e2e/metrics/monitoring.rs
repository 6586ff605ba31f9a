//! sql/monitoring/ with the real programs: promtool judges the rules, postgres_exporter asks a database, Prometheus
//! scrapes it, loads the rules and answers every panel of the dashboard.

use super::files::{DIRECTORY, everything, panels, read};
use super::preloaded;
use crate::playground::Playground;
use anyhow::{Result, bail};
use pg_once_tests::{Leash, race};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// None where the program is missing and nobody promised it: said loudly, and never under CI.
fn program(name: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file());
    if found.is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "{name} is missing: apt-get install {package}"
        );
        eprintln!("NOT TESTED: {name} is missing: sudo apt-get install {package}");
    }
    found
}

/// A program in a directory of the leash; killed when dropped.
struct Running(Child);

impl Running {
    fn start(directory: &Path, command: &mut Command) -> Running {
        let file = std::fs::File::create(directory.join("log")).unwrap();
        let child = command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::from(file.try_clone().unwrap()))
            .stderr(Stdio::from(file))
            .spawn()
            .unwrap();
        Running(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

async fn get(port: u16, path: &str) -> Result<String> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn run(program: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(DIRECTORY)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn promtool_accepts_the_rules_and_each_alert_fires_when_it_should_and_only_then() {
    let Some(promtool) = program("promtool", "prometheus") else {
        return;
    };
    for arguments in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ] {
        let (well, text) = run(&promtool, &arguments);
        assert!(well && text.contains("SUCCESS"), "{arguments:?}: {text}");
    }
    // Each rule says what it means and what to do.
    let rules = read("alerts.yml");
    let count = |word: &str| rules.matches(word).count();
    assert!(count("- alert: ") >= 8);
    for member in ["summary: ", "meaning: ", "runbook: "] {
        assert_eq!(count(member), count("- alert: "), "{member}");
    }
}

/// A directory for the programs of one test.
fn workplace(name: &str) -> Leash {
    let name = format!("pg_once_monitoring_{name}.{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&work).unwrap();
    Leash::on(&work).unwrap()
}

fn place(leash: &Leash, name: &str) -> PathBuf {
    let directory = leash.directory().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// What an exporter tells once it has what this looks for.
async fn answer_of(exporter: &str, port: u16, word: &str) -> String {
    race::poll_async(&format!("{exporter} to answer"), async || {
        let text = get(port, "/metrics").await.unwrap_or_default();
        Ok(text.contains(word).then_some(text))
    })
    .await
    .unwrap()
}

/// Prometheus scrapes that port, loads the rules, and answers every panel of the dashboard.
async fn assert_every_panel_is_answered(leash: &Leash, scraped: u16, relabelling: &str) {
    let programs = ["promtool", "prometheus"].map(|name| program(name, "prometheus"));
    let [Some(promtool), Some(prometheus)] = programs else {
        return;
    };
    let asked = free_port();
    let directory = place(leash, "prometheus");
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{DIRECTORY}/alerts.yml']\n\
         scrape_configs:\n  - job_name: pg_once\n    static_configs: [{{targets: ['127.0.0.1:{scraped}']}}]\n{relabelling}"
    );
    std::fs::write(directory.join("prometheus.yml"), config).unwrap();
    let _prometheus = Running::start(
        &directory,
        Command::new(prometheus)
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address=127.0.0.1:{asked}")),
    );
    let server = format!("http://127.0.0.1:{asked}");
    let panels = panels();
    assert!(panels.len() >= 12);
    let failed = "sql_exporter_last_scrape_failed";
    let also = (!relabelling.is_empty()).then(|| (failed.to_owned(), vec![failed.to_owned()]));
    for (title, expressions) in panels.into_iter().chain(also) {
        for expression in expressions {
            let answered = race::poll_async("an answer of Prometheus", async || {
                let (well, text) = run(&promtool, &["query", "instant", &server, &expression]);
                if !well && text.contains("parse error") {
                    bail!("{text}");
                }
                Ok((well && text.contains("=>")).then_some(()))
            })
            .await;
            assert!(answered.is_ok(), "{title}: {expression}: {answered:?}");
        }
    }
    let rules = get(asked, "/api/v1/rules").await.unwrap();
    for alert in read("alerts.yml")
        .lines()
        .filter_map(|l| l.trim().strip_prefix("- alert: "))
    {
        assert!(
            rules.contains(&format!("\"name\":\"{alert}\"")),
            "{alert}: {rules}"
        );
    }
    assert!(!rules.contains("\"health\":\"err\""), "{rules}");
}

/// A database where metrics() has a row of every name, and its url for a role that may only observe.
async fn scraped_database(name: &str) -> (Playground, String) {
    let play = everything(name).await;
    let role = format!("scraper_of_{name}");
    play.show(&format!(
        "create role {role} login; select once.grant_role('{role}', 'observe')"
    ))
    .await;
    let url = preloaded().url_as(&role, name);
    (play, format!("{url}?sslmode=disable"))
}

#[tokio::test]
async fn prometheus_gets_every_panel_of_the_dashboard_by_way_of_postgres_exporter() {
    let package = "prometheus-postgres-exporter";
    let Some(exporter) = program(package, package) else {
        return;
    };
    let (play, source) = scraped_database("scraped").await;
    let leash = workplace("postgres_exporter");
    let port = free_port();
    let _exporter = Running::start(
        &place(&leash, "exporter"),
        Command::new(exporter)
            .env("DATA_SOURCE_NAME", source)
            .arg(format!(
                "--extend.query-path={DIRECTORY}/postgres_exporter.yaml"
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(["--disable-default-metrics", "--disable-settings-metrics"]),
    );
    let text = answer_of(package, port, "outbox_lag_seconds{").await;
    for name in play
        .show("select distinct name from once.metrics()")
        .await
        .lines()
    {
        let there = text
            .lines()
            .any(|line| line.starts_with(name) && line[name.len()..].starts_with(['{', ' ']));
        assert!(there, "{name} is not in\n{text}");
    }
    assert_every_panel_is_answered(&leash, port, "").await;
}

/// What the README tells to add to the job that scrapes Debian's sql_exporter.
fn relabelling() -> String {
    let readme = read("README.md");
    let block = readme
        .lines()
        .skip_while(|line| line.trim() != "metric_relabel_configs:");
    let block: Vec<String> = block
        .take_while(|line| line.trim() != "```")
        .map(|line| format!(" {line}\n"))
        .collect();
    assert!(block.len() > 1, "{readme}");
    block.concat()
}

#[tokio::test]
async fn prometheus_gets_every_panel_of_the_dashboard_by_way_of_debians_sql_exporter() {
    let package = "prometheus-sql-exporter";
    let Some(exporter) = program(package, package) else {
        return;
    };
    let (play, source) = scraped_database("scraped_by_sql").await;
    let leash = workplace("sql_exporter");
    let (port, directory) = (free_port(), place(&leash, "exporter"));
    // The program knows its driver by the url's scheme.
    let source = source.replace("postgresql://", "postgres://");
    let config = read("prometheus-sql-exporter.yml");
    let ours = |line: &str| match line.trim().starts_with("- 'postgres://") {
        true => format!("      - '{source}'\n"),
        false => format!("{line}\n"),
    };
    let config: String = config.lines().map(ours).collect();
    assert_eq!(config.matches(&source).count(), 1, "{config}");
    let config = config.replace("'15s'", "'1s'");
    std::fs::write(directory.join("config.yml"), config).unwrap();
    let _exporter = Running::start(
        &directory,
        Command::new(exporter)
            .args(["-config.file", "config.yml", "-web.listen-address"])
            .arg(format!("127.0.0.1:{port}")),
    );
    let text = answer_of(package, port, "outbox_lag_seconds").await;
    // Every row, and nothing of it twice: the program refuses a scrape with two series of the same labels.
    let rows = text.lines().filter(|line| line.starts_with("sql_pg_once{"));
    let told = play.show("select count(*) from once.metrics()").await;
    assert_eq!(rows.count().to_string(), told, "{text}");
    for name in play
        .show("select distinct name from once.metrics()")
        .await
        .lines()
    {
        assert!(text.contains(&format!("name=\"{name}\"")), "{name}: {text}");
    }
    assert_every_panel_is_answered(&leash, port, &relabelling()).await;
    // A failed query: the program repeats the last answer, and says so in a series that the rule MetricsMissing reads.
    play.show("select once.revoke_role('scraper_of_scraped_by_sql', 'observe')")
        .await;
    race::poll_async("the failure", async || {
        let text = get(port, "/metrics").await?;
        let failed = |line: &str| {
            line.starts_with("sql_exporter_last_scrape_failed{") && line.ends_with(" 1")
        };
        Ok((text.lines().any(failed) && text.contains("outbox_lag_seconds")).then_some(()))
    })
    .await
    .unwrap();
}

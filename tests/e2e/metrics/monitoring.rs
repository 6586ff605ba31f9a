//! sql/monitoring/ with the real programs: promtool judges the rules, postgres_exporter asks a database, Prometheus
//! scrapes it, loads the rules and answers every panel of the dashboard.

use super::files::{DIRECTORY, everything, panels, read};
use super::preloaded;
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

#[tokio::test]
async fn prometheus_gets_every_panel_of_the_dashboard_by_way_of_postgres_exporter() {
    let programs = [
        program("promtool", "prometheus"),
        program("prometheus", "prometheus"),
        program(
            "prometheus-postgres-exporter",
            "prometheus-postgres-exporter",
        ),
    ];
    let [Some(promtool), Some(prometheus), Some(exporter)] = programs else {
        return;
    };
    let play = everything("scraped").await;
    play.show("create role scraper login; select once.grant_role('scraper', 'observe')")
        .await;
    let work = std::env::temp_dir().join(format!("pg_once_monitoring.{}", std::process::id()));
    std::fs::create_dir_all(&work).unwrap();
    let leash = Leash::on(&work).unwrap();
    let place = |name: &str| {
        let directory = leash.directory().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        directory
    };
    let (scraped, asked) = (free_port(), free_port());
    let source = preloaded().url_as("scraper", "scraped");
    let _exporter = Running::start(
        &place("exporter"),
        Command::new(exporter)
            .env("DATA_SOURCE_NAME", format!("{source}?sslmode=disable"))
            .arg(format!(
                "--extend.query-path={DIRECTORY}/postgres_exporter.yaml"
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{scraped}"))
            .args(["--disable-default-metrics", "--disable-settings-metrics"]),
    );
    let text = race::poll_async("postgres_exporter to answer", async || {
        let text = get(scraped, "/metrics").await.unwrap_or_default();
        Ok(text.contains("outbox_lag_seconds{").then_some(text))
    })
    .await
    .unwrap();
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

    let directory = place("prometheus");
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{DIRECTORY}/alerts.yml']\n\
         scrape_configs: [{{job_name: pg_once, static_configs: [{{targets: ['127.0.0.1:{scraped}']}}]}}]\n"
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
    for (title, expressions) in panels {
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

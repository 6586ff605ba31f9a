//! The files of sql/monitoring/ name series and columns that metrics() really has, all of them, and no others.

use super::{counted, orders, preloaded};
use crate::playground::Playground;
use std::collections::{BTreeMap, BTreeSet};

pub const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sql/monitoring");

pub fn read(name: &str) -> String {
    std::fs::read_to_string(format!("{DIRECTORY}/{name}")).unwrap()
}

/// A database where metrics() has a row of every name.
pub async fn everything(database: &str) -> Playground {
    let play = counted(database).await;
    orders(&play).await;
    play.show("select once.topic_set('t', '{}'); select once.outbox_emit('t', '{}'); select * from once.sweep()").await;
    play.token("a", "").await;
    play
}

/// Names of metrics() and the labels that each has.
async fn series(play: &Playground) -> BTreeMap<String, String> {
    let rows = play
        .show(
            "select distinct name, (select coalesce(string_agg(k, ',' order by k), '') from jsonb_object_keys(labels) k)
               from once.metrics()",
        )
        .await;
    let pair = |line: &str| {
        line.split_once('|')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
    };
    rows.lines().filter_map(pair).collect()
}

/// Series that an expression of Prometheus names.
pub fn named(expression: &str) -> BTreeSet<String> {
    expression
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| {
            ["outbox_", "idempotency_", "side_effect_", "pg_once_"]
                .iter()
                .any(|p| word.starts_with(p))
        })
        .map(str::to_owned)
        .collect()
}

/// Title and expressions of the dashboard's panels.
pub fn panels() -> Vec<(String, Vec<String>)> {
    let dashboard: serde_json::Value = serde_json::from_str(&read("dashboard.json")).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|panel| {
            let targets = panel["targets"].as_array().unwrap();
            (
                text(&panel["title"]),
                targets.iter().map(|t| text(&t["expr"])).collect(),
            )
        })
        .collect()
}

fn rules() -> Vec<String> {
    let expression = |line: &str| line.trim().strip_prefix("expr: ").map(str::to_owned);
    read("alerts.yml").lines().filter_map(expression).collect()
}

#[tokio::test]
async fn every_series_of_the_rules_and_the_dashboard_is_one_of_metrics() {
    let play = everything("files_rules").await;
    let there = series(&play).await;
    let rules = rules();
    assert!(rules.len() >= 8, "{rules:?}");
    let expressions: Vec<String> = panels().into_iter().flat_map(|p| p.1).collect();
    assert!(expressions.len() >= 12, "{expressions:?}");
    for expression in rules.iter().chain(&expressions) {
        let named = named(expression);
        assert!(!named.is_empty(), "{expression}");
        for name in named {
            assert!(there.contains_key(&name), "{name} of {expression}");
        }
    }
    // What the issue names is there by that name, with its help and its labels.
    for (name, labels) in [
        ("outbox_lag_seconds", "subscriber,topic"),
        ("outbox_depth", "subscriber,topic"),
        ("idempotency_409_rate", ""),
        ("idempotency_in_progress_rate", ""),
        ("idempotency_reuse_rate", ""),
        ("side_effect_failure_rate", "kind,subscriber,topic"),
    ] {
        assert_eq!(there.get(name).map(String::as_str), Some(labels), "{name}");
    }
    play.ask("select count(*) from once.metrics() where help is null or help = ''")
        .is("0")
        .await;
    play.ask("select count(*) from once.metrics() where labels ? 'scope'")
        .is("0")
        .await;
    // A row of each name and labels only once.
    let twice = "select name from once.metrics() group by name, labels having count(*) > 1";
    assert_eq!(play.show(twice).await, "");
}

/// A query of an exporter's file: its text, its labels, and its metrics by column.
#[derive(Default)]
struct Query {
    sql: String,
    labels: BTreeSet<String>,
    /// Column, and the metric's name.
    values: Vec<(String, String)>,
}

fn of_postgres_exporter() -> Vec<Query> {
    let (mut all, mut name, mut column) = (Vec::<Query>::new(), String::new(), String::new());
    let mut in_sql = false;
    for line in read("postgres_exporter.yaml").lines() {
        let word = line
            .trim()
            .trim_start_matches("- ")
            .trim_end_matches(':')
            .trim_matches('"')
            .to_owned();
        if line.starts_with('#') {
            continue;
        } else if !line.starts_with(' ') && line.ends_with(':') {
            name = word;
            all.push(Query::default());
        } else if line == "  query: |" {
            in_sql = true;
        } else if line == "  metrics:" {
            in_sql = false;
        } else if in_sql {
            all.last_mut().unwrap().sql += &format!("{line}\n");
        } else if line.starts_with("    - ") {
            column = word;
        } else if let Some(usage) = line.trim().strip_prefix("usage: ") {
            let query = all.last_mut().unwrap();
            match usage {
                "\"LABEL\"" => drop(query.labels.insert(column.clone())),
                _ => query
                    .values
                    .push((column.clone(), format!("{name}_{column}"))),
            }
        }
    }
    all
}

#[tokio::test]
async fn postgres_exporters_queries_give_every_series_with_its_labels_to_who_may_only_observe() {
    let play = everything("files_exporters").await;
    play.show("create role files_exporter; select once.grant_role('files_exporter', 'observe')")
        .await;
    let there = series(&play).await;
    // An exporter prepares its queries, which is a session's affair.
    let own = preloaded().connect("files_exporters").await.unwrap();
    own.batch_execute("set role files_exporter").await.unwrap();
    let mut told = BTreeMap::new();
    for query in &of_postgres_exporter() {
        let statement = own.prepare(&query.sql).await.unwrap();
        let columns: BTreeSet<String> = statement
            .columns()
            .iter()
            .map(|c| c.name().to_owned())
            .collect();
        let wanted: BTreeSet<String> = query
            .labels
            .iter()
            .cloned()
            .chain(query.values.iter().map(|v| v.0.clone()))
            .collect();
        assert_eq!(columns, wanted, "{}", query.sql);
        let rows = own.query(&statement, &[]).await.unwrap();
        assert!(!rows.is_empty(), "{}", query.sql);
        let labels: Vec<&str> = query.labels.iter().map(String::as_str).collect();
        for (column, name) in &query.values {
            for row in &rows {
                let number: Option<f64> = row.get(column.as_str());
                assert!(number.is_some(), "{name}: {}", query.sql);
            }
            told.insert(name.clone(), labels.join(","));
        }
    }
    assert_eq!(told, there);
}

/// Lines of a list in Debian's sql_exporter's file.
fn list(text: &str, name: &str) -> BTreeSet<String> {
    let (_, rest) = text.split_once(&format!("\n        {name}:\n")).unwrap();
    let items = rest.lines().map_while(|l| l.strip_prefix("          - "));
    items.map(str::to_owned).collect()
}

#[tokio::test]
async fn debians_sql_exporter_asks_for_every_row_with_every_label_there_is() {
    let play = everything("files_debian").await;
    let text = read("prometheus-sql-exporter.yml");
    let there = play
        .show("select distinct k from once.metrics(), jsonb_object_keys(labels) k")
        .await;
    let mut labels = list(&text, "labels");
    assert!(labels.remove("name"));
    let there: BTreeSet<String> = there.lines().map(str::to_owned).collect();
    assert_eq!(labels, there);
    let (_, query) = text.split_once("\n        query: |\n").unwrap();
    // The program refuses a label that is NULL.
    let told = format!(
        "select count(*) from ({query}) q where jsonb_path_exists(to_jsonb(q), '$.* ? (@ == null)')"
    );
    assert_eq!(play.show(&told).await, "0");
    // An empty label and none are the same to Prometheus.
    let filled = |labels: &str| {
        format!(
            "(select coalesce(jsonb_object_agg(l.key, l.value), '{{}}') from jsonb_each({labels}) l where l.value <> '\"\"')"
        )
    };
    let missing = format!(
        "select m.name, m.labels from once.metrics() m where not exists (
            select from ({query}) q where q.name = m.name and {} = {})",
        filled("m.labels"),
        filled("to_jsonb(q) - array['name', 'value']")
    );
    assert_eq!(play.show(&missing).await, "");
}

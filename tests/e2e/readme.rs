//! The README keeps its word: its psql session runs as it is printed, and its Rust program is the one that
//! is compiled and run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests fail by panicking"
)]

use pg_once_tests::Cluster;

const README: &str = include_str!("../../README.md");
const QUICKSTART: &str = include_str!("../../client/examples/quickstart.rs");

/// The first block of a language.
fn block(language: &str) -> &'static str {
    let from = README
        .split_once(&format!("```{language}\n"))
        .expect(language)
        .1;
    from.split_once("```").expect("the end of the block").0
}

#[tokio::test]
async fn the_psql_session_can_be_pasted() {
    let cluster = Cluster::launch().unwrap();
    cluster
        .create_database_with_extension("pasted")
        .await
        .unwrap();
    let script = cluster.directory().join("readme.sql");
    std::fs::write(&script, block("sql")).unwrap();
    let arguments = ["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"];
    let (url, script) = (
        cluster.front_url("pasted").unwrap(),
        script.to_str().unwrap(),
    );
    let output = cluster
        .run("psql", &[&arguments[..], &[&url, "-f", script]].concat())
        .unwrap();
    let outcomes: Vec<&str> = output
        .stdout
        .lines()
        .filter_map(|line| line.split('|').next())
        .filter(|word| ["claimed", "in_progress", "replayed", "mismatched"].contains(word))
        .collect();
    assert_eq!(
        outcomes,
        ["claimed", "in_progress", "replayed", "mismatched"]
    );
    assert!(
        output.stdout.contains("replayed|201|{\"order\": 1}"),
        "{}",
        output.stdout
    );
}

#[test]
fn the_rust_program_is_the_example_that_runs() {
    assert!(QUICKSTART.contains(block("rust").trim_end()));
}

//! The README keeps its word: its psql session runs as it is printed, from the first block to the last, and its Rust
//! program is the one that is compiled and run.
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

/// The blocks of a language, in their order.
fn blocks(language: &str) -> Vec<&'static str> {
    let opening = format!("```{language}\n");
    README
        .split(&opening)
        .skip(1)
        .map(|from| from.split_once("```").expect("the end of the block").0)
        .collect()
}

#[tokio::test]
async fn the_psql_session_can_be_pasted() {
    let cluster = Cluster::launch().unwrap();
    cluster
        .create_database_with_extension("pasted")
        .await
        .unwrap();
    let script = cluster.directory().join("readme.sql");
    // One session: what a block makes, a later one uses.
    std::fs::write(&script, blocks("sql").concat()).unwrap();
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
    // The last statement acknowledges the only event, which was there to be taken.
    assert_eq!(output.stdout.lines().last(), Some("1"), "{}", output.stdout);
}

#[test]
fn the_rust_program_is_the_example_that_runs() {
    assert!(QUICKSTART.contains(blocks("rust")[0].trim_end()));
}

//! Few workers for many databases: all are served, the longest waiting first, and doctor() tells where there are too few.

use crate::serving::expired;
use crate::world::{
    JOBS, PATIENT, WORKER, WRITE, claim, hold_a_worker, launch, logged, preloaded, show, until,
    until_swept,
};
use std::time::Duration;

#[tokio::test]
async fn twenty_databases_are_served_with_two_workers() {
    let names: Vec<_> = (1..=20).map(|i| format!("d{i}")).collect();
    let cluster = preloaded(&names.join(", "))
        // The server's launcher of logical replication, ours, and the two.
        .setting("max_worker_processes", "4")
        .launch()
        .unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    let model = cluster
        .create_database_with_extension("model")
        .await
        .unwrap();
    show(&model, JOBS).await;
    drop(model);
    let mut clients = Vec::new();
    for name in &names {
        show(&admin, &format!("create database {name} template model")).await;
        let client = cluster.connect(name).await.unwrap();
        claim(&client, 1, 10, "1 us").await;
        clients.push(client);
    }
    let workers = format!("select count(*) from pg_stat_activity where backend_type = '{WORKER}'");
    for client in &clients {
        until(client, "select distinct status from job", "ready").await;
        let running: i32 = show(&admin, &workers).await.parse().unwrap();
        assert!(running <= 2, "{running} workers");
    }
    for client in &clients {
        until_swept(client).await;
    }
    assert_eq!(logged(&cluster, "no background worker is free"), 0);
}

/// Databases a, b, c with one worker that waits for locks as long as it takes.
async fn one_worker() -> (pg_once_tests::Cluster, Vec<tokio_postgres::Client>) {
    let (name, value) = PATIENT;
    let cluster = preloaded("a, c, b")
        .setting("once.janitor_workers", "1")
        .setting(name, value)
        .launch()
        .unwrap();
    let mut clients = Vec::new();
    for name in ["a", "b", "c"] {
        let client = cluster.create_database_with_extension(name).await.unwrap();
        until_swept(&client).await;
        clients.push(client);
    }
    (cluster, clients)
}

#[tokio::test]
async fn the_database_that_has_waited_longest_is_served_first() {
    let (cluster, clients) = one_worker().await;
    let (holder, _) = hold_a_worker(&cluster, "a").await;
    for client in &clients[1..] {
        show(client, "update once.janitor set last_end = null").await;
        show(client, WRITE).await;
        // A few naps.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    show(&holder, "rollback").await;
    let mut ends = Vec::new();
    for client in &clients[1..] {
        let end = "select min(last_end) from once.janitor having count(last_end) = count(*)";
        until(client, &format!("select ({end}) is not null"), "t").await;
        ends.push(show(client, end).await);
    }
    assert!(ends[0] < ends[1], "{ends:?}");
}

#[tokio::test]
async fn doctor_tells_that_the_workers_are_too_few() {
    let (cluster, clients) = one_worker().await;
    let late = "select level, hint from once.doctor() where problem like '%workers are too few%'";
    assert_eq!(show(&clients[1], late).await, "");
    let (_holder, _) = hold_a_worker(&cluster, "a").await;
    show(&clients[1], WRITE).await;
    let is_told = format!(
        "select count(*) from ({late}) as l where l.hint like 'Raise once.janitor_workers%'"
    );
    until(&clients[2], &is_told, "1").await;
    // A second worker, and b is served.
    show(&clients[2], "alter system set once.janitor_workers = 2").await;
    show(&clients[2], "select pg_reload_conf()").await;
    until_swept(&clients[1]).await;
}

#[tokio::test]
async fn a_database_with_a_backlog_keeps_no_other_waiting() {
    let cluster = launch("a, b");
    let admin = cluster.connect("postgres").await.unwrap();
    show(&admin, "alter system set once.janitor_workers = 1").await;
    show(&admin, "select pg_reload_conf()").await;
    let a = cluster.create_database_with_extension("a").await.unwrap();
    let b = cluster.create_database_with_extension("b").await.unwrap();
    show(&b, JOBS).await;
    expired(&a, 150_000).await;
    claim(&b, 1, 10, "1 us").await;
    until(&b, "select distinct status from job", "ready").await;
    let left = show(&a, "select count(*) > 0 from once.key").await;
    assert_eq!(left, "t", "the backlog was too small to tell");
    until(&a, "select count(*) from once.key", "0").await;
}

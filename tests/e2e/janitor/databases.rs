//! The list of databases: read again on SIGHUP, followed as databases come and go, told of once.

use crate::world::{launch, logged, preloaded, show, until, until_logged, until_served, worker};
use pg_once_tests::race::poll_async;
use tokio_postgres::Client;

async fn set(admin: &Client, databases: &str) {
    show(
        admin,
        &format!("alter system set once.janitor_databases = '{databases}'"),
    )
    .await;
    show(admin, "select pg_reload_conf()").await;
}

#[tokio::test]
async fn the_list_is_read_again_on_reload_and_follows_the_databases() {
    let cluster = launch("");
    let admin = cluster.connect("postgres").await.unwrap();
    until(
        &admin,
        "select count(*) from pg_stat_activity where backend_type = 'pg_once launcher'",
        "1",
    )
    .await;
    for name in ["a", "b", "\"C, d\"\"\""] {
        show(&admin, &format!("create database {name}")).await;
    }
    set(&admin, "a, b , \"C, d\"\"\",a").await;
    until_served(&admin, "C, d\" a b").await;
    let kept = worker(&admin, "b").await;
    set(&admin, "b").await;
    until_served(&admin, "b").await;
    show(&admin, "drop database a").await;
    set(&admin, "a, b").await;
    until_logged(
        &cluster,
        "database \"a\" of once.janitor_databases is not there",
    )
    .await;
    show(&admin, "create database a").await;
    until_served(&admin, "a b").await;
    // Not for sessions, and so not for the worker; the launcher looks again at its next nap.
    let stranger = worker(&admin, "a").await;
    show(&admin, "alter database a allow_connections false").await;
    until_served(&admin, "b").await;
    show(&admin, "alter database a allow_connections true").await;
    until_served(&admin, "a b").await;
    assert_ne!(worker(&admin, "a").await, stranger);
    assert_eq!(
        worker(&admin, "b").await,
        kept,
        "the one that stays was started anew"
    );
    set(&admin, "").await;
    until_served(&admin, "~").await;
    assert_eq!(logged(&cluster, "FATAL"), 0, "{}", cluster.log_tail());
}

#[tokio::test]
async fn a_database_is_dropped_with_force_and_the_log_stays_short() {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    worker(&admin, "a").await;
    drop(client);
    let before = logged(&cluster, "is not there");
    show(&admin, "drop database a with (force)").await;
    poll_async("the launcher to miss the database", async || {
        Ok((logged(&cluster, "is not there") > before).then_some(()))
    })
    .await
    .unwrap();
    // Many naps later it still says so once.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(logged(&cluster, "is not there"), before + 1);
    let lines = std::fs::read_to_string(cluster.directory().join("server.log")).unwrap();
    let about = lines
        .lines()
        .filter(|l| l.contains("pg_once") || l.contains("FATAL"))
        .count();
    assert!(about <= 6, "{lines}");
    // And serves the next one of that name.
    let client = cluster.create_database_with_extension("a").await.unwrap();
    crate::world::until_swept(&client).await;
}

#[tokio::test]
async fn too_few_background_workers_are_told_of_once_and_asked_for_again() {
    let cluster = preloaded("a, b")
        // The server's own launcher of logical replication, ours, and one.
        .setting("max_worker_processes", "3")
        .launch()
        .unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    show(&admin, "create database a").await;
    until_served(&admin, "a").await;
    show(&admin, "create database b").await;
    until_logged(&cluster, "no background worker is free for the databases").await;
    assert_eq!(logged(&cluster, "Raise max_worker_processes"), 1);
    until_served(&admin, "a").await;
    set(&admin, "b").await;
    until_served(&admin, "b").await;
    assert_eq!(logged(&cluster, "no background worker is free"), 1);
}

#[tokio::test]
async fn a_database_that_is_named_and_has_no_worker_is_told_why_by_its_doctor() {
    // One for the server's logical replication, and one for the launcher.
    let cluster = preloaded("a")
        .setting("max_worker_processes", "2")
        .launch()
        .unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    until_logged(&cluster, "no background worker is free").await;
    let hint = "select hint from once.doctor() where problem like 'the janitor is not running%'";
    let told = show(&client, hint).await;
    assert!(told.contains("max_worker_processes"), "{told}");
    set(&client, "b").await;
    let other = format!("select ({hint}) like 'Load pg_once by %'");
    until(&client, &other, "t").await;
}

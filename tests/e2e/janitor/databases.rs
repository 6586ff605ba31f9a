//! The list of databases: read again on SIGHUP, followed as databases come and go, told of once.

use crate::world::{
    launch, logged, preloaded, show, until, until_left_alone, until_logged, until_swept,
};
use pg_once_tests::race::{poll_async, sqlstate};
use tokio_postgres::Client;

async fn set(admin: &Client, databases: &str) {
    show(
        admin,
        &format!("alter system set once.janitor_databases = '{databases}'"),
    )
    .await;
    show(admin, "select pg_reload_conf()").await;
}

/// What the launcher says of a database.
const MISSING: &str = "of once.janitor_databases does not exist";

#[tokio::test]
async fn the_list_is_read_again_on_reload_and_follows_the_databases() {
    let cluster = launch("");
    let admin = cluster.connect("postgres").await.unwrap();
    let a = cluster.create_database_with_extension("a").await.unwrap();
    let b = cluster.create_database_with_extension("b").await.unwrap();
    show(&admin, "create database \"C, d\"\"\"").await;
    let c = cluster.connect("C, d\"").await.unwrap();
    show(&c, "create extension pg_once").await;
    set(&admin, "a, b , \"C, d\"\"\",a").await;
    for client in [&a, &b, &c] {
        until_swept(client).await;
    }
    set(&admin, "b").await;
    until_left_alone(&a, &b).await;
    drop(a);
    show(&admin, "drop database a").await;
    set(&admin, "a, b").await;
    until_logged(
        &cluster,
        "database \"a\" of once.janitor_databases does not exist",
    )
    .await;
    let a = cluster.create_database_with_extension("a").await.unwrap();
    until_swept(&a).await;
    // Not for sessions, and so not for the worker; the launcher looks again at its next nap.
    show(&admin, "alter database a allow_connections false").await;
    until_left_alone(&a, &b).await;
    show(&admin, "alter database a allow_connections true").await;
    until_swept(&a).await;
    set(&admin, "").await;
    until(
        &admin,
        "select count(*) from pg_stat_activity where backend_type = 'pg_once janitor'",
        "0",
    )
    .await;
    // A worker that was about to connect when the database was closed; no other one is started.
    assert!(logged(&cluster, "FATAL") <= 1, "{}", cluster.log_tail());
}

/// Runs it until no pass is in its way.
async fn soon(admin: &Client, sql: &str) {
    poll_async(sql, async || match admin.simple_query(sql).await {
        Ok(_) => Ok(Some(())),
        result => {
            assert_eq!(sqlstate(&result), "55006", "{sql}");
            Ok(None)
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_served_database_is_a_template_is_renamed_and_dropped_and_the_log_stays_short() {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    until_swept(&client).await;
    drop(client);
    soon(&admin, "create database copy template a").await;
    let before = logged(&cluster, MISSING);
    soon(&admin, "alter database a rename to renamed").await;
    let missing = async |times| {
        poll_async("the launcher to miss the database", async || {
            Ok((logged(&cluster, MISSING) >= before + times).then_some(()))
        })
        .await
        .unwrap();
    };
    missing(1).await;
    soon(&admin, "alter database renamed rename to a").await;
    let client = cluster.connect("a").await.unwrap();
    until_swept(&client).await;
    drop(client);
    soon(&admin, "drop database a").await;
    missing(2).await;
    // Many naps later it still says so once.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(logged(&cluster, MISSING), before + 2);
    // A worker that begins while its database goes is refused by the server, once for each time that it went.
    let refused = logged(&cluster, "FATAL");
    assert_eq!(
        refused,
        logged(&cluster, "FATAL:  database "),
        "{}",
        cluster.log_tail()
    );
    assert!(refused <= 2, "{}", cluster.log_tail());
    // And serves the next one of that name.
    let client = cluster.create_database_with_extension("a").await.unwrap();
    until_swept(&client).await;
}

#[tokio::test]
async fn a_database_that_is_named_and_has_no_worker_is_told_why_by_its_doctor() {
    // One for the server's logical replication, and one for the launcher.
    let cluster = preloaded("a, b")
        .setting("max_worker_processes", "2")
        .launch()
        .unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    cluster.create_database_with_extension("b").await.unwrap();
    until_logged(&cluster, "no background worker is free").await;
    let hint = "select hint from once.doctor() where problem like 'the janitor is not running%'";
    let told = show(&client, hint).await;
    assert!(told.contains("max_worker_processes"), "{told}");
    let late =
        "select count(*), min(level) from once.doctor() where problem like '%workers are too few%'";
    until(&client, late, "1|warning").await;
    assert_eq!(logged(&cluster, "Raise max_worker_processes"), 1);
    set(&client, "b").await;
    let other = format!("select ({hint}) like 'Load pg_once by %'");
    until(&client, &other, "t").await;
}

//! The worker and the extension that comes, goes, and is of the first release.

use crate::world::{JOBS, WORKER, claim, launch, logged, show, until, until_swept, worker};

#[tokio::test]
async fn it_waits_for_the_extension_and_survives_drop_and_create() {
    let cluster = launch("a");
    let admin = cluster.connect("postgres").await.unwrap();
    show(&admin, "create database a").await;
    let client = cluster.connect("a").await.unwrap();
    let pid = worker(&admin, "a").await;
    let query = format!("select query from pg_stat_activity where pid = {pid}");
    let absent = "pg_once is not installed in this database";
    until(&admin, &query, absent).await;
    for _ in 0..3 {
        show(&client, "create extension pg_once").await;
        show(&client, JOBS).await;
        until_swept(&client).await;
        claim(&client, 1, 100, "1 us").await;
        until(&client, "select distinct status from job", "ready").await;
        // In the middle of its passes, too: nothing of it may be in the way.
        show(&client, "drop extension pg_once cascade; drop table job").await;
        until(&admin, &query, absent).await;
    }
    assert_eq!(worker(&admin, "a").await, pid, "it was started anew");
    assert_eq!(logged(&cluster, "ERROR"), 0);
    assert_eq!(logged(&cluster, "WARNING:  pg_once janitor"), 0);
}

#[tokio::test]
async fn the_schema_of_the_first_release_is_served_before_and_after_its_update() {
    let cluster = launch("a");
    let share = cluster.run("pg_config", &["--sharedir"]).unwrap().stdout;
    let share = share.trim();
    // A rename: another test program may do the same at this moment.
    let new = format!("{share}/extension/pg_once.{}", std::process::id());
    std::fs::write(&new, include_str!("../../upgrade/pg_once--0.1.0.sql")).unwrap();
    std::fs::rename(&new, format!("{share}/extension/pg_once--0.1.0.sql")).unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    show(&admin, "create database a").await;
    let client = cluster.connect("a").await.unwrap();
    show(&client, "create extension pg_once version '0.1.0'").await;
    let pid = worker(&admin, "a").await;
    show(&client, JOBS).await;
    claim(&client, 1, 100, "1 us").await;
    until(&client, "select distinct status from job", "ready").await;
    let ran = "select count(*) from once.janitor where last_end is not null and done >= 0";
    until(&client, ran, "8").await;
    assert_eq!(
        show(
            &client,
            "select done, failed from once.janitor where machine = 'job'"
        )
        .await,
        "100|0"
    );
    show(&client, "alter extension pg_once update").await;
    until_swept(&client).await;
    claim(&client, 1, 100, "1 us").await;
    until(&client, "select distinct status from job", "ready").await;
    let seen = "select done, served_by from once.janitor_status() where machine = 'job'";
    until(&client, seen, &format!("200|{WORKER}")).await;
    // The update may have had a table for longer than a sweep waits.
    let failed = "select count(*) from once.janitor where failed > 0 and last_error not like '%lock timeout'";
    assert_eq!(show(&client, failed).await, "0");
    assert_eq!(worker(&admin, "a").await, pid, "it was started anew");
    assert_eq!(
        logged(&cluster, "WARNING:  pg_once janitor"),
        logged(&cluster, "due to lock timeout")
    );
}

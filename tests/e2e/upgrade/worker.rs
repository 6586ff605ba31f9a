//! The background worker of the new library over the old schema: it sweeps, lets the update pass, and goes on.

use pg_once_tests::{Cluster, race};

use crate::playground::Playground;
use crate::released::{UPDATE, create_old};
use crate::world::{self, JOB, TABLES};

/// Waits until the worker has given the row back.
async fn reverted(play: &Playground, id: i64) {
    race::poll_async("the worker to revert the row", async || {
        let status = play
            .show(&format!("select status from job where id = {id}"))
            .await;
        Ok((status == "ready").then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_background_worker_serves_the_old_schema_and_the_upgraded_one() {
    let cluster = Cluster::builder()
        .setting("shared_preload_libraries", "pg_once")
        .setting("once.janitor_databases", "old_shop")
        .setting("once.janitor_naptime", "100ms")
        .launch()
        .unwrap();
    cluster
        .psql("postgres", "create database old_shop")
        .unwrap();
    let connect = async || Playground::on(&cluster, "old_shop").await;
    let play = connect().await;
    create_old(&play).await;
    play.show(TABLES).await;
    world::define(&play, JOB).await;
    world::jobs(&play, 1, 2, "ready").await;
    let overdue = ", lease => '1 microsecond'";
    world::token(&play, 1, "run", overdue).await;
    reverted(&play, 1).await;
    // While the update is under way the worker waits for it, and then uses what it made.
    let dba = connect().await;
    dba.show("begin").await;
    dba.show(UPDATE).await;
    dba.show("commit").await;
    world::token(&play, 2, "run", overdue).await;
    reverted(&play, 2).await;
    race::poll_async("the worker to tell its name", async || {
        let served = "select served_by from once.janitor_status() where task = 'action_release' and machine = 'job'";
        Ok((play.show(served).await == "pg_once janitor").then_some(()))
    })
    .await
    .unwrap();
    // A sweep that waited for the update may have given up and come again.
    let failed = "select count(*) from once.janitor where failed > 0 and last_error not like '%lock timeout'";
    assert_eq!(play.show(failed).await, "0");
    let log = cluster.log_tail();
    let mut errors = log.lines().filter(|line| line.contains("ERROR"));
    assert!(
        errors.all(|line| line.contains("canceling autovacuum task")),
        "{log}"
    );
}

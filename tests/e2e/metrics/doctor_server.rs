//! What doctor says of the server's settings and slots: in clusters of their own, because it holds for every database.

use super::doctor::{assert_told, told};
use super::{problems, shop};
use crate::playground::Playground;
use pg_once_tests::{Cluster, race};

/// Waits until this session has read a setting again.
async fn reloaded(play: &Playground, name: &str, value: &str) {
    play.show(&format!("alter system set {name} = '{value}'"))
        .await;
    play.show("select pg_reload_conf()").await;
    race::poll_async(name, async || {
        Ok((play.show(&format!("show {name}")).await == value).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn settings_of_the_servers_own_file_that_cost_what_is_promised() {
    let builder = Cluster::builder()
        .setting("autovacuum", "off")
        .setting("synchronous_commit", "off")
        .setting("once.janitor_databases", "shop");
    let (_cluster, play) = shop(builder).await;
    play.show("select * from once.sweep()").await;
    assert_told(&play, "autovacuum is off", "warning", "whole server").await;
    assert_told(
        &play,
        "synchronous_commit is off",
        "warning",
        "by the server's configuration file",
    )
    .await;
    assert_told(
        &play,
        "once.janitor_databases is set, but there is no background worker",
        "warning",
        "shared_preload_libraries",
    )
    .await;
    // The setting goes with the worker, whichever database it names.
    reloaded(&play, "once.janitor_databases", "").await;
    assert_eq!(told(&play, "background worker").await, "");
    reloaded(&play, "autovacuum", "on").await;
    reloaded(&play, "track_counts", "off").await;
    assert_told(&play, "autovacuum is off", "warning", "whole server").await;
    reloaded(&play, "track_counts", "on").await;
    reloaded(&play, "synchronous_commit", "on").await;
    assert_eq!(problems(&play).await, "");
    // Of a role, wherever it connects.
    play.show("create role hasty; alter role hasty set synchronous_commit = off")
        .await;
    assert_told(
        &play,
        "synchronous_commit is off",
        "warning",
        "ALTER ROLE hasty RESET",
    )
    .await;
    play.show("drop role hasty").await;
    assert_eq!(problems(&play).await, "");
}

/// Fills a few segments of the log of writes.
async fn write_wal(play: &Playground) {
    for _ in 0..6 {
        play.show("select pg_logical_emit_message(false, 'filler', repeat('x', 500000))")
            .await;
        play.show("select pg_switch_wal()").await;
    }
}

#[tokio::test]
async fn a_slot_without_a_snapshot_that_keeps_wal_and_is_lost_in_the_end() {
    let builder = Cluster::builder()
        .initdb("--wal-segsize=1")
        .setting("max_wal_size", "2MB")
        .setting("min_wal_size", "2MB")
        // What it writes would be kept, too.
        .setting("autovacuum_naptime", "1h");
    let (_cluster, play) = shop(builder).await;
    let slot = "replication slot tape";
    play.show("select pg_create_physical_replication_slot('tape', true)")
        .await;
    assert_eq!(told(&play, slot).await, "");
    write_wal(&play).await;
    let keeps = format!("{slot} holds back the removal of WAL");
    assert_told(&play, &keeps, "warning", "used by nobody, WAL from 0/").await;
    assert!(told(&play, slot).await.contains("no snapshot"));
    play.show("checkpoint").await;
    reloaded(&play, "max_slot_wal_keep_size", "1MB").await;
    let loses = format!("{slot} is about to be lost");
    assert_told(&play, &loses, "warning", "Bring its consumer back").await;
    write_wal(&play).await;
    play.show("checkpoint").await;
    let lost = format!("{slot} is lost");
    assert_told(&play, &lost, "warning", "the WAL that it needs is gone").await;
    assert!(told(&play, slot).await.contains("set it up anew"));
    play.show("select pg_drop_replication_slot('tape')").await;
    assert_eq!(problems(&play).await, "");
}

//! A pg_dump that stalls between its snapshot and its locks: every pending event is in the dump.

use std::process::Stdio;

use pg_once_tests::{Cluster, race};

use crate::playground::Playground;
use crate::{TOOLS, kept, retire, used};

async fn shop(cluster: &Cluster) -> Playground {
    // Older than the extension, so pg_dump locks it first.
    cluster.psql("postgres", "create database shop").unwrap();
    cluster.psql("shop", "create table first (id int)").unwrap();
    cluster.psql("shop", "create extension pg_once").unwrap();
    let play = Playground::on(cluster, "shop").await;
    play.show(TOOLS).await;
    play.show("select once.topic_set('t', '{\"subscribers\": [\"default\", \"slow\"]}')")
        .await;
    play.show(
        "select fill('t', 900); select drain('t', 'slow') is not null; select fill('t', 300, 901)",
    )
    .await;
    play.show("select drain('t') is not null").await;
    play
}

/// Sweeps until the events that the slow one needs are copied and their segment is marked.
async fn copied(play: &Playground) {
    race::poll_async("copies", async || {
        retire(play).await;
        Ok((kept(play).await == "300").then_some(()))
    })
    .await
    .unwrap();
}

/// Restores the dump and says what is pending there for the slow one.
async fn restored(cluster: &Cluster, database: &str) -> String {
    cluster
        .psql("postgres", &format!("create database {database}"))
        .unwrap();
    cluster
        .run("pg_restore", &["-d", database, "--exit-on-error", "dump"])
        .unwrap();
    let play = Playground::on(cluster, database).await;
    let got = play
        .show("select drain('t', 'slow') = upto(1200, 901)")
        .await;
    format!("{got} {}", play.show("select drain('t')").await)
}

#[tokio::test]
async fn a_dump_that_stalls_before_its_locks_while_segments_are_retired_has_every_pending_event() {
    let cluster = Cluster::launch().unwrap();
    let play = shop(&cluster).await;
    for copied_before in [false, true] {
        if copied_before {
            // Copied and marked: a snapshot from now on sees the copies, and does not hold the truncation.
            copied(&play).await;
        }
        let locker = Playground::on(&cluster, "shop").await;
        locker
            .show("begin; lock table first in access exclusive mode")
            .await;
        let mut dump = cluster
            .command("pg_dump")
            .args(["-d", "shop", "-Fc", "-f", "dump"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        race::poll_async("pg_dump to wait for its locks", async || {
            let waits = play
                .show(
                    "select count(*) from pg_locks l join pg_stat_activity a using (pid)
                        where not l.granted and a.application_name = 'pg_dump'",
                )
                .await;
            Ok((waits == "1").then_some(()))
        })
        .await
        .unwrap();
        let done = if copied_before { "truncated" } else { "copied" };
        race::poll_async(done, async || {
            retire(&play).await;
            let copied = kept(&play).await == "300";
            Ok((copied && used(&play).await.is_empty() == copied_before).then_some(()))
        })
        .await
        .unwrap();
        for _ in 0..5 {
            retire(&play).await;
        }
        assert_eq!(used(&play).await.is_empty(), copied_before);
        locker.show("rollback").await;
        assert!(dump.wait().unwrap().success());
        let database = format!("copy_{}", done);
        assert_eq!(restored(&cluster, &database).await, "t {}", "{done}");
    }
    play.ask("select drain('t', 'slow') = upto(1200, 901)")
        .is("t")
        .await;
}

#[tokio::test]
async fn a_dump_from_between_mark_and_truncation_goes_on_in_another_cluster() {
    let cluster = Cluster::launch().unwrap();
    let play = shop(&cluster).await;
    let reader = Playground::on(&cluster, "shop").await;
    reader
        .show("begin isolation level repeatable read; select count(*) from once.event_0")
        .await;
    copied(&play).await;
    assert_eq!(used(&play).await, "0", "marked, not truncated");
    cluster
        .run("pg_dump", &["-d", "shop", "-Fc", "-f", "dump"])
        .unwrap();

    let new = Cluster::launch().unwrap();
    std::fs::copy(
        cluster.directory().join("dump"),
        new.directory().join("dump"),
    )
    .unwrap();
    std::fs::set_permissions(
        new.directory().join("dump"),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    new.psql("postgres", "create database shop").unwrap();
    new.run("pg_restore", &["-d", "shop", "--exit-on-error", "dump"])
        .unwrap();
    let copy = Playground::on(&new, "shop").await;
    // The mark counts in the old cluster only: the segment is looked at again, and what is copied is not twice.
    for _ in 0..5 {
        let told = retire(&copy).await;
        assert!(told.contains("|0|"), "{told}");
    }
    copy.show("select fill('t', 2, 1201)").await;
    copy.ask("select drain('t', 'slow') = upto(1202, 901)")
        .is("t")
        .await;
    assert_eq!(copy.show("select drain('t')").await, "{1201,1202}");
}

#[tokio::test]
async fn a_sweep_in_the_middle_of_a_restore_deletes_no_event() {
    let cluster = Cluster::launch().unwrap();
    let play = shop(&cluster).await;
    copied(&play).await;
    let dump = cluster.run("pg_dump", &["-d", "shop"]).unwrap().stdout;
    let subscribers = dump.find("COPY once.subscriber ").unwrap();
    assert!(dump.find("COPY once.event_kept ").unwrap() < subscribers);
    cluster.psql("postgres", "create database half").unwrap();
    let (first, second) = dump.split_at(subscribers);
    let load = |database, part| {
        std::fs::write(cluster.directory().join("part.sql"), part).unwrap();
        let file = cluster.directory().join("part.sql");
        let arguments = ["-X", "-q", "-d", database, "-f", file.to_str().unwrap()];
        cluster.run("psql", &arguments).unwrap();
    };
    load("half", first);
    let half = Playground::on(&cluster, "half").await;
    for _ in 0..5 {
        retire(&half).await;
    }
    load("half", second);
    let half = Playground::on(&cluster, "half").await;
    half.ask("select drain('t', 'slow') = upto(1200, 901)")
        .is("t")
        .await;
    // A restored database whose subscribers are dropped at once needs nothing either.
    cluster.psql("postgres", "create database copy").unwrap();
    load("copy", &dump);
    let copy = Playground::on(&cluster, "copy").await;
    copy.show("select once.subscriber_drop('t', 'slow'), once.subscriber_drop('t', 'default')")
        .await;
    crate::retire_until(&copy, "").await;
    assert_eq!(kept(&copy).await, "0");
}

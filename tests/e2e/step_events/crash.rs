//! Dying at any point: what was registered and committed is emitted by whoever ends the key, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::playground::Playground;
use crate::{abort, done, emitted, step};
use pg_once_tests::Cluster;

async fn on(cluster: &Cluster) -> Playground {
    Playground::on(cluster, "shop").await
}

async fn crash(cluster: &mut Cluster) -> Playground {
    cluster.kill_9().unwrap();
    cluster.start().unwrap();
    on(cluster).await
}

/// A claim whose lease is over at once: after a crash the next attempt need not wait.
const BRIEF: &str = ", lease => '1 microsecond'";

#[tokio::test]
async fn killed_at_every_point_the_compensations_are_emitted_once() {
    let mut cluster = Cluster::builder().fsync(true).launch().unwrap();
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    let play = on(&cluster).await;
    play.show("select once.topic_set('t', '{}')").await;
    let first = play.token("k", BRIEF).await;
    play.show(&step(first, "pay", "look for the payment")).await;

    // During the foreign call.
    let play = crash(&mut cluster).await;
    let token = play.token("k", BRIEF).await;
    assert_eq!(play.show(&step(token, "pay", "")).await, "f|1");
    assert_eq!(play.code(&step(first, "pay", "late")).await, "ON001");
    play.show("begin").await;
    play.show(&done(token, "pay", "paid", "refund 7")).await;

    // Before the end of the step was committed.
    let play = crash(&mut cluster).await;
    let token = play.token("k", BRIEF).await;
    play.show(&step(token, "pay", "")).await;
    play.show(&done(token, "pay", "paid", "refund 8")).await;
    play.show(&step(token, "ship", "stop the parcel")).await;
    play.show("begin").await;
    play.show(&abort(token)).await;
    assert_eq!(emitted(&play).await, "stop the parcel refund 8");

    // Before the end of the key was committed.
    let play = crash(&mut cluster).await;
    assert_eq!(emitted(&play).await, "~");
    let token = play.token("k", BRIEF).await;
    play.show(&abort(token)).await;

    // After it.
    let play = crash(&mut cluster).await;
    assert_eq!(emitted(&play).await, "stop the parcel refund 8");
    assert_eq!(play.code(&abort(token)).await, "ON006");
    assert_eq!(emitted(&play).await, "stop the parcel refund 8", "repeated");
    let taken =
        "select string_agg(payload #>> '{}', ' ' order by event_id) from once.outbox_take('t')";
    assert_eq!(play.show(taken).await, "stop the parcel refund 8");
}

#[tokio::test]
async fn killed_again_and_again_no_key_loses_or_doubles_its_compensation() {
    let mut cluster = Cluster::builder().fsync(true).launch().unwrap();
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    on(&cluster)
        .await
        .show("select once.topic_set('t', '{}')")
        .await;
    for round in 0..5 {
        let mut workers = Vec::new();
        let stop = Arc::new(AtomicBool::new(false));
        for worker in 0..3 {
            let (play, stop) = (on(&cluster).await, Arc::clone(&stop));
            workers.push(tokio::spawn(async move {
                for i in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("{round}-{worker}-{i}");
                    let event = format!(r#"{{"topic": "t", "payload": "{key}"}}"#);
                    for sql in [
                        format!("select token from once.key_claim('s', '{key}')"),
                        format!("select once.key_step('s', '{key}', (select token from once.key where key = '{key}'), 'pay', '{event}')"),
                        format!("select once.key_abort('s', '{key}', (select token from once.key where key = '{key}'), 500)"),
                    ] {
                        if play.client.simple_query(&sql).await.is_err() {
                            return;
                        }
                    }
                }
            }));
        }
        let watcher = on(&cluster).await;
        pg_once_tests::race::poll_async("some aborts", async || {
            let sql = format!(
                "select count(*) >= 30 from once.key where status = 'a' and key like '{round}-%'"
            );
            Ok((watcher.show(&sql).await == "t").then_some(()))
        })
        .await
        .unwrap();
        cluster.kill_9().unwrap();
        stop.store(true, Ordering::Relaxed);
        cluster.start().unwrap();
        // Behind a pooler a statement may wait for the server to come back.
        for worker in workers {
            worker.await.unwrap();
        }
    }
    let play = on(&cluster).await;
    let wrong = "select count(*) filter (where (status = 'a') <> (n = 1)), count(*) filter (where status = 'a') >= 150
                   from once.key left join lateral (
                        select count(*) from once.event_0 where payload #>> '{}' = key) e (n) on true";
    assert_eq!(play.show(wrong).await, "0|t");
}

#[tokio::test]
async fn a_dump_restored_elsewhere_emits_what_was_registered_before_it() {
    let old = Cluster::launch().unwrap();
    old.create_database_with_extension("shop").await.unwrap();
    let play = on(&old).await;
    play.show("select once.topic_set('t', '{}'); select setval('once.event_id', 5000)")
        .await;
    let token = play.token("k", BRIEF).await;
    play.show(&step(token, "pay", "undo pay")).await;
    play.show(&done(token, "pay", "paid", "refund 7")).await;
    play.show(&step(token, "ship", "stop the parcel")).await;
    let dump = old.run("pg_dump", &["-d", "shop"]).unwrap().stdout;

    let new = Cluster::launch().unwrap();
    new.psql("postgres", "create database shop").unwrap();
    let file = new.directory().join("dump.sql");
    std::fs::write(&file, dump).unwrap();
    let file = file.to_str().unwrap();
    new.run(
        "psql",
        &[
            "-X",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            "shop",
            "-f",
            file,
        ],
    )
    .unwrap();
    let play = on(&new).await;
    assert_eq!(
        play.code(&step(token - 1, "ship", "late")).await,
        "ON001",
        "tokens mean the same"
    );
    let token = play.token("k", BRIEF).await;
    play.show(&step(token, "mail", "say sorry")).await;
    play.show(&abort(token)).await;
    let taken = "select string_agg(payload #>> '{}', ', ' order by event_id), min(event_id) > 5000
                   from once.outbox_take('t')";
    play.ask(taken)
        .is("say sorry, stop the parcel, refund 7|t")
        .await;
    play.show("select once.topic_set('new', '{}')").await;
    let ids = "select count(distinct topic_id), count(*) from once.topic";
    assert_eq!(play.show(ids).await, "2|2", "numbers go on, too");
}

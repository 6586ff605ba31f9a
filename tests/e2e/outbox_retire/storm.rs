//! Emitters, workers and sweepers at once, and a server that is killed: each event is delivered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pg_once_tests::Cluster;

use crate::TOOLS;
use crate::playground::Playground;

const EMITTERS: usize = 3;

/// Ledger of what workers got; the receiver's own, outside the outbox's transactions.
const LEDGER: &str = "create table ledger (n int, delivery_key text)";

const WORK: &str = "
do $$ declare t bigint; begin
    create temp table if not exists batch (token bigint, n int, delivery_key text);
    truncate batch;
    insert into batch select token, (payload ->> 'n')::int, delivery_key from once.outbox_take('t', max => 50, lease => '5 s');
    commit;
    insert into ledger select n, delivery_key from batch;
    commit;
    select max(token) into t from batch;
    if t is not null then perform once.outbox_ack('t', 'default', t); end if;
end $$";

async fn session(cluster: &Cluster) -> Playground {
    Playground::on(cluster, "shop").await
}

/// Runs `sql` again and again until told to stop or the server is gone.
async fn repeat(play: Playground, sql: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if play.client.batch_execute(sql).await.is_err() {
            return;
        }
    }
}

/// Emits events in transactions of their own, every third rolled back; the numbers whose commit was answered.
async fn emit(play: Playground, first: usize, count: usize, stop: &AtomicBool) -> Vec<usize> {
    let mut committed = Vec::new();
    for n in first..first + count {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let end = if n % 3 == 0 { "rollback" } else { "commit" };
        let sql = format!("begin; select fill('t', 1, {n}, 8); {end}");
        if play.client.batch_execute(&sql).await.is_err() {
            return committed;
        }
        if n % 3 != 0 {
            committed.push(n);
        }
    }
    committed
}

/// What the ledger has once all leases are over, and then the backoff of an event that was alone in its batch.
async fn drained(play: &Playground) -> BTreeMap<usize, usize> {
    for interval in ["1 minute", "1 hour"] {
        crate::later(play, interval).await;
        play.show("insert into ledger select n, 'rest' from unnest(drain('t')) n")
            .await;
    }
    let rows = play.show("select n, count(*) from ledger group by n").await;
    rows.lines()
        .map(|line| {
            let (n, count) = line.split_once('|').unwrap();
            (n.parse().unwrap(), count.parse().unwrap())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_committed_event_is_delivered_though_the_server_is_killed_among_rotations() {
    let mut cluster = Cluster::builder().launch().unwrap();
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    let play = session(&cluster).await;
    play.show(TOOLS).await;
    play.show(LEDGER).await;
    play.show("select once.topic_set('t', '{\"lanes\": 4}')")
        .await;
    drop(play);
    let mut committed = Vec::new();
    for round in 0..6 {
        let stop = Arc::new(AtomicBool::new(false));
        let mut others = Vec::new();
        for sql in [WORK, "select once.sweep(task => 'outbox_retire')"] {
            let (play, stop) = (session(&cluster).await, Arc::clone(&stop));
            others.push(tokio::spawn(async move { repeat(play, sql, &stop).await }));
        }
        let mut emitters = Vec::new();
        for i in 0..EMITTERS {
            let (play, stop) = (session(&cluster).await, Arc::clone(&stop));
            let first = (round * EMITTERS + i) * 10_000;
            emitters.push(tokio::spawn(async move {
                emit(play, first, 10_000, &stop).await
            }));
        }
        let watcher = session(&cluster).await;
        let opened = "select coalesce(max(opened), 0) from once.segment";
        let before = watcher.show(opened).await;
        // Killed at a rotation or soon after it.
        while watcher.show(opened).await == before {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        for pid in cluster.processes() {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        stop.store(true, Ordering::Relaxed);
        drop(watcher);
        cluster.kill_9().unwrap();
        cluster.start().unwrap();
        // Behind a pooler a statement may wait for the server to come back.
        for emitter in emitters {
            committed.extend(emitter.await.unwrap());
        }
        for other in others {
            other.await.unwrap();
        }
    }
    let play = session(&cluster).await;
    let got = drained(&play).await;
    let lost: Vec<_> = committed.iter().filter(|n| !got.contains_key(n)).collect();
    assert!(
        lost.is_empty(),
        "{} of {} lost: {lost:?}",
        lost.len(),
        committed.len()
    );
    // What came twice came with the same key: a receiver that dedupes by it has each once.
    let twice = "select count(*) from (select n from ledger where delivery_key <> 'rest'
                                        group by n having count(distinct delivery_key) > 1) g";
    assert_eq!(play.show(twice).await, "0");
}

//! Kill -9 of the whole server in the middle of an emit, a take, an ack and a rotation, ten times, with
//! synchronous commits: every committed event is delivered, none twice to a receiver that dedupes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pg_once_tests::{Cluster, race};

use crate::playground::Playground;
use crate::receiver::Receiver;
use crate::{ahead, session};

const ROUNDS: usize = 10;
const EMITTERS: usize = 2;
/// Numbers of one emitter in one round.
const SPAN: usize = 100_000;

const TAKE: &str = "select token, delivery_key, order_key, payload ->> 'n'
                      from once.outbox_take('t', max => 20, lease => '2 s')";

/// Emits until the server is gone: pairs in one transaction, every other pair of one order_key, some undone.
/// Returns the numbers whose commit was answered.
///
/// Behind a pooler a statement may wait for the server to come back, and be answered; none is sent after `stop`.
async fn emit(play: Playground, emitter: usize, round: usize, stop: &AtomicBool) -> Vec<usize> {
    let mut committed = Vec::new();
    let first = (round * EMITTERS + emitter) * SPAN;
    for n in (first..first + SPAN).step_by(2) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = match n % 4 {
            0 => format!("'key {emitter}'"),
            _ => "null".to_owned(),
        };
        let undone = n % 10 == 4;
        let end = if undone { "rollback" } else { "commit" };
        let sql = format!(
            "begin; select once.outbox_emit('t', json_build_object('n', {n}, 'pad', pad), {key}) from padding;
             select once.outbox_emit('t', json_build_object('n', {n} + 1, 'pad', pad), {key}) from padding; {end}"
        );
        if play.client.batch_execute(&sql).await.is_err() {
            return committed;
        }
        if !undone {
            committed.extend([n, n + 1]);
        }
    }
    committed
}

/// Takes, delivers and acks until the server is gone; every seventh batch is acked in two parts.
async fn work(play: Playground, receiver: &Receiver, stop: &AtomicBool) {
    let mut batches = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(messages) = play.client.simple_query(TAKE).await else {
            return;
        };
        let Some(token) = receiver.deliver(&shown(&messages)) else {
            tokio::task::yield_now().await;
            continue;
        };
        batches += 1;
        let whole = format!("select once.outbox_ack('t', 'default', {token})");
        let sql = match batches % 7 {
            0 => format!(
                "select once.outbox_ack('t', 'default', {token},
                    (select event_ids[1:1] from once.batch where token = {token} order by lane limit 1)); {whole}"
            ),
            _ => whole,
        };
        match play.client.batch_execute(&sql).await {
            Ok(()) => {}
            // Too slow for its lease on a busy machine: somebody else delivers them again.
            Err(error) if error.code().is_some_and(|c| c.code() == "ON001") => {}
            Err(_) => return,
        }
    }
}

fn shown(messages: &[tokio_postgres::SimpleQueryMessage]) -> String {
    let mut rows = Vec::new();
    for message in messages {
        if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
            let cells: Vec<_> = (0..row.len()).map(|i| row.get(i).unwrap_or("~")).collect();
            rows.push(cells.join("|"));
        }
    }
    rows.join("\n")
}

async fn sweep(play: Playground, stop: &AtomicBool) {
    let sql =
        "select once.sweep(task => 'outbox_retire'); select once.sweep(task => 'outbox_requeue')";
    while !stop.load(Ordering::Relaxed) {
        if play.client.batch_execute(sql).await.is_err() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Waits until the server is in the middle of this round's call.
async fn wait_for(cluster: &Cluster, round: usize) {
    let play = session(cluster).await;
    let opened = "select coalesce(max(opened), 0) from once.segment";
    if round % 4 == 3 {
        let before = play.show(opened).await;
        race::poll_async("a rotation", async || {
            Ok((play.show(opened).await != before).then_some(()))
        })
        .await
        .unwrap();
        return;
    }
    let acked = "select count(*) from once.receipt";
    let before = play.show(acked).await;
    let word = ["outbox_emit", "outbox_take", "outbox_ack"][round % 4];
    let busy = format!(
        "select count(*) from pg_stat_activity
          where state = 'active' and pid <> pg_backend_pid() and query like '%{word}%'"
    );
    race::poll_async(word, async || {
        let worked = play.show(acked).await != before;
        Ok((worked && play.show(&busy).await != "0").then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_committed_event_is_delivered_once_by_its_delivery_key() {
    let mut cluster = Cluster::launch().unwrap();
    let play = {
        cluster
            .create_database_with_extension(crate::DATABASE)
            .await
            .unwrap();
        session(&cluster).await
    };
    play.show(
        "create table padding as select string_agg(md5(i::text), '') as pad from generate_series(1, 256) i",
    )
    .await;
    play.show("select once.topic_set('t', '{\"lanes\": 4}')")
        .await;
    drop(play);
    let receiver = Arc::new(Receiver::default());
    let mut committed = Vec::new();
    for round in 0..ROUNDS {
        let stop = Arc::new(AtomicBool::new(false));
        let mut others = Vec::new();
        for _ in 0..3 {
            let (receiver, stop) = (Arc::clone(&receiver), Arc::clone(&stop));
            let play = session(&cluster).await;
            others.push(tokio::spawn(async move {
                work(play, &receiver, &stop).await;
            }));
        }
        {
            let (play, stop) = (session(&cluster).await, Arc::clone(&stop));
            others.push(tokio::spawn(async move { sweep(play, &stop).await }));
        }
        let mut emitters = Vec::new();
        for emitter in 0..EMITTERS {
            let (play, stop) = (session(&cluster).await, Arc::clone(&stop));
            emitters.push(tokio::spawn(async move {
                emit(play, emitter, round, &stop).await
            }));
        }
        wait_for(&cluster, round).await;
        // The server's processes, all at once; whoever sends a statement now finds nobody.
        for pid in cluster.processes() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        stop.store(true, Ordering::Relaxed);
        cluster.kill_9().unwrap();
        cluster.start().unwrap();
        for emitter in emitters {
            committed.extend(emitter.await.unwrap());
        }
        for other in others {
            other.await.unwrap();
        }
    }
    let play = session(&cluster).await;
    let mut hours = 0;
    loop {
        // Each event comes back alone where a lease ran out over it, and behind it the rest of its key.
        let mut empty = true;
        while let Some(token) = receiver.deliver(&play.show(TAKE).await) {
            empty = false;
            play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
                .await;
        }
        if empty && hours >= 2 {
            break;
        }
        hours += 1;
        ahead(&play, &format!("{hours} h")).await;
    }
    let accepted = receiver.accepted();
    let lost: Vec<_> = committed
        .iter()
        .filter(|n| !accepted.contains_key(n))
        .collect();
    assert!(
        lost.is_empty(),
        "{} of {} are lost: {lost:?}",
        lost.len(),
        committed.len()
    );
    let twice: Vec<_> = accepted.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "under several delivery keys: {twice:?}");
    let undone: Vec<_> = accepted.keys().filter(|n| *n / 2 * 2 % 10 == 4).collect();
    assert!(undone.is_empty(), "rolled back and delivered: {undone:?}");
    for (key, numbers) in receiver.by_key() {
        assert!(numbers.is_sorted(), "order of {key}: {numbers:?}");
    }
    eprintln!(
        "{} committed, {} duplicates on the wire",
        committed.len(),
        receiver.duplicates()
    );
}

#[tokio::test]
async fn a_backend_killed_in_the_middle_of_a_take_has_taken_nothing() {
    let cluster = Cluster::launch().unwrap();
    cluster
        .create_database_with_extension(crate::DATABASE)
        .await
        .unwrap();
    let play = session(&cluster).await;
    play.show("select once.topic_set('t', '{}')").await;
    play.show("select count(once.outbox_emit('t', json_build_object('n', i), 'k' || i % 3)) from generate_series(1, 30) i")
        .await;
    let receiver = Receiver::default();
    for call in ["take", "ack"] {
        let worker = session(&cluster).await;
        // Of its own: behind a pooler a client that has nothing open does not notice.
        let witness = cluster.connect(crate::DATABASE).await.unwrap();
        worker.show("begin").await;
        let taken = worker.show(TAKE).await;
        let token = taken.split('|').next().unwrap().to_owned();
        if call == "ack" {
            worker.show("commit").await;
            receiver.deliver(&taken);
            worker.show("begin").await;
            worker
                .show(&format!("select once.outbox_ack('t', 'default', {token})"))
                .await;
        }
        let pid = race::backend_pid(&worker.client).await.unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        // The postmaster ends everybody's session and starts over.
        race::poll_async("the server to come back", async || {
            if !witness.is_closed() {
                return Ok(None);
            }
            Ok(cluster.connect(crate::DATABASE).await.is_ok().then_some(()))
        })
        .await
        .unwrap();
    }
    let play = session(&cluster).await;
    for minutes in [0, 1, 2] {
        ahead(&play, &format!("{minutes} min")).await;
        while let Some(token) = receiver.deliver(&play.show(TAKE).await) {
            play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
                .await;
        }
    }
    let expected: Vec<usize> = (1..=30).collect();
    assert!(receiver.accepted().keys().eq(&expected));
    assert!(receiver.accepted().values().all(|count| *count == 1));
    assert!(receiver.duplicates() > 0, "the undone ack's come again");
    for (key, numbers) in receiver.by_key() {
        assert!(numbers.is_sorted(), "order of {key}: {numbers:?}");
    }
}

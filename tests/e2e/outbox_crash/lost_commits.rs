//! With asynchronous commits a crash takes commits and numbers of sequences back. What was seen of them stays
//! seen: no token and no delivery key stands for anything else later, and what survived is delivered.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pg_once_tests::{Cluster, race};

use crate::playground::Playground;
use crate::receiver::Receiver;
use crate::{ahead, session};

const ROUNDS: usize = 6;

/// Takes from one lane or two; the rest stays for later.
const TAKE: &str = "select token, delivery_key, order_key, payload
                      from once.outbox_take('t', max => 4, lease => '1 h')";

/// Stops the process that writes the log of asynchronous commits: what is not flushed by somebody's synchronous
/// commit is lost in the crash. SIGKILL ends a stopped process too.
async fn hold_the_log_back(play: &Playground) {
    // The server lets clients in before all of its own processes are there.
    let writer = race::poll_async("the process that writes the log", async || {
        let pid = "select pid from pg_stat_activity where backend_type = 'walwriter'";
        Ok(play.show(pid).await.parse().ok())
    });
    kill(Pid::from_raw(writer.await.unwrap()), Signal::SIGSTOP).unwrap();
}

/// The numbers of all events in the log.
async fn surviving(play: &Playground) -> BTreeSet<usize> {
    let sql = "select payload::text from once.event_0 union all select payload::text from once.event_1
     union all select payload::text from once.event_2 union all select payload::text from once.event_3
     union all select payload::text from once.event_kept";
    let rows = play.show(sql).await;
    rows.lines().map(|n| n.parse().unwrap()).collect()
}

#[tokio::test]
async fn nothing_seen_before_a_crash_is_handed_out_again_for_something_else() {
    let mut cluster = Cluster::builder()
        .setting("synchronous_commit", "off")
        .setting("wal_writer_delay", "10s")
        .setting("autovacuum", "off")
        .setting("bgwriter_lru_maxpages", "0")
        .launch()
        .unwrap();
    cluster
        .create_database_with_extension(crate::DATABASE)
        .await
        .unwrap();
    let play = session(&cluster).await;
    play.show("select once.topic_set('t', '{\"lanes\": 2}')")
        .await;
    play.show("checkpoint").await;
    drop(play);
    let receiver = Receiver::default();
    // By event_id: the numbers that somebody emitted under it.
    let mut ids: HashMap<i64, BTreeSet<usize>> = HashMap::new();
    let mut batches: BTreeMap<i64, BTreeSet<usize>> = BTreeMap::new();
    let (mut number, mut lost_acks, mut kept_acks, mut lost) = (0, 0, 0, 0);
    for round in 0..ROUNDS {
        let play = session(&cluster).await;
        hold_the_log_back(&play).await;
        let there = surviving(&play).await;
        lost = number - there.len();
        // A worker from before the crash: its batch is what it was, or it is told.
        for (token, taken) in &batches {
            let ack = format!("select once.outbox_ack('t', 'default', {token})");
            match play.attempt(&ack).await {
                Ok(acked) => {
                    assert_eq!(acked, taken.len().to_string(), "{token}");
                    assert!(taken.is_subset(&there), "{token}: {taken:?}");
                    kept_acks += 1;
                }
                Err(refusal) if refusal.code == "ON006" => {
                    assert!(taken.is_subset(&there), "{token}: {taken:?}");
                    kept_acks += 1;
                }
                Err(refusal) => {
                    assert_eq!(refusal.code, "ON001", "{refusal:?}");
                    lost_acks += 1;
                }
            }
        }
        batches.clear();
        for i in 0..24 {
            // The first half of every other round is on disk, of the rest nothing, nor the sequence's steps.
            let flush = i == 11 && round % 2 == 0;
            let end = if flush { "on" } else { "off" };
            play.show(&format!("set synchronous_commit = {end}")).await;
            let key = if i % 2 == 0 { "null" } else { "'key'" };
            let sql = format!("select event_id from once.outbox_emit('t', '{number}', {key})");
            let id: i64 = play.show(&sql).await.parse().unwrap();
            ids.entry(id).or_default().insert(number);
            number += 1;
            if i % 4 == 3 {
                let rows = play.show(TAKE).await;
                if let Some(token) = receiver.deliver(&rows) {
                    let taken = rows.lines().map(|r| r.rsplit('|').next().unwrap());
                    batches.insert(token, taken.map(|n| n.parse().unwrap()).collect());
                    if i % 8 == 3 {
                        play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
                            .await;
                    }
                }
            }
        }
        drop(play);
        cluster.kill_9().unwrap();
        cluster.start().unwrap();
    }
    let reused = ids.values().filter(|numbers| numbers.len() > 1).count();
    assert!(
        lost > 0 && reused > 0 && lost_acks > 0 && kept_acks > 0,
        "not tested: {lost} events lost, {reused} ids reused, {lost_acks} acks lost, {kept_acks} not"
    );
    let play = session(&cluster).await;
    let there = surviving(&play).await;
    for hours in 0..4 {
        ahead(&play, &format!("{} min", hours * 61)).await;
        while let Some(token) = receiver.deliver(&play.show(TAKE).await) {
            play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
                .await;
        }
    }
    // The receiver dedupes by delivery key: an event that came under a key it had seen would be missing here.
    let accepted = receiver.accepted();
    let missing: Vec<_> = there.iter().filter(|n| !accepted.contains_key(n)).collect();
    assert!(missing.is_empty(), "survived, not delivered: {missing:?}");
}

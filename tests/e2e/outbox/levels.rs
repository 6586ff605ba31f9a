//! Isolation levels and transactions that only read.

use std::sync::{Arc, Mutex};

use crate::playground::Playground;
use crate::stage::Stage;
use crate::{KEPT, drain};

#[tokio::test]
async fn a_kept_snapshot_does_not_hide_what_others_have_done() {
    for level in KEPT {
        for key in ["", "key"] {
            let stage = Stage::open("{}").await;
            let emit = async |stage: &Stage, names: &str| match key {
                "" => stage.emit(names).await,
                key => stage.emit_keyed(names, key).await,
            };
            emit(&stage, "taken").await;
            let old = stage.another().await;
            old.play
                .show(&format!(
                    "begin isolation level {level}; select count(*) from once.batch"
                ))
                .await;
            let token = stage.expect(1, "taken:1").await;
            old.expect_nothing().await;
            assert_eq!(stage.ack(token, "").await, "1");
            emit(&stage, "fresh").await;
            emit(&old, "own").await;
            // What was taken and acked since is not given out again; what was emitted since is.
            let mine = old.expect(10, "fresh:1 own:1").await;
            old.play.show("savepoint s").await;
            let again = old.play.code(&old.ack_sql(token, "")).await;
            assert_eq!(again, "ON006", "{level}");
            old.play.show("rollback to s").await;
            assert_eq!(old.ack(mine, "").await, "2");
            old.play.show("commit").await;
            let again = stage.play.code(&stage.ack_sql(mine, "")).await;
            assert_eq!(again, "ON006", "{level}");
            stage.expect_nothing().await;
        }
    }
}

#[tokio::test]
async fn a_dedupe_key_emitted_after_the_snapshot_emits_nothing_twice() {
    for level in KEPT {
        let stage = Stage::open("{}").await;
        let sql = "select emitted from once.outbox_emit('t', '1', dedupe_key => 'd')";
        let old = stage.play.another().await;
        old.show(&format!(
            "begin isolation level {level}; select count(*) from once.topic"
        ))
        .await;
        assert_eq!(stage.play.show(sql).await, "t");
        match old.attempt(sql).await {
            Ok(emitted) => assert_eq!(emitted, "f"),
            Err(refusal) => assert_eq!(refusal.code, "40001", "{refusal:?}"),
        }
        old.show("rollback").await;
        assert_eq!(drain(&stage.play, "default").await, "1", "{level}");
    }
}

/// Runs `sql` in a transaction of this level until it is not refused with 40001.
async fn persist(play: &Playground, level: &str, sql: &str) -> String {
    loop {
        play.show(&format!("begin isolation level {level}")).await;
        match play.attempt(sql).await {
            Ok(answer) => match play.attempt("commit").await {
                Ok(_) => return answer,
                Err(refusal) => assert_eq!(refusal.code, "40001", "{sql}: {refusal:?}"),
            },
            Err(refusal) => {
                assert_eq!(refusal.code, "40001", "{sql}: {refusal:?}");
                play.show("rollback").await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_workers_at_each_level_deliver_each_event_once() {
    const EVENTS: usize = 120;
    for level in KEPT {
        let play = Playground::open().await;
        play.show("select once.topic_set('t', '{\"lanes\": 2}')")
            .await;
        let got: Arc<Mutex<Vec<usize>>> = Arc::default();
        let mut tasks = Vec::new();
        for emitter in 0..2 {
            let play = play.another().await;
            tasks.push(tokio::spawn(async move {
                for n in (emitter..EVENTS).step_by(2) {
                    let key = if n % 4 < 2 { "null" } else { "'k'" };
                    persist(
                        &play,
                        level,
                        &format!("select once.outbox_emit('t', '{n}', {key})"),
                    )
                    .await;
                }
            }));
        }
        for _ in 0..4 {
            let (play, got) = (play.another().await, Arc::clone(&got));
            tasks.push(tokio::spawn(async move {
                let begun = std::time::Instant::now();
                while got.lock().unwrap().len() < EVENTS {
                    assert!(begun.elapsed().as_secs() < 60, "the events do not come");
                    let take = "select token, payload from once.outbox_take('t', max => 5)";
                    let rows = persist(&play, level, take).await;
                    let Some((token, _)) = rows.split_once('|') else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    let ack = format!("select once.outbox_ack('t', 'default', {token})");
                    let acked = persist(&play, level, &ack).await;
                    assert_eq!(acked, rows.lines().count().to_string());
                    let numbers = rows.lines().map(|r| r.split_once('|').unwrap().1);
                    got.lock()
                        .unwrap()
                        .extend(numbers.map(|n| n.parse::<usize>().unwrap()));
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let mut got = got.lock().unwrap().clone();
        got.sort_unstable();
        assert_eq!(got, (0..EVENTS).collect::<Vec<_>>(), "{level}");
    }
}

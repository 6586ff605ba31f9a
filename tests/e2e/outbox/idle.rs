//! A worker that finds nothing asks again and again: what comes then is taken by the very next take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::playground::Playground;

const TAKE: &str = "select payload #>> '{}' from once.outbox_take('t', max => 10)";

/// A topic from which everything was delivered, and a worker that has found nothing a few times.
async fn idle() -> (Playground, Playground) {
    let play = Playground::directly("asks what one backend remembers").await;
    play.show("select once.topic_set('t', '{}')").await;
    play.show("select count(once.outbox_emit('t', '\"old\"', order_key => 'k' || i)) from generate_series(1, 50) i")
        .await;
    drain(&play).await;
    let worker = play.another().await;
    rest(&worker).await;
    (play, worker)
}

async fn drain(play: &Playground) {
    while let Ok(token) = play
        .show("select max(token) from once.outbox_take('t', max => 1000)")
        .await
        .parse::<i64>()
    {
        play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
            .await;
    }
}

async fn rest(worker: &Playground) {
    for _ in 0..3 {
        assert_eq!(worker.show(TAKE).await, "");
    }
}

fn emit(what: &str, more: &str) -> String {
    format!("select once.outbox_emit('t', '\"{what}\"'{more})")
}

#[tokio::test]
async fn what_comes_is_taken_by_the_next_take() {
    let (play, worker) = idle().await;
    for key in ["", ", order_key => 'k1'"] {
        for i in 0..40 {
            let what = format!("e{i}");
            play.show(&emit(&what, key)).await;
            assert_eq!(worker.show(TAKE).await, what);
            drain_acked(&worker).await;
            rest(&worker).await;
        }
    }
}

/// Acks what was taken last.
async fn drain_acked(worker: &Playground) {
    worker
        .show("select once.outbox_ack('t', 'default', max(token)) from once.batch")
        .await;
}

#[tokio::test]
async fn what_was_emitted_before_and_commits_after_is_taken_by_the_next_take() {
    let (play, worker) = idle().await;
    for key in ["", ", order_key => 'k1'"] {
        for end in ["commit", "rollback"] {
            let open = play.another().await;
            open.show("begin; savepoint s").await;
            open.show(&emit("late", key)).await;
            open.show("release s").await;
            // Others come and go, with larger ids.
            let other = play.another().await;
            other
                .show(&format!("begin; {}; rollback", emit("gone", key)))
                .await;
            rest(&worker).await;
            open.show(end).await;
            let expected = if end == "rollback" { "" } else { "late" };
            assert_eq!(worker.show(TAKE).await, expected, "{end}");
            if !expected.is_empty() {
                drain_acked(&worker).await;
            }
            rest(&worker).await;
        }
    }
}

#[tokio::test]
async fn what_comes_without_an_emit_is_taken_by_the_next_take() {
    let (play, worker) = idle().await;
    play.show(&emit("x", "")).await;
    let take = "select token from once.outbox_take('t')";
    let nack = |more: &str| {
        format!(
            "select count(*) from once.outbox_nack('t', 'default', (select max(token) from once.batch){more})"
        )
    };
    // Released by somebody else, and dead and redriven.
    for end in [nack(", kind => 'released'"), nack(", kind => 'never'")] {
        let other = play.another().await;
        other.show(take).await;
        rest(&worker).await;
        other.show(&end).await;
        if end.contains("never") {
            rest(&worker).await;
            other
                .show("select once.outbox_redrive('t', 'default')")
                .await;
        }
        assert_eq!(worker.show(TAKE).await, "x");
        worker.show(&nack(", kind => 'released'")).await;
    }
    // A lease that runs out while the worker rests.
    worker
        .show("select token from once.outbox_take('t', lease => '2 s')")
        .await;
    let back = pg_once_tests::race::poll_async("the lease to run out", async || {
        let taken = worker.show(TAKE).await;
        if taken.is_empty() {
            // It was alone in its batch: it waits for its backoff in once.retry.
            worker
                .show("update once.retry set due_at = clock_timestamp() where token is null")
                .await;
        }
        Ok((taken == "x").then_some(()))
    });
    back.await.unwrap();
    drain_acked(&worker).await;
    rest(&worker).await;
    // Taken and acked in one transaction that is undone.
    play.show(&emit("y", "")).await;
    worker.show("begin").await;
    assert_eq!(worker.show(TAKE).await, "y");
    drain_acked(&worker).await;
    rest(&worker).await;
    worker.show("rollback").await;
    assert_eq!(worker.show(TAKE).await, "y");
    drain_acked(&worker).await;
    // A delay that is over.
    rest(&worker).await;
    play.show(&emit("later", ", delay => '1 second'")).await;
    rest(&worker).await;
    let due = pg_once_tests::race::poll_async("a delayed event", async || {
        Ok((worker.show(TAKE).await == "later").then_some(()))
    });
    due.await.unwrap();
}

#[tokio::test]
async fn an_empty_take_after_the_last_commit_means_that_everything_is_taken() {
    let (play, _) = idle().await;
    let done = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (session, done) = (play.another().await, Arc::clone(&done));
        workers.push(tokio::spawn(async move {
            let mut got: Vec<String> = Vec::new();
            loop {
                let last = done.load(Ordering::SeqCst);
                let sql = "select token, payload #>> '{}' from once.outbox_take('t', max => 3)";
                let rows = session.show(sql).await;
                let Some((token, _)) = rows.split_once('|') else {
                    if last {
                        return got;
                    }
                    continue;
                };
                session
                    .show(&format!("select once.outbox_ack('t', 'default', {token})"))
                    .await;
                let payload = |line: &str| line.split_once('|').unwrap().1.to_owned();
                got.extend(rows.lines().map(payload));
            }
        }));
    }
    let mut emitters = Vec::new();
    for who in 0..3 {
        let session = play.another().await;
        emitters.push(tokio::spawn(async move {
            for i in 0..200 {
                let key = match i % 2 {
                    0 => String::new(),
                    _ => format!(", order_key => 'k{}'", i % 7),
                };
                session.show("begin").await;
                session.show(&emit(&format!("{who} {i}"), &key)).await;
                for _ in 0..(i % 5) {
                    session.show("select 1").await;
                }
                session.show("commit").await;
            }
        }));
    }
    for emitter in emitters {
        emitter.await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.unwrap());
    }
    assert_eq!(all.len(), 600);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 600);
}

#[tokio::test]
async fn waiting_retries_do_not_make_an_idle_take_look_through_all_lanes() {
    let (play, worker) = idle().await;
    play.show(&emit("x", "")).await;
    play.show("select once.outbox_nack('t', 'default', max(token), retry_after => '1 h') from once.outbox_take('t')")
        .await;
    let looks =
        "select idx_scan from pg_stat_xact_user_tables where relid = 'once.batch'::regclass";
    let quiet = pg_once_tests::race::poll_async("a take that does not look", async || {
        worker.show("begin").await;
        let before = worker.show(looks).await;
        assert_eq!(worker.show(TAKE).await, "");
        let looked = worker.show(looks).await != before;
        worker.show("commit").await;
        Ok((!looked).then_some(()))
    });
    quiet.await.unwrap();
}

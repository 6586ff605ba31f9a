//! Which events an end of the key emits, and that they are emitted with it or not at all.

use crate::playground::Playground;
use crate::{LEVELS, abort, complete, done, emitted, open, step};

/// Key k with three steps: one that ended, one that was begun, one that was never begun but ended.
async fn three_steps(play: &Playground) -> i64 {
    let token = play.token("k", "").await;
    play.show(&step(token, "pay", "undo pay")).await;
    play.show(&step(token, "ship", "undo ship")).await;
    play.show(&done(token, "pay", "paid", "")).await;
    play.show(&done(token, "book", "booked", "undo book")).await;
    assert_eq!(emitted(play).await, "~", "nothing before the end");
    token
}

#[tokio::test]
async fn completion_emits_what_the_ended_steps_said_and_abort_every_compensation_newest_first() {
    for (begin, aborts) in [("", false), ("", true), ("begin", true)] {
        let play = open().await;
        play.show(begin).await;
        let token = three_steps(&play).await;
        let (end, events) = match aborts {
            false => (complete(token), "paid booked"),
            true => (abort(token), "undo book undo ship undo pay"),
        };
        play.show(&format!("{end}; commit")).await;
        assert_eq!(emitted(&play).await, events);
    }
}

#[tokio::test]
async fn verdicts_emit_like_the_ends_they_are() {
    for (verdict, expected) in [
        ("complete", "paid booked"),
        ("abort", "undo book undo ship undo pay"),
    ] {
        let play = open().await;
        let token = three_steps(&play).await;
        play.show(&format!(
            "select once.key_park('s', 'k', {token}, 'who knows')"
        ))
        .await;
        assert_eq!(emitted(&play).await, "~", "parked");
        let resolve = format!("select once.key_resolve('s', 'k', 1, '{verdict}', 200)");
        play.show(&resolve).await;
        for _ in 0..3 {
            assert_eq!(emitted(&play).await, expected, "{verdict}");
            assert_eq!(play.code(&resolve).await, "ON006", "{verdict}, repeated");
        }
    }
}

#[tokio::test]
async fn a_verdict_for_a_retry_emits_nothing_and_the_next_attempt_ends_it_all() {
    let play = open().await;
    let token = three_steps(&play).await;
    play.show(&format!(
        "select once.key_park('s', 'k', {token}, 'who knows')"
    ))
    .await;
    play.show("select once.key_resolve('s', 'k', 1, 'retry')")
        .await;
    assert_eq!(emitted(&play).await, "~");
    let token = play.token("k", "").await;
    play.show(&format!("select once.key_release('s', 'k', {token})"))
        .await;
    assert_eq!(emitted(&play).await, "~");
    let token = play.token("k", "").await;
    play.ask(&step(token, "ship", "undo ship better"))
        .is("f|1")
        .await;
    play.show(&abort(token)).await;
    assert_eq!(
        emitted(&play).await,
        "undo book undo ship better undo pay",
        "ship keeps the place of its first beginning"
    );
}

#[tokio::test]
async fn the_events_commit_and_vanish_with_the_end() {
    for end in [complete as fn(i64) -> String, abort] {
        for level in LEVELS {
            let play = open().await;
            let token = three_steps(&play).await;
            let other = play.another().await;
            play.show(&format!("begin isolation level {level}")).await;
            play.show(&end(token)).await;
            assert_eq!(emitted(&other).await, "~", "not committed");
            let taken = other
                .show("select count(*) from once.outbox_take('t')")
                .await;
            assert_eq!(taken, "0");
            play.show("rollback").await;
            assert_eq!(emitted(&play).await, "~", "rolled back");
            play.show("begin; savepoint a").await;
            play.show(&end(token)).await;
            play.show("rollback to a").await;
            play.show(&end(token)).await;
            play.show("commit").await;
            assert_eq!(emitted(&play).await.matches("pa").count(), 1, "{level}");
        }
    }
}

#[tokio::test]
async fn steps_without_events_change_nothing_and_cost_no_look() {
    let play = open().await;
    let token = play.token("k", "").await;
    play.show(&step(token, "pay", "")).await;
    play.show(&done(token, "pay", "", "")).await;
    assert_eq!(play.show("select emits from once.key").await, "f");
    play.show("begin").await;
    play.show(&complete(token)).await;
    let locked = "select count(*) from pg_locks
                   where pid = pg_backend_pid() and relation = 'once.key_step'::regclass";
    assert_eq!(play.show(locked).await, "0", "the steps were not opened");
    play.show("commit").await;
    assert_eq!(emitted(&play).await, "~");
}

#[tokio::test]
async fn a_key_that_is_new_again_has_nothing_of_the_old_one() {
    let play = open().await;
    play.clock("0").await;
    let token = play.token("k", ", ttl => '1 s'").await;
    play.show(&done(token, "pay", "old", "undo old")).await;
    play.show(&complete(token)).await;
    assert_eq!(emitted(&play).await, "old");
    play.clock("1 year").await;
    let token = play.token("k", "").await;
    play.ask("select emits, (select count(*) from once.key_step) from once.key")
        .is("f|0")
        .await;
    play.show(&step(token, "ship", "undo ship")).await;
    play.show(&abort(token)).await;
    assert_eq!(emitted(&play).await, "old undo ship");

    let token = play.token("forgotten", ", lease => '1 microsecond'").await;
    play.show(&format!(
        "select once.key_step('s', 'forgotten', {token}, 'pay', {})",
        crate::event("undo forgotten")
    ))
    .await;
    play.clock("2 years").await;
    play.ask("select once.key_forget('s', 'forgotten')")
        .is("t")
        .await;
    let token = play.token("forgotten", "").await;
    play.show(&format!(
        "select once.key_abort('s', 'forgotten', {token}, 500)"
    ))
    .await;
    assert_eq!(emitted(&play).await, "old undo ship");
}

#[tokio::test]
async fn a_step_committed_after_the_snapshot_of_the_end_is_not_missed() {
    for level in LEVELS {
        let play = open().await;
        let token = play.token("k", "").await;
        play.show(&step(token, "first", "undo first")).await;
        let ender = play.another().await;
        ender
            .show(&format!(
                "begin isolation level {level}; select count(*) from once.key"
            ))
            .await;
        play.show(&step(token, "second", "undo second")).await;
        ender.show(&abort(token)).await;
        ender.show("commit").await;
        assert_eq!(emitted(&play).await, "undo second undo first", "{level}");
    }
}

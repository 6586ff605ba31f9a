//! Lost answers: every call again, and what a later call of the same step may change.

use crate::waiting::{Waiting, code};
use crate::{abort, complete, done, emitted, open, step};

#[tokio::test]
async fn every_call_repeated_changes_nothing_more() {
    for end in [complete as fn(i64) -> String, abort] {
        let play = open().await;
        let token = play.token("k", "").await;
        for _ in 0..3 {
            assert_eq!(play.show(&step(token, "pay", "undo")).await, "f|0");
        }
        play.ask("select count(*), max(begun) from once.key_step")
            .is("1|1")
            .await;
        for call in [done(token, "pay", "did", ""), end(token)] {
            let first = play.show(&format!("begin; {call}")).await;
            assert_eq!(play.show(&call).await, first, "in its transaction");
            play.show("commit").await;
            for _ in 0..2 {
                assert_eq!(play.code(&call).await, "ON006", "{call}");
            }
        }
        assert_eq!(emitted(&play).await.split(' ').count(), 1);
        let other_end = if end(token) == complete(token) {
            abort
        } else {
            complete
        };
        assert_eq!(play.code(&other_end(token)).await, "ON006");
        assert_eq!(play.code(&step(token, "pay", "undo")).await, "ON006");
        assert_eq!(emitted(&play).await.split(' ').count(), 1);
    }
}

#[tokio::test]
async fn the_end_of_a_step_replaces_the_compensation_of_its_beginning() {
    for (at_end, expected) in [("undo order 7", "undo order 7"), ("", "look it up")] {
        let play = open().await;
        let token = play.token("k", "").await;
        play.show(&step(token, "pay", "look it up")).await;
        play.show(&done(token, "pay", "", at_end)).await;
        play.show(&abort(token)).await;
        assert_eq!(emitted(&play).await, expected);
    }
}

#[tokio::test]
async fn the_first_recorded_end_wins_with_its_events() {
    let play = open().await;
    play.clock("0").await;
    let first = play.token("k", "").await;
    play.show(&step(first, "pay", "begun")).await;
    play.ask(&done(first, "pay", "first", "undo first"))
        .is("t")
        .await;
    play.clock("1 h").await;
    let second = play.token("k", "").await;
    assert_eq!(play.show(&step(second, "pay", "later")).await, "t|0");
    for (on_complete, on_abort) in [
        ("second", "undo second"),
        ("first", "undo second"),
        ("second", "undo first"),
        ("", ""),
        ("first", "undo first"),
    ] {
        let recorded = play.show(&done(second, "pay", on_complete, on_abort)).await;
        assert_eq!(recorded, "f", "another token: {on_complete}, {on_abort}");
    }
    play.show("begin").await;
    play.show(&abort(second)).await;
    assert_eq!(emitted(&play).await, "undo first");
    play.show("rollback").await;
    play.show(&complete(second)).await;
    assert_eq!(emitted(&play).await, "first");
}

#[tokio::test]
async fn in_its_transaction_an_end_with_other_events_is_not_recorded() {
    let play = open().await;
    let token = play.token("k", "").await;
    let first = format!("begin; {}", done(token, "pay", "a", "b"));
    assert_eq!(play.show(&first).await, "t");
    for (on_complete, on_abort, recorded) in [
        ("a", "b", "t"),
        ("x", "b", "f"),
        ("", "b", "f"),
        ("a", "x", "f"),
    ] {
        assert_eq!(
            play.show(&done(token, "pay", on_complete, on_abort)).await,
            recorded,
            "{on_complete}, {on_abort}"
        );
    }
    play.show("commit").await;
    play.show(&complete(token)).await;
    assert_eq!(emitted(&play).await, "a");
}

#[tokio::test]
async fn until_its_end_a_step_has_the_compensation_that_was_named_last() {
    let play = open().await;
    play.clock("0").await;
    let first = play.token("k", "").await;
    play.show(&step(first, "pay", "")).await;
    play.show(&step(first, "pay", "one")).await;
    play.show(&step(first, "pay", "two")).await;
    play.show(&step(first, "pay", "")).await;
    assert_eq!(play.show("select begun from once.key_step").await, "1");
    play.clock("1 h").await;
    let second = play.token("k", "").await;
    assert_eq!(play.show(&step(second, "pay", "")).await, "f|1");
    assert_eq!(play.code(&step(first, "pay", "late")).await, "ON001");
    play.show("begin").await;
    play.show(&abort(second)).await;
    assert_eq!(emitted(&play).await, "two", "null leaves it");
    play.show("rollback").await;
    play.show(&step(second, "pay", "three")).await;
    play.show(&abort(second)).await;
    assert_eq!(emitted(&play).await, "three");
}

#[tokio::test]
async fn an_end_that_waited_for_the_same_end_emits_nothing_more() {
    for end in ["rollback", "commit"] {
        let play = open().await;
        let token = play.token("k", "").await;
        play.show(&step(token, "pay", "undo")).await;
        let (one, other) = (play.another().await, play.another().await);
        one.show("begin").await;
        one.show(&abort(token)).await;
        let waiting = Waiting::begin(&play, other, &abort(token)).await;
        one.show(end).await;
        let (_, answer) = waiting.end().await;
        let told = if end == "commit" { "ON006" } else { "" };
        assert_eq!(code(&answer), told);
        assert_eq!(emitted(&play).await, "undo", "{end}");
    }
}

#[tokio::test]
async fn a_late_step_that_waited_for_the_end_is_refused_and_adds_nothing() {
    let play = open().await;
    let token = play.token("k", "").await;
    let (ender, late) = (play.another().await, play.another().await);
    ender.show("begin").await;
    ender.show(&abort(token)).await;
    let waiting = Waiting::begin(&play, late, &step(token, "pay", "undo")).await;
    ender.show("commit").await;
    let (_, answer) = waiting.end().await;
    assert_eq!(code(&answer), "ON006");
    assert_eq!(emitted(&play).await, "~");
    assert_eq!(play.show("select count(*) from once.key_step").await, "0");
}

#[tokio::test]
async fn an_end_that_waited_for_a_step_emits_its_event() {
    let play = open().await;
    let token = play.token("k", "").await;
    let (ender, stepper) = (play.another().await, play.another().await);
    stepper.show("begin").await;
    stepper.show(&step(token, "pay", "undo")).await;
    let waiting = Waiting::begin(&play, ender, &abort(token)).await;
    stepper.show("commit").await;
    let (_, answer) = waiting.end().await;
    assert_eq!(code(&answer), "");
    assert_eq!(emitted(&play).await, "undo");
}

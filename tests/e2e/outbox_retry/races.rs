//! Two sessions at one batch, one key or one dead letter, held apart by the locks that they wait for.

use crate::playground::{Playground, Refusal};
use crate::stage::Stage;
use crate::waiting::Waiting;

const SLOW: &str = r#"{"backoff_base": "100 s", "backoff_cap": "100 s", "max_attempts": 2}"#;

/// A stage with one taken batch of these events, and another session.
async fn taken(names: &str) -> (Stage, Stage, i64) {
    let stage = Stage::open(SLOW).await;
    stage.emit(names).await;
    let token = stage.take(100).await.token;
    let other = stage.another().await;
    (stage, other, token)
}

/// Sends `sql` from `second`, sees it wait, ends the transaction of `first`, and returns the answer.
async fn behind(
    first: &Stage,
    second: Playground,
    sql: &str,
    end: &str,
) -> (Playground, Result<String, Refusal>) {
    let watcher = first.play.another().await;
    let waiting = Waiting::begin(&watcher, second, sql).await;
    first.play.show(end).await;
    waiting.end().await
}

#[tokio::test]
async fn a_nack_waits_for_an_ack_of_the_same_batch_and_both_count() {
    let (stage, other, token) = taken("a b c").await;
    stage
        .play
        .show(&format!("begin; {}", stage.ack_sql(token, "a")))
        .await;
    let nack = other.nack_sql(token, "b", ", retry_after => '1 s'");
    let (_, answer) = behind(&stage, other.play, &nack, "commit").await;
    assert_eq!(stage.named(&answer.unwrap()), "b|1|1.000|f");
    assert_eq!(stage.ack(token, "").await, "1");
}

#[tokio::test]
async fn of_two_different_ends_of_an_event_the_second_is_told_that_it_is_done() {
    let (stage, other, token) = taken("a b").await;
    stage
        .play
        .show(&format!("begin; {}", stage.ack_sql(token, "a")))
        .await;
    let nack = other.nack_sql(token, "a", "");
    let (_, answer) = behind(&stage, other.play, &nack, "commit").await;
    assert_eq!(answer.unwrap_err().code, "ON006");
    assert_eq!(stage.deliveries("a").await, "");
}

/// The undo of the docs (outbox.md) beside a handler of the same batch whose event finishes the key: both keep to the
/// lock order, the batch before the key, so neither holds what the other waits for.
#[tokio::test]
async fn a_nack_that_aborts_a_key_and_an_ack_that_completes_it_end_without_a_deadlock() {
    for undo_is_first in [true, false] {
        let (stage, other, token) = taken("a b").await;
        let claim = "select token from once.key_claim('checkout', 'k')";
        let key = stage.play.show(claim).await;
        let nack = stage.nack_sql(token, "a", ", kind => 'never'");
        let abort = format!("select once.key_abort('checkout', 'k', {key}, 422)");
        let ack = stage.ack_sql(token, "b");
        let complete = format!("select once.key_complete('checkout', 'k', {key}, 200)");
        let (first, second) = match undo_is_first {
            true => ([nack, abort], [ack, complete]),
            false => ([ack, complete], [nack, abort]),
        };
        stage.play.show(&format!("begin; {}", first[0])).await;
        let second = format!("begin; {}; {}", second[0], second[1]);
        let end = format!("{}; commit", first[1]);
        let (session, answer) = behind(&stage, other.play, &second, &end).await;
        assert_eq!(answer.unwrap_err().code, "ON006", "{undo_is_first}");
        session.show("rollback").await;
        let stored = stage
            .play
            .show("select response_code from once.key_claim('checkout', 'k')")
            .await;
        assert_eq!(stored, if undo_is_first { "422" } else { "200" });
    }
}

#[tokio::test]
async fn the_same_nack_twice_at_once_is_one_nack() {
    for end in ["commit", "rollback"] {
        let (stage, other, token) = taken("a b").await;
        let nack = stage.nack_sql(token, "", ", error => 'e'");
        stage.play.show(&format!("begin; {nack}")).await;
        let (_, second) = behind(&stage, other.play, &nack, end).await;
        let code = second
            .err()
            .map_or_else(String::new, |refusal| refusal.code);
        assert_eq!(code, if end == "commit" { "ON006" } else { "" });
        assert_eq!(stage.deliveries("a").await, "1|error|e", "{end}");
    }
}

#[tokio::test]
async fn a_late_nack_that_meets_a_sweep_is_told_that_it_is_lost() {
    for (end, code) in [("commit", "ON001"), ("rollback", "")] {
        let (stage, other, token) = taken("a b").await;
        stage.clock("10 min").await;
        stage.play.show("begin").await;
        assert_eq!(stage.sweep(10).await, "2|0|f");
        let nack = other.nack_sql(token, "", ", kind => 'released'");
        let (_, answer) = behind(&stage, other.play, &nack, end).await;
        assert_eq!(
            answer.err().map_or(String::new(), |r| r.code),
            code,
            "{end}"
        );
    }
}

#[tokio::test]
async fn a_sweep_and_a_take_pass_over_a_batch_that_somebody_is_ending() {
    let stage = Stage::open(SLOW).await;
    stage
        .play
        .show("select once.topic_set('t', '{\"lanes\": 1}')")
        .await;
    stage.emit_keyed("x1 x2", "x").await;
    let token = stage.take(10).await.token;
    let late = stage.another().await;
    stage.clock("10 min").await;
    late.clock("10 min").await;
    late.play
        .show(&format!("begin; {}", late.ack_sql(token, "x1")))
        .await;
    stage.play.show("set lock_timeout = '2s'").await;
    stage.expect_nothing().await;
    assert_eq!(stage.sweep(10).await, "0|0|f");
    late.play.show("commit").await;
    stage.expect(10, "x2:1").await;
}

#[tokio::test]
async fn an_open_nack_keeps_its_lane_and_nobody_waits_for_it() {
    let stage = Stage::open(SLOW).await;
    stage
        .play
        .show("select once.topic_set('t', '{\"lanes\": 1}')")
        .await;
    stage.emit_keyed("x1 x2", "x").await;
    let token = stage.expect(10, "x1:1 x2:1").await;
    stage.emit("b").await;
    stage
        .play
        .show(&format!(
            "begin; {}",
            stage.nack_sql(token, "", ", kind => 'released'")
        ))
        .await;
    let other = stage.another().await;
    other.play.show("set lock_timeout = '2s'").await;
    other.expect(10, "b:1").await;
    other.expect_nothing().await;
    stage.play.show("commit").await;
    other.expect(10, "x1:1 x2:1").await;
}

#[tokio::test]
async fn redrives_at_once_share_the_dead_letters_without_waiting() {
    let (stage, other, token) = taken("a b c d").await;
    stage.nack(token, "", ", kind => 'never'").await;
    other.play.show("set lock_timeout = '2s'").await;
    stage.play.show("begin").await;
    assert_eq!(stage.redrive(1, "").await, "1");
    assert_eq!(other.redrive(2, "").await, "2");
    assert_eq!(other.redrive(10, "a").await, "0");
    stage.play.show("rollback").await;
    assert_eq!(other.redrive(10, "a").await, "1");
    assert_eq!(stage.redrive(10, "").await, "1");
    assert_eq!(stage.take(10).await.shown.split(' ').count(), 4);
}

#[tokio::test]
async fn the_number_of_lanes_does_not_change_under_a_redrive() {
    let stage = Stage::open(SLOW).await;
    stage.emit_keyed("x", "x").await;
    let token = stage.take(1).await.token;
    stage.nack(token, "", ", kind => 'never'").await;
    let other = stage.another().await;
    stage.play.show("begin").await;
    stage.redrive(1, "").await;
    let set = "select once.topic_set('t', '{\"lanes\": 3}')";
    let (_, answer) = behind(&stage, other.play, set, "commit").await;
    assert_eq!(answer.unwrap_err().code, "55006");
    stage.expect(10, "x:1").await;
}

#[tokio::test]
async fn what_others_committed_counts_at_every_isolation_level() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let (stage, other, token) = taken("a b c").await;
        let old = format!("begin isolation level {level}; select count(*) from once.batch");
        other.play.show(&old).await;
        stage.ack(token, "a").await;
        stage.nack(token, "b", ", kind => 'released'").await;
        // The old snapshot has seen none of it.
        other.expect(10, "b:1").await;
        let done = format!("savepoint s; {}", other.nack_sql(token, "a", ""));
        assert_eq!(other.play.code(&done).await, "ON006", "{level}");
        other.play.show("rollback to s").await;
        assert_eq!(
            other.nack(token, "c", ", kind => 'never'").await,
            "c|1|~|t",
            "{level}"
        );
        other.play.show("commit").await;
        assert_eq!(stage.dead().await, "c|1|never|~", "{level}");

        other.play.show(&old).await;
        stage.emit("d").await;
        let token = stage.expect(10, "d:1").await;
        stage.nack(token, "", ", kind => 'never'").await;
        assert_eq!(other.redrive(10, "").await, "2", "{level}");
        other.expect(10, "c:1 d:1").await;
        other.play.show("commit").await;
    }
}

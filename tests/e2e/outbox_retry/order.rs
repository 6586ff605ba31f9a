//! The order of a key through nacks, deaths and redrives, step by step.

use crate::stage::Stage;

const TWICE: &str = r#"{"max_attempts": 2, "backoff_base": "10 s", "backoff_cap": "10 s"}"#;

/// Two keys that share a lane, whatever the hash: the topic has one lane.
async fn one_lane() -> Stage {
    let stage = Stage::open(TWICE).await;
    stage
        .play
        .show("select once.topic_set('t', '{\"lanes\": 1}')")
        .await;
    stage
}

#[tokio::test]
async fn a_nack_takes_the_later_events_of_its_key_along_and_other_keys_go_on() {
    let stage = one_lane().await;
    stage.emit_keyed("x1 x2", "x").await;
    stage.emit_keyed("y1", "y").await;
    stage.emit_keyed("x3", "x").await;
    stage.emit_keyed("y2", "y").await;
    let token = stage.expect(10, "x1:1 x2:1 y1:1 x3:1 y2:1").await;
    assert_eq!(
        stage.nack(token, "x2", ", retry_after => '9 s'").await,
        "x2|1|9.000|f"
    );
    // x1 is still held, x3 is not.
    assert_eq!(stage.play.code(&stage.ack_sql(token, "x3")).await, "ON001");
    assert_eq!(stage.ack(token, "").await, "3");
    stage.emit_keyed("x4", "x").await;
    stage.emit_keyed("y3", "y").await;
    let token = stage.expect(10, "y3:1").await;
    stage.ack(token, "").await;
    stage.clock("9 s").await;
    let token = stage.expect(2, "x2:2 x3:1").await;
    stage.ack(token, "").await;
    let token = stage.expect(2, "x4:1").await;
    stage.ack(token, "").await;
    stage.expect_nothing().await;
}

#[tokio::test]
async fn named_events_behind_a_named_one_of_their_key_do_not_count() {
    let stage = one_lane().await;
    stage.emit_keyed("x1 x2 x3", "x").await;
    stage.emit_keyed("y1 y2", "y").await;
    let token = stage.take(10).await.token;
    assert_eq!(
        stage
            .nack(token, "y2 x3 x1", ", retry_after => '1 s'")
            .await,
        "y2|1|1.000|f\nx3|0|~|f\nx1|1|1.000|f"
    );
    assert_eq!(stage.ack(token, "").await, "1");
    stage.clock("1 s").await;
    stage.expect(10, "x1:2 x2:1 x3:1 y2:2").await;
}

#[tokio::test]
async fn a_death_frees_its_key_at_once() {
    let stage = one_lane().await;
    stage.emit_keyed("x1 x2 x3", "x").await;
    let token = stage.take(10).await.token;
    assert_eq!(
        stage.nack(token, "", ", kind => 'never'").await,
        "x1|1|~|t\nx2|0|0.000|f\nx3|0|~|f"
    );
    let token = stage.expect(10, "x2:1 x3:1").await;
    stage.nack(token, "x2", ", kind => 'never'").await;
    let token = stage.expect(10, "x3:1").await;
    stage.ack(token, "").await;
    stage.expect_nothing().await;
}

#[tokio::test]
async fn what_is_redriven_together_keeps_its_order_and_goes_before_what_waits() {
    let stage = one_lane().await;
    stage.emit_keyed("x1 x2 x3", "x").await;
    let token = stage.take(10).await.token;
    stage.nack(token, "x1", ", kind => 'never'").await;
    let token = stage.expect(10, "x2:1 x3:1").await;
    stage.nack(token, "x2", ", kind => 'never'").await;
    let token = stage.expect(10, "x3:1").await;
    assert_eq!(
        stage.nack(token, "x3", ", retry_after => '5 s'").await,
        "x3|1|5.000|f"
    );
    stage.clock("1 s").await;
    assert_eq!(stage.redrive(10, "").await, "2");
    stage.emit_keyed("x4", "x").await;
    // x3 has a time of its own.
    let token = stage.expect(10, "x1:1 x2:1").await;
    assert_eq!(
        stage.nack(token, "x1", ", retry_after => '1 s'").await,
        "x1|1|1.000|f"
    );
    stage.expect_nothing().await;
    stage.clock("5 s").await;
    let token = stage.expect(10, "x1:2 x2:1 x3:2 x4:1").await;
    stage.ack(token, "").await;
    stage.expect_nothing().await;
}

#[tokio::test]
async fn a_redrive_while_its_key_is_out_waits_for_the_batch_and_no_longer() {
    let stage = one_lane().await;
    stage.emit_keyed("x1 x2 x3 x4", "x").await;
    let token = stage.take(1).await.token;
    stage.nack(token, "", ", kind => 'never'").await;
    let token = stage.expect(2, "x2:1 x3:1").await;
    assert_eq!(stage.redrive(10, "").await, "1");
    stage.expect_nothing().await;
    assert_eq!(stage.ack(token, "x2").await, "1");
    stage.expect_nothing().await;
    assert_eq!(
        stage.nack(token, "x3", ", retry_after => '1 s'").await,
        "x3|1|1.000|f"
    );
    let token = stage.expect(10, "x1:1").await;
    stage.ack(token, "").await;
    stage.expect_nothing().await;
    stage.clock("1 s").await;
    stage.expect(10, "x3:2 x4:1").await;
}

#[tokio::test]
async fn a_nack_of_an_earlier_event_after_a_later_one_puts_the_earlier_first() {
    let stage = one_lane().await;
    stage.emit_keyed("x1 x2 x3", "x").await;
    let token = stage.take(10).await.token;
    assert_eq!(
        stage.nack(token, "x2", ", retry_after => '1 s'").await,
        "x2|1|1.000|f"
    );
    stage.clock("1 s").await;
    // x2 is due, but its lane is out.
    stage.expect_nothing().await;
    assert_eq!(
        stage.nack(token, "x1", ", retry_after => '4 s'").await,
        "x1|1|4.000|f"
    );
    stage.expect_nothing().await;
    stage.clock("5 s").await;
    let token = stage.expect(10, "x1:2 x2:2 x3:1").await;
    stage.ack(token, "x1 x2").await;
    stage.nack(token, "", ", kind => 'released'").await;
    stage.expect(10, "x3:1").await;
}

#[tokio::test]
async fn an_event_that_commits_late_goes_before_later_ones_that_are_stuck() {
    let stage = one_lane().await;
    let slow = stage.another().await;
    slow.play.show("begin").await;
    slow.emit_keyed("x1", "x").await;
    stage.emit_keyed("x2", "x").await;
    let token = stage.expect(10, "x2:1").await;
    stage.nack(token, "", ", retry_after => '1 hour'").await;
    stage.emit_keyed("x3", "x").await;
    slow.play.show("commit").await;
    // It is put aside by the first take, as its key is stuck, but nothing is before it.
    let first = stage.try_take(10).await;
    let token = match first {
        Some(taken) => {
            assert_eq!(taken.shown, "x1:1");
            taken.token
        }
        None => stage.expect(10, "x1:1").await,
    };
    stage.ack(token, "").await;
    stage.expect_nothing().await;
    stage.clock("1 hour").await;
    let token = stage.expect(10, "x2:2 x3:1").await;
    stage.ack(token, "").await;
    assert_eq!(
        stage.play.show("select count(*) from once.retry").await,
        "0"
    );
}

//! Events that somebody has deleted behind the extension's back: each becomes a dead letter that says so, and
//! nobody waits for it.

use crate::stage::Stage;

const MISSING: &str = "missing|the event is missing";

/// Deletes these events from the log, as damage would.
async fn lose(stage: &Stage, names: &str) {
    let ids = stage.ids(names);
    let sql = format!(
        "create table if not exists saved as select * from once.event_0;
         delete from once.event_0 where event_id = any ({ids})"
    );
    stage.play.show(&sql).await;
}

async fn retries(stage: &Stage) -> String {
    stage.play.show("select count(*) from once.retry").await
}

#[tokio::test]
async fn a_retry_whose_event_is_missing_is_a_dead_letter_and_those_behind_it_go_on() {
    let stage = Stage::open("{}").await;
    stage.emit_keyed("x1 x2", "x").await;
    stage.emit("a b").await;
    let token = stage.take(10).await.token;
    stage.nack(token, "", ", kind => 'released'").await;
    lose(&stage, "x1 a").await;
    let token = stage.expect(10, "x2:1 b:1").await;
    assert_eq!(stage.ack(token, "").await, "2");
    stage.expect_nothing().await;
    assert_eq!(stage.dead().await, format!("x1|0|{MISSING}\na|0|{MISSING}"));
    let payloads = "select count(payload), min(order_key) from once.outbox_dead('t', 'default')";
    assert_eq!(stage.play.show(payloads).await, "0|x");
    assert_eq!(retries(&stage).await, "0");
}

#[tokio::test]
async fn a_suspect_that_is_missing_keeps_nobody() {
    let stage = Stage::open("{}").await;
    stage.emit("a b").await;
    stage.take(10).await;
    stage.clock("10 min").await;
    assert_eq!(stage.sweep(10).await, "2|0|f");
    lose(&stage, "a").await;
    stage.emit("c").await;
    let mut seen = Vec::new();
    for _ in 0..5 {
        if let Some(taken) = stage.try_take(10).await {
            stage.ack(taken.token, "").await;
            seen.push(taken.shown);
        }
    }
    seen.sort();
    assert_eq!(seen, ["b:1", "c:1"]);
    assert_eq!(stage.dead().await, format!("a|0|{MISSING}"));
}

#[tokio::test]
async fn what_was_lost_while_it_was_out_is_acked_nacked_or_put_back_as_any_other() {
    let stage = Stage::open(r#"{"max_attempts": 2}"#).await;
    stage.emit_keyed("x1 x2", "x").await;
    stage.emit("a b c").await;
    let token = stage.take(10).await.token;
    lose(&stage, "x1 x2 a b c").await;
    assert_eq!(stage.ack(token, "a").await, "1");
    let never = ", kind => 'never', error => 'gone'";
    assert_eq!(stage.nack(token, "b", never).await, "b|1|~|t");
    assert_eq!(
        stage.nack(token, "c", ", retry_after => '1 s'").await,
        "c|1|1.000|f"
    );
    stage.clock("10 min").await;
    assert_eq!(stage.sweep(10).await, "2|0|f");
    for _ in 0..5 {
        stage.expect_nothing().await;
    }
    let mut dead: Vec<String> = stage.dead().await.lines().map(str::to_owned).collect();
    dead.sort();
    assert_eq!(
        dead,
        [
            "b|1|never|gone".to_owned(),
            format!("c|1|{MISSING}"),
            format!("x1|0|{MISSING}"),
            format!("x2|0|{MISSING}"),
        ]
    );
    assert_eq!(retries(&stage).await, "0");
}

#[tokio::test]
async fn redriven_it_is_delivered_if_somebody_put_it_back_and_dead_again_otherwise() {
    let stage = Stage::open("{}").await;
    stage.emit_keyed("x", "k").await;
    let key = "select delivery_key, payload, emitted_at from once.outbox_take('t')";
    let first = stage.play.show(key).await;
    let token: i64 = stage
        .play
        .show("select max(token) from once.batch")
        .await
        .parse()
        .unwrap();
    stage.nack(token, "x", ", kind => 'released'").await;
    lose(&stage, "x").await;
    stage.expect_nothing().await;
    assert_eq!(stage.redrive(10, "").await, "1");
    stage.expect_nothing().await;
    assert_eq!(stage.dead().await, format!("x|0|{MISSING}"));
    stage
        .play
        .show("insert into once.event_kept select * from saved")
        .await;
    assert_eq!(stage.redrive(10, "x").await, "1");
    assert_eq!(stage.play.show(key).await, first);
    assert_eq!(stage.dead().await, "");
}

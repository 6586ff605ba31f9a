//! What a nack answers and when its events come back.

use crate::stage::Stage;

/// A base and a cap with which the first failure waits 50 to 100 s.
const SLOW: &str = r#"{"backoff_base": "100 s", "backoff_cap": "1 day", "max_attempts": 3}"#;

#[tokio::test]
async fn a_nacked_event_comes_back_after_its_time_with_the_next_attempt() {
    let stage = Stage::open(SLOW).await;
    stage.emit("a b").await;
    let token = stage.expect(10, "a:1 b:1").await;
    assert_eq!(
        stage.nack(token, "a", ", retry_after => '30 s'").await,
        "a|1|30.000|f"
    );
    stage.expect_nothing().await;
    assert_eq!(stage.ack(token, "").await, "1");
    stage.clock("29 s").await;
    stage.expect_nothing().await;
    stage.clock("30 s").await;
    let token = stage.expect(10, "a:2").await;
    assert_eq!(stage.ack(token, "").await, "1");
    assert_eq!(stage.deliveries("a").await, "1|error|~");
    stage.expect_nothing().await;
}

#[tokio::test]
async fn an_event_is_dead_when_its_attempts_are_used_up() {
    let stage = Stage::open(SLOW).await;
    stage.emit("a").await;
    for (attempt, clock) in [(1, "0"), (2, "1 day"), (3, "2 days")] {
        stage.clock(clock).await;
        let token = stage.expect(10, &format!("a:{attempt}")).await;
        let more = format!(", error => 'no {attempt}', kind => 'http_503'");
        let told = stage.nack(token, "a", &more).await;
        match attempt {
            3 => assert_eq!(told, "a|3|~|t"),
            n => assert!(
                told.starts_with(&format!("a|{n}|")) && told.ends_with("|f"),
                "{told}"
            ),
        }
    }
    stage.clock("1 year").await;
    stage.expect_nothing().await;
    assert_eq!(stage.dead().await, "a|3|http_503|no 3");
    assert_eq!(
        stage.deliveries("a").await,
        "1|http_503|no 1\n2|http_503|no 2\n3|http_503|no 3"
    );
    assert_eq!(
        stage.play.show("select count(*) from once.retry").await,
        "0"
    );
}

#[tokio::test]
async fn never_is_dead_at_once_and_released_counts_nothing() {
    let stage = Stage::open(SLOW).await;
    stage.emit("a b c").await;
    let token = stage.expect(10, "a:1 b:1 c:1").await;
    assert_eq!(
        stage
            .nack(token, "a", ", kind => 'never', error => 'bad address'")
            .await,
        "a|1|~|t"
    );
    assert_eq!(
        stage.nack(token, "b", ", kind => 'released'").await,
        "b|0|0.000|f"
    );
    assert_eq!(
        stage
            .nack(token, "c", ", kind => 'released', retry_after => '5 s'")
            .await,
        "c|0|5.000|f"
    );
    assert_eq!(stage.dead().await, "a|1|never|bad address");
    stage.expect(10, "b:1").await;
    stage.clock("5 s").await;
    stage.expect(10, "c:1").await;
    assert_eq!(stage.deliveries("a").await, "1|never|bad address");
    assert_eq!(stage.deliveries("b").await, "");
}

#[tokio::test]
async fn without_ids_everything_held_fails_of_each_key_the_first() {
    let stage = Stage::open(SLOW).await;
    stage.emit("a b c").await;
    let token = stage.take(10).await.token;
    stage.ack(token, "b").await;
    assert_eq!(
        stage.nack(token, "", ", retry_after => '1 s'").await,
        "a|1|1.000|f\nc|1|1.000|f"
    );
    stage.emit_keyed("x1 x2 x3", "x").await;
    let token = stage.expect(10, "x1:1 x2:1 x3:1").await;
    assert_eq!(
        stage.nack(token, "", ", retry_after => '2 s'").await,
        "x1|1|2.000|f\nx2|0|~|f\nx3|0|~|f"
    );
    stage.clock("1 s").await;
    let token = stage.expect(10, "a:2 c:2").await;
    stage.ack(token, "").await;
    stage.clock("2 s").await;
    stage.expect(10, "x1:2 x2:1 x3:1").await;
}

#[tokio::test]
async fn everything_given_back_on_shutdown_is_due_at_once_in_order() {
    let stage = Stage::open(SLOW).await;
    stage.emit_keyed("x1 x2 x3", "x").await;
    let token = stage.take(10).await.token;
    stage.ack(token, "x1").await;
    assert_eq!(
        stage.nack(token, "", ", kind => 'released'").await,
        "x2|0|0.000|f\nx3|0|~|f"
    );
    // Nothing is left of the batch, and what was given back is told.
    let again = stage.nack_sql(token, "", ", kind => 'released'");
    assert_eq!(stage.play.code(&again).await, "ON006");
    stage.expect(10, "x2:1 x3:1").await;
}

#[tokio::test]
async fn the_same_nack_again_writes_nothing_and_tells_what_the_first_one_did() {
    let stage = Stage::open(SLOW).await;
    stage.emit("a b").await;
    for (names, more) in [("b a", ", error => 'e', kind => 'k'"), ("", "")] {
        if names.is_empty() {
            stage.emit_keyed("x1 x2 x3", "x").await;
        }
        let taken = stage.take(10).await;
        stage.play.show("begin").await;
        let first = stage.nack(taken.token, names, more).await;
        let before = stage.stored().await;
        stage.play.show("savepoint s").await;
        let again = stage.nack(taken.token, names, more).await;
        assert_eq!(again, first, "{names}: in its transaction");
        stage.play.show("commit").await;
        for clock in ["1 s", "1 hour"] {
            stage.clock(clock).await;
            // Its arguments are not compared.
            for more in [more, ", error => 'other'"] {
                let sql = stage.nack_sql(taken.token, names, more);
                let refusal = stage.play.refused(&sql).await;
                assert_eq!(refusal.code, "ON006", "{names}: {refusal:?}");
                for row in first.lines() {
                    let cells: Vec<&str> = row.split('|').collect();
                    let told = format!(
                        "Event {}: nacked, attempt {}, dead {}.",
                        stage.id(cells[0]),
                        cells[1],
                        cells[3] == "t"
                    );
                    assert!(refusal.detail.contains(&told), "{told} {refusal:?}");
                }
            }
        }
        stage.clock("0").await;
        assert_eq!(stage.stored().await, before);
    }
    stage.clock("1 day").await;
    let taken = stage.take(10).await;
    assert_eq!(taken.shown, "a:2 b:2 x1:2 x2:1 x3:1");
}

#[tokio::test]
async fn an_event_named_twice_is_nacked_once() {
    let stage = Stage::open(SLOW).await;
    stage.emit("a b").await;
    let token = stage.take(10).await.token;
    assert_eq!(
        stage.nack(token, "b a b", ", retry_after => '1 s'").await,
        "b|1|1.000|f\na|1|1.000|f"
    );
    assert_eq!(stage.deliveries("b").await, "1|error|~");
}

#[tokio::test]
async fn a_delayed_event_comes_in_time_fails_and_is_dead_like_any_other() {
    let stage = Stage::open(SLOW).await;
    stage.emit_delayed("a b", "10 s").await;
    stage.expect_nothing().await;
    stage.clock("10 s").await;
    let token = stage.expect(10, "a:1 b:1").await;
    assert_eq!(
        stage.nack(token, "a", ", retry_after => '1 s'").await,
        "a|1|1.000|f"
    );
    assert_eq!(stage.nack(token, "b", ", kind => 'never'").await, "b|1|~|t");
    stage.clock("11 s").await;
    let token = stage.expect(10, "a:2").await;
    stage.ack(token, "").await;
    assert_eq!(stage.redrive(10, "").await, "1");
    stage.expect(10, "b:1").await;
}

#[tokio::test]
async fn a_dead_event_can_be_compensated_in_the_transaction_of_its_nack() {
    let stage = Stage::open(r#"{"max_attempts": 1}"#).await;
    stage.emit("a").await;
    let token = stage.take(10).await.token;
    let nack = format!(
        "with n as (select * from once.outbox_nack('t', 'default', {token}))
         select count(e.event_id) from n, lateral once.outbox_emit('t', '\"undo\"') e where n.dead"
    );
    stage.play.show(&format!("begin; {nack}; rollback")).await;
    assert_eq!(stage.dead().await, "");
    assert_eq!(stage.play.show(&nack).await, "1");
    assert_eq!(stage.dead().await, "a|1|error|~");
    let undo = "select payload from once.outbox_take('t')";
    assert_eq!(stage.play.show(undo).await, "\"undo\"");
}

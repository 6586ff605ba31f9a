//! Leases that run out: an event alone has failed, those of a larger batch come back one per take.

use crate::stage::Stage;

const FEW: &str =
    r#"{"max_attempts": 3, "backoff_base": "10 s", "backoff_cap": "10 s", "lease": "60 s"}"#;

#[tokio::test]
async fn a_batch_that_ran_out_comes_back_one_by_one_uncounted_and_fresh_events_go_between() {
    let stage = Stage::open(FEW).await;
    stage.emit("a b c d").await;
    let lost = stage.expect(10, "a:1 b:1 c:1 d:1").await;
    stage.ack(lost, "b").await;
    stage.clock("59 s").await;
    stage.expect_nothing().await;
    stage.clock("60 s").await;
    stage.emit("e f g").await;
    let mut seen = Vec::new();
    for _ in 0..10 {
        let Some(taken) = stage.try_take(2).await else {
            break;
        };
        stage.ack(taken.token, "").await;
        seen.push(taken.shown);
    }
    assert_eq!(seen, ["a:1", "e:1 f:1", "c:1", "g:1", "d:1"]);
    assert_eq!(
        stage.play.show("select count(*) from once.delivery").await,
        "0"
    );
}

#[tokio::test]
async fn an_event_alone_has_failed_when_its_lease_ran_out() {
    let stage = Stage::open(FEW).await;
    stage.emit("a").await;
    for (attempt, clock) in [(1, 0), (2, 300), (3, 600)] {
        stage.clock(&format!("{clock} s")).await;
        stage.expect(10, &format!("a:{attempt}")).await;
        stage.expect_nothing().await;
        stage.clock(&format!("{} s", clock + 60)).await;
        // The take that finds it puts it back; it waits for its backoff, 5 to 10 s.
        stage.expect_nothing().await;
        stage.clock(&format!("{} s", clock + 64)).await;
        stage.expect_nothing().await;
    }
    assert_eq!(stage.dead().await, "a|3|expired|~");
    assert_eq!(
        stage.deliveries("a").await,
        "1|expired|~\n2|expired|~\n3|expired|~"
    );
}

#[tokio::test]
async fn a_poison_event_that_kills_its_worker_takes_none_of_its_neighbours_along() {
    let stage = Stage::open(FEW).await;
    let names: Vec<String> = (0..20).map(|i| format!("e{i}")).collect();
    stage.emit(&names.join(" ")).await;
    let mut delivered: Vec<String> = Vec::new();
    for minute in 0..200 {
        stage.clock(&format!("{minute} minutes")).await;
        while let Some(taken) = stage.try_take(10).await {
            let events: Vec<&str> = taken.shown.split(' ').collect();
            if events.iter().any(|e| e.starts_with("e7:")) {
                break; // The worker dies with it, before it has acked anything.
            }
            stage.ack(taken.token, "").await;
            delivered.extend(events.iter().map(|e| (*e).to_owned()));
        }
    }
    delivered.sort_unstable();
    let mut others: Vec<String> = names
        .iter()
        .filter(|n| *n != "e7")
        .map(|n| format!("{n}:1"))
        .collect();
    others.sort_unstable();
    assert_eq!(delivered, others);
    assert_eq!(stage.dead().await, "e7|3|expired|~");
}

#[tokio::test]
async fn of_a_key_the_suspects_come_in_order_and_what_is_behind_waits() {
    let stage = Stage::open(FEW).await;
    stage.emit_keyed("x1 x2 x3", "x").await;
    stage.expect(10, "x1:1 x2:1 x3:1").await;
    stage.clock("60 s").await;
    stage.emit_keyed("x4", "x").await;
    let token = stage.expect(10, "x1:1").await;
    stage.expect_nothing().await;
    stage.ack(token, "").await;
    let token = stage.expect(10, "x2:1").await;
    // It fails in a worker that lives: no suspect any more, and x3 behind it is one.
    assert_eq!(
        stage.nack(token, "", ", retry_after => '5 s'").await,
        "x2|1|5.000|f"
    );
    stage.expect_nothing().await;
    stage.clock("65 s").await;
    let token = stage.expect(10, "x2:2").await;
    stage.ack(token, "").await;
    let token = stage.expect(10, "x3:1").await;
    stage.ack(token, "").await;
    let token = stage.expect(10, "x4:1").await;
    stage.ack(token, "").await;
    stage.expect_nothing().await;
}

#[tokio::test]
async fn a_late_worker_may_still_ack_until_somebody_took_its_events_back() {
    let stage = Stage::open(FEW).await;
    stage.emit("a b").await;
    let token = stage.take(10).await.token;
    stage.clock("5 min").await;
    assert_eq!(stage.ack(token, "a").await, "1");
    assert_eq!(stage.sweep(100).await, "1|0|f");
    for late in [
        stage.ack_sql(token, ""),
        stage.ack_sql(token, "b"),
        stage.nack_sql(token, "", ""),
        stage.nack_sql(token, "b", ", kind => 'released'"),
        format!("select once.outbox_extend('t', 'default', {token})"),
    ] {
        assert_eq!(stage.play.code(&late).await, "ON001", "{late}");
    }
    // What it had acked before is known.
    for done in [stage.ack_sql(token, "a"), stage.nack_sql(token, "a", "")] {
        assert_eq!(stage.play.code(&done).await, "ON006", "{done}");
    }
    let token = stage.expect(10, "b:1").await;
    assert_eq!(stage.ack(token, "").await, "1");
}

#[tokio::test]
async fn the_sweep_is_bounded_and_leaves_what_is_alive_or_locked() {
    let stage = Stage::open(FEW).await;
    stage.emit("a b c d e f g h").await;
    let mut tokens = Vec::new();
    for _ in 0..4 {
        tokens.push(stage.take(2).await.token);
    }
    stage
        .play
        .show(&format!(
            "select once.outbox_extend('t', 'default', {}, '1 hour')",
            tokens[3]
        ))
        .await;
    assert_eq!(stage.sweep(100).await, "0|0|f");
    stage.clock("2 min").await;
    let late = stage.another().await;
    late.play
        .show(&format!("begin; {}", late.ack_sql(tokens[0], "")))
        .await;
    assert_eq!(stage.sweep(1).await, "2|0|t");
    assert_eq!(stage.sweep(100).await, "2|0|f");
    assert_eq!(stage.sweep(100).await, "0|0|f");
    late.play.show("rollback").await;
    assert_eq!(stage.sweep(100).await, "2|0|f");
    let shown = stage
        .play
        .show("select task, done from once.sweep() where task = 'outbox_requeue'")
        .await;
    assert_eq!(shown, "outbox_requeue|0");
    assert_eq!(stage.ack(tokens[3], "").await, "2");
    stage
        .play
        .ask("select count(*) from once.retry where suspect")
        .is("6")
        .await;
}

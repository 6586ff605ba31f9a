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
        stage.nack_sql(token, "a", ""),
        format!("select once.outbox_extend('t', 'default', {token})"),
    ] {
        assert_eq!(stage.play.code(&late).await, "ON001", "{late}");
    }
    // What it had acked before, it may say again.
    assert_eq!(stage.ack(token, "a").await, "1");
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
    assert_eq!(
        stage
            .play
            .show("select count(*) from once.retry where suspect")
            .await,
        "6"
    );
}

/// Nothing about these events can be stored in once.retry.
async fn break_events(stage: &Stage, names: &str) {
    let ids = stage.ids(names);
    let sql =
        format!("alter table once.retry add constraint broken check (event_id <> all ({ids}))");
    stage.play.show(&sql).await;
}

async fn mend(stage: &Stage) {
    let sql = "alter table once.retry drop constraint broken";
    stage.play.show(sql).await;
}

/// `failed|it says why` of the task.
async fn noted(stage: &Stage) -> String {
    let sql = "select failed, last_error like '%broken%' from once.janitor
                where task = 'outbox_requeue' and machine = ''";
    stage.play.show(sql).await
}

#[tokio::test]
async fn a_batch_that_cannot_be_put_back_does_not_keep_the_others() {
    let stage = Stage::open(FEW).await;
    stage.emit("a b c").await;
    for _ in 0..3 {
        stage.take(1).await;
    }
    break_events(&stage, "b").await;
    stage.clock("2 min").await;
    assert_eq!(stage.sweep(100).await, "2|1|f");
    assert_eq!(noted(&stage).await, "1|t");
    // It was 2 minutes old: the next time is in 2 minutes, and then in 4.
    assert_eq!(stage.sweep(100).await, "0|0|f");
    stage.clock("4 min").await;
    assert_eq!(stage.sweep(100).await, "0|1|f");
    mend(&stage).await;
    stage.clock("479 s").await;
    assert_eq!(stage.sweep(100).await, "0|0|f");
    stage.clock("480 s").await;
    assert_eq!(stage.sweep(100).await, "1|0|f");
}

/// For as long as it is put off, whatever the sweeps say meanwhile that find nothing to do.
#[tokio::test]
async fn doctor_tells_of_batches_that_were_put_off() {
    let stage = Stage::open(FEW).await;
    stage.emit("a b c").await;
    let token = stage.take(1).await.token;
    stage.take(1).await;
    stage.take(1).await;
    break_events(&stage, "a b").await;
    stage.clock("2 min").await;
    assert_eq!(stage.sweep(100).await, "1|2|f");
    let told = "select level, problem, detail from once.doctor() where problem like '%put off%'";
    for (clock, tried) in [("3 min", 1), ("5 min", 2)] {
        stage.clock(clock).await;
        let swept = stage.sweep(100).await;
        assert_eq!(swept, ["0|0|f", "0|2|f"][tried - 1]);
        let shown = stage.play.show(told).await;
        let begin = format!(
            "warning|topic \"t\", subscriber \"default\": 2 batches could not be put back and were put off|tried up to {tried} times, next at "
        );
        assert!(shown.starts_with(&begin), "{shown}");
        let of_task = "the last failure of outbox_requeue said: ";
        assert!(shown.contains(of_task), "{shown}");
        assert!(shown.contains("\"broken\""), "{shown}");
    }
    // Who has such a batch and is still at it has a lease like others.
    let extend = format!("select once.outbox_extend('t', 'default', {token}, '1 h')");
    stage.play.show(&extend).await;
    let shown = stage.play.show(told).await;
    assert!(shown.contains(": 1 batches could not"), "{shown}");
    mend(&stage).await;
    assert_eq!(stage.sweep(100).await, "0|0|f");
    let at_once = "update once.batch set lease_until = clock_timestamp() where failures > 0";
    stage.play.show(at_once).await;
    assert_eq!(stage.sweep(100).await, "1|0|f");
    assert_eq!(stage.play.show(told).await, "");
}

#[tokio::test]
async fn a_subscriber_whose_row_is_damaged_keeps_no_other_one_from_its_events() {
    let stage = Stage::open(FEW).await;
    stage.emit("a").await;
    stage.take(1).await;
    let damage = "select once.topic_set('u', '{}'); select once.subscriber_set('u', 'spoiled');
        update once.subscriber set start_seen = '{}' where subscriber = 'spoiled'";
    stage.play.show(damage).await;
    stage.clock("2 min").await;
    assert_eq!(stage.sweep(100).await, "1|0|f");
    stage.clock("3 min").await;
    stage.expect(1, "a:2").await;
    let refusal = stage
        .play
        .refused("select * from once.outbox_take('u', 'spoiled')")
        .await;
    let told = "start_seen of subscriber \"spoiled\" of topic \"u\" is damaged";
    assert_eq!(refusal.message, told);
}

/// Nothing is wrong with them: they are as they were, and back as soon as whoever had the table has gone.
#[tokio::test]
async fn batches_that_a_table_is_kept_from_are_left_as_they_are() {
    let stage = Stage::open(FEW).await;
    stage.emit("a b c d e f").await;
    let mut tokens = Vec::new();
    for _ in 0..6 {
        tokens.push(stage.take(1).await.token);
    }
    stage.clock("1 h").await;
    let holder = stage.another().await;
    for table in ["retry", "batch", "receipt", "dead", "delivery"] {
        holder
            .play
            .show(&format!("begin; lock table once.{table} in share mode"))
            .await;
        stage
            .play
            .show("begin; set local lock_timeout = '10ms'")
            .await;
        assert_eq!(stage.sweep(100).await, "0|1|f", "{table}");
        let told = "select last_error from once.janitor where task = 'outbox_requeue'";
        assert_eq!(
            stage.play.show(told).await,
            "the tables of the outbox could not be locked: canceling statement due to lock timeout"
        );
        holder.play.show("rollback").await;
        // The sweep has none of the batches locked.
        let extend = format!(
            "begin; set local lock_timeout = '10ms';
             select once.outbox_extend('t', 'default', {}, '1 h'); rollback",
            tokens[0]
        );
        holder.clock("1 h").await;
        holder.play.show(&extend).await;
        stage.play.show("commit").await;
    }
    assert_eq!(stage.sweep(100).await, "6|0|f");
}

/// Those that were put off are out of the way: there is more behind them.
#[tokio::test]
async fn a_call_that_does_no_more_than_put_off_says_that_there_is_more() {
    let stage = Stage::open(FEW).await;
    stage.emit("a b c d e f").await;
    for _ in 0..6 {
        stage.take(1).await;
    }
    break_events(&stage, "a b").await;
    stage.clock("2 min").await;
    assert_eq!(stage.sweep(2).await, "0|2|t");
    assert_eq!(stage.sweep(2).await, "2|0|t");
    assert_eq!(stage.sweep(2).await, "2|0|f");
    assert_eq!(stage.sweep(2).await, "0|0|f");
}

/// A defect once: such a batch failed every take that looked at its lane.
#[tokio::test]
async fn a_batch_that_cannot_be_put_back_fails_no_take() {
    let stage = Stage::open(FEW).await;
    stage.emit("a b c d").await;
    stage.expect(1, "a:1").await;
    let stuck = stage.expect(2, "b:1 c:1").await;
    break_events(&stage, "b").await;
    stage.clock("2 min").await;
    let token = stage.expect(10, "d:1").await;
    assert_eq!(stage.ack(token, "").await, "1");
    assert_eq!(noted(&stage).await, "1|t");
    stage.clock("3 min").await;
    let token = stage.expect(10, "a:2").await;
    assert_eq!(stage.ack(token, "").await, "1");
    stage.emit("e").await;
    let token = stage.expect(10, "e:1").await;
    assert_eq!(stage.ack(token, "").await, "1");
    assert_eq!(noted(&stage).await, "1|t", "put off");
    stage.clock("4 min").await;
    stage.expect_nothing().await;
    assert_eq!(noted(&stage).await, "2|t", "tried again");
    // Its worker, should it still be there, may end it meanwhile.
    assert_eq!(stage.ack(stuck, "b").await, "1");
    mend(&stage).await;
    stage.clock("8 min").await;
    stage.expect(10, "c:1").await;
}

#[tokio::test]
async fn of_a_key_that_cannot_be_put_back_the_lane_waits_and_others_go_on() {
    let stage = Stage::open(FEW).await;
    stage.emit_keyed("x1 x2", "x").await;
    stage.expect(10, "x1:1 x2:1").await;
    stage.emit("a").await;
    break_events(&stage, "x2").await;
    stage.clock("2 min").await;
    let token = stage.expect(10, "a:1").await;
    stage.ack(token, "").await;
    stage.emit_keyed("x3", "x").await;
    stage.expect_nothing().await;
    mend(&stage).await;
    stage.clock("4 min").await;
    let mut seen = Vec::new();
    while let Some(taken) = stage.try_take(10).await {
        stage.ack(taken.token, "").await;
        seen.push(taken.shown);
    }
    assert_eq!(seen, ["x1:1", "x2:1", "x3:1"]);
}

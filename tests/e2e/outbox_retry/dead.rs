//! Dead letters: what is kept of them, and how they come back.

use crate::stage::Stage;

const TWICE: &str = r#"{"max_attempts": 2, "backoff_base": "1 s", "backoff_cap": "1 s"}"#;

/// Takes what is due until nothing is, and gives it all up.
async fn kill_all(stage: &Stage, error: &str) {
    while let Some(taken) = stage.try_take(100).await {
        let more = format!(", kind => 'never', error => '{error}'");
        stage.nack(taken.token, "", &more).await;
    }
}

#[tokio::test]
async fn a_dead_letter_has_all_of_its_event_byte_for_byte() {
    let stage = Stage::open(TWICE).await;
    let payload = r#"{ "b": 1.0,   "a": "é ", "a": 2, "big": "#.to_owned()
        + &format!("\"{}\" }}", "x1é".repeat(4_000));
    let emit = format!(
        "select event_id from once.outbox_emit('t', $p${payload}$p$, order_key => 'käse',
                headers => '{{ \"h\": 1, \"h\": 2}}')"
    );
    let id = stage.play.show(&emit).await;
    let taken =
        "select order_key, payload, headers, emitted_at, delivery_key from once.outbox_take('t')";
    let first = stage.play.show(taken).await;
    assert!(first.contains(&payload), "{first}");
    let token = stage.play.show("select max(token) from once.batch").await;
    stage
        .play
        .show(&format!(
            "select * from once.outbox_nack('t', 'default', {token}, kind => 'never')"
        ))
        .await;
    let (event, key) = first.rsplit_once('|').unwrap();
    let dead = "select event_id, order_key, payload, headers, emitted_at
                  from once.outbox_dead('t', 'default')";
    assert_eq!(stage.play.show(dead).await, format!("{id}|{event}"));
    stage
        .play
        .ask("select attempts, died_at, kind, error from once.outbox_dead('t', 'default')")
        .is("1|2030-01-01 00:00:00+00|never|~")
        .await;
    // The segment goes on without it.
    stage
        .play
        .show("truncate once.event_0, once.event_1, once.event_2, once.event_3")
        .await;
    stage.clock("1 year").await;
    assert_eq!(stage.redrive(10, "").await, "1");
    assert_eq!(stage.play.show(dead).await, "");
    assert_eq!(stage.play.show(taken).await, format!("{event}|{key}"));
}

#[tokio::test]
async fn dead_letters_are_listed_the_longest_dead_first() {
    let stage = Stage::open(TWICE).await;
    for (clock, name) in [("3 s", "c"), ("1 s", "a"), ("2 s", "b")] {
        stage.clock(clock).await;
        stage.emit(name).await;
        kill_all(&stage, name).await;
    }
    assert_eq!(stage.dead().await, "a|1|never|a\nb|1|never|b\nc|1|never|c");
    let default = "select event_id from once.outbox_dead('t')";
    assert_eq!(stage.named(&stage.play.show(default).await), "a|\nb|\nc|");
    let two = stage
        .play
        .show("select event_id from once.outbox_dead('t', 'default', 2)")
        .await;
    assert_eq!(stage.named(&two), "a|\nb|");
}

#[tokio::test]
async fn a_redrive_brings_back_the_longest_dead_or_those_named() {
    let stage = Stage::open(TWICE).await;
    for name in ["a", "b", "c", "d", "e"] {
        stage.emit(name).await;
        kill_all(&stage, name).await;
    }
    assert_eq!(stage.redrive(2, "").await, "2");
    stage.expect(10, "a:1 b:1").await;
    assert_eq!(stage.redrive(10, "e a").await, "1");
    stage.expect(10, "e:1").await;
    assert_eq!(stage.redrive(1, "d c").await, "1");
    stage.expect(10, "c:1").await;
    assert_eq!(stage.redrive(10, "").await, "1");
    stage.expect(10, "d:1").await;
    assert_eq!(stage.redrive(10, "").await, "0");
    assert_eq!(stage.dead().await, "");
}

#[tokio::test]
async fn a_redriven_event_counts_anew_and_remembers_where_it_came_from() {
    let stage = Stage::open(TWICE).await;
    stage.emit("a").await;
    for round in 0..3 {
        for attempt in 1..=2 {
            stage
                .clock(&format!("{round} hours {attempt} minutes"))
                .await;
            let token = stage.expect(10, &format!("a:{attempt}")).await;
            let told = stage
                .nack(token, "", &format!(", error => '{round}'"))
                .await;
            assert_eq!(told.ends_with('t'), attempt == 2, "{told}");
        }
        assert_eq!(
            stage
                .play
                .show("select attempts, redriven from once.dead")
                .await,
            format!("2|{round}")
        );
        assert_eq!(stage.redrive(1, "a").await, "1");
        assert_eq!(
            stage
                .play
                .show("select failures, redriven from once.retry")
                .await,
            format!("0|{}", round + 1)
        );
    }
    assert_eq!(
        stage.deliveries("a").await,
        "1|error|0\n2|error|0\n1|error|1\n2|error|1\n1|error|2\n2|error|2"
    );
    let token = stage.expect(10, "a:1").await;
    assert_eq!(stage.ack(token, "").await, "1");
    stage.expect_nothing().await;
}

#[tokio::test]
async fn two_subscribers_redrive_one_event_and_each_gets_it_once() {
    let stage = Stage::open(TWICE).await;
    stage
        .play
        .show("select once.subscriber_set('t', 'other', '{}')")
        .await;
    stage.emit_keyed("a b", "k").await;
    for subscriber in ["default", "other"] {
        let taken = stage.try_take_as(subscriber, 10).await.unwrap();
        let token = taken.token;
        for name in ["a", "b"] {
            let ids = stage.ids(name);
            stage
                .play
                .show(&format!(
                    "select * from once.outbox_nack('t', '{subscriber}', {token}, {ids}, kind => 'never')"
                ))
                .await;
            if name == "a" {
                // b left with it.
                break;
            }
        }
    }
    for (subscriber, redrive) in [
        ("default", "select once.outbox_redrive('t')"),
        ("other", "select once.outbox_redrive('t', 'other')"),
    ] {
        assert_eq!(stage.play.show(redrive).await, "1");
        let taken = stage.try_take_as(subscriber, 10).await.unwrap();
        assert_eq!(taken.shown, "a:1 b:1", "{subscriber}");
        let ack = format!(
            "select once.outbox_ack('t', '{subscriber}', {})",
            taken.token
        );
        assert_eq!(stage.play.show(&ack).await, "2");
        assert!(stage.try_take_as(subscriber, 10).await.is_none());
    }
}

#[tokio::test]
async fn a_subscriber_that_lags_does_not_see_a_redriven_event_twice() {
    let stage = Stage::open(TWICE).await;
    stage
        .play
        .show("select once.subscriber_set('t', 'lags', '{}')")
        .await;
    stage.emit("a b").await;
    stage.emit_keyed("x y", "k").await;
    kill_all(&stage, "e").await;
    assert_eq!(stage.redrive(10, "").await, "4");
    let mut shown = Vec::new();
    while let Some(taken) = stage.try_take_as("lags", 10).await {
        shown.extend(
            taken
                .shown
                .split(' ')
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        );
        let ack = format!("select once.outbox_ack('t', 'lags', {})", taken.token);
        stage.play.show(&ack).await;
    }
    shown.sort_unstable();
    assert_eq!(shown, ["a:1", "b:1", "x:1", "y:1"]);
}

#[tokio::test]
async fn a_topic_that_got_other_lanes_redrives_to_them() {
    let stage = Stage::open(TWICE).await;
    let keys: Vec<String> = (0..40).map(|i| format!("k{i}")).collect();
    for key in &keys {
        stage.emit_keyed(key, key).await;
    }
    kill_all(&stage, "e").await;
    let set = stage
        .play
        .attempt("select once.topic_set('t', '{\"lanes\": 2}')")
        .await;
    assert!(set.is_ok(), "dead letters are not pending: {set:?}");
    assert_eq!(stage.redrive(100, "").await, "40");
    let mut count = 0;
    while let Some(taken) = stage.try_take(100).await {
        count += taken.shown.split(' ').count();
        stage.ack(taken.token, "").await;
    }
    assert_eq!(count, 40);
}

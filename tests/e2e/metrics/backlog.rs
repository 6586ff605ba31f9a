//! outbox_lag_seconds, outbox_depth, dead letters and side_effect_failure_rate, by hand through a subscriber's life.
//!
//! Time is pretended with `once.fake_now`.

use super::value;
use crate::playground::Playground;

const HERE: &str = r#"{"topic": "t", "subscriber": "default"}"#;

async fn open() -> Playground {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show("select once.topic_set('t', '{}')").await;
    play
}

/// Lag and depth.
async fn backlog(play: &Playground) -> String {
    let (lag, depth) = (
        value(play, "outbox_lag_seconds", HERE).await,
        value(play, "outbox_depth", HERE).await,
    );
    format!("{lag} {depth}")
}

async fn emit(play: &Playground, more: &str) {
    play.show(&format!("select once.outbox_emit('t', '{{}}'{more})"))
        .await;
}

async fn take(play: &Playground, max: u32) -> String {
    play.show(&format!(
        "select max(token) from once.outbox_take('t', max => {max}, lease => '1 h')"
    ))
    .await
}

#[tokio::test]
async fn the_oldest_event_that_is_not_acked_counts_wherever_it_is() {
    let play = open().await;
    assert_eq!(backlog(&play).await, "0 0");
    emit(&play, "").await;
    play.clock("10 s").await;
    emit(&play, ", 'k'").await;
    // In the log.
    assert_eq!(backlog(&play).await, "10 2");
    play.clock("20 s").await;
    let token = take(&play, 10).await;
    // In a batch.
    assert_eq!(backlog(&play).await, "20 2");
    let first = play
        .show("select event_id from once.event_0 where order_key is null")
        .await;
    play.show(&format!(
        "select once.outbox_ack('t', 'default', {token}, array[{first}])"
    ))
    .await;
    assert_eq!(backlog(&play).await, "10 1");
    // Failed, and waiting for its next attempt.
    play.show(&format!(
        "select once.outbox_nack('t', 'default', {token}, retry_after => '1 min')"
    ))
    .await;
    assert_eq!(backlog(&play).await, "10 1");
    play.clock("100 s").await;
    let token = take(&play, 10).await;
    assert_eq!(backlog(&play).await, "90 1");
    play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
        .await;
    assert_eq!(backlog(&play).await, "0 0");
}

#[tokio::test]
async fn a_delayed_event_counts_from_when_it_is_due_and_a_dead_one_not_at_all() {
    let play = open().await;
    emit(&play, ", delay => '1 h'").await;
    play.clock("59 min").await;
    assert_eq!(backlog(&play).await, "0 1");
    play.clock("61 min").await;
    assert_eq!(backlog(&play).await, "60 1");
    let token = take(&play, 1).await;
    play.show(&format!(
        "select once.outbox_nack('t', 'default', {token}, kind => 'never')"
    ))
    .await;
    assert_eq!(backlog(&play).await, "0 0");
    assert_eq!(value(&play, "outbox_dead_letters", HERE).await, "1");
    assert_eq!(value(&play, "outbox_dead_letters_lately", HERE).await, "1");
    play.clock("3 h").await;
    assert_eq!(value(&play, "outbox_dead_letters", HERE).await, "1");
    assert_eq!(value(&play, "outbox_dead_letters_lately", HERE).await, "0");
    // Redriven, it is due now; so is one that is still in its own lane.
    for hours in ["3 h", "6 h"] {
        play.clock(hours).await;
        play.show("select once.outbox_redrive('t', 'default')")
            .await;
        play.clock(&format!("{hours} 5 s")).await;
        assert_eq!(backlog(&play).await, "5 1");
        let token = take(&play, 1).await;
        play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
            .await;
        emit(&play, "").await;
        let token = take(&play, 1).await;
        play.show(&format!(
            "select once.outbox_nack('t', 'default', {token}, kind => 'never')"
        ))
        .await;
    }
}

#[tokio::test]
async fn an_event_behind_a_failed_one_of_its_key_counts_and_so_does_one_behind_delayed_ones() {
    let play = open().await;
    play.show(
        "select count(once.outbox_emit('t', '{}', delay => '1 day')) from generate_series(1, 1200)",
    )
    .await;
    play.clock("1 min").await;
    emit(&play, ", 'k'").await;
    emit(&play, ", 'k'").await;
    let token = take(&play, 10).await;
    play.show(&format!(
        "select once.outbox_nack('t', 'default', {token}, retry_after => '30 s')"
    ))
    .await;
    play.clock("3 min").await;
    let told = backlog(&play).await;
    let (lag, depth) = told.split_once(' ').unwrap();
    // More delayed ones stand before it than are looked at one by one: found by being due, in its own lane.
    assert_eq!(lag, "120", "{told}");
    let depth: f64 = depth.parse().unwrap();
    assert!((1100.0..1300.0).contains(&depth), "{depth}");
}

#[tokio::test]
async fn an_event_behind_many_delayed_ones_that_fail_counts_from_when_it_was_emitted() {
    let play = open().await;
    // More than are asked for their age one by one.
    play.show(
        "select count(once.outbox_emit('t', '{}', delay => '1 h')) from generate_series(1, 30)",
    )
    .await;
    play.clock("10 min").await;
    emit(&play, ", 'k'").await;
    let token = take(&play, 100).await;
    play.show(&format!(
        "select once.outbox_nack('t', 'default', {token}, retry_after => '1 day')"
    ))
    .await;
    play.clock("61 min").await;
    let token = take(&play, 100).await;
    play.show(&format!(
        "select once.outbox_nack('t', 'default', {token}, retry_after => '1 h')"
    ))
    .await;
    play.clock("62 min").await;
    let waiting = "select count(*) filter (where order_key is null), count(*) filter (where failures = 1) from once.retry";
    assert_eq!(play.show(waiting).await, "30|31");
    assert_eq!(backlog(&play).await, format!("{} 31", 52 * 60));
}

#[tokio::test]
async fn the_depth_of_a_long_backlog_is_estimated_well() {
    let play = open().await;
    play.show("select count(once.outbox_emit('t', '{}', case when i % 3 = 0 then 'k' || i % 100 end)) from generate_series(1, 20000) i")
        .await;
    let depth: f64 = value(&play, "outbox_depth", HERE).await.parse().unwrap();
    assert!((15_000.0..25_000.0).contains(&depth), "{depth}");
    let token = take(&play, 10_000).await;
    play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
        .await;
    let depth: f64 = value(&play, "outbox_depth", HERE).await.parse().unwrap();
    assert!((7_000.0..13_000.0).contains(&depth), "{depth}");
}

#[tokio::test]
async fn failures_are_told_by_kind_and_forgotten_after_five_minutes() {
    let play = open().await;
    let rate = async |kind: &str| {
        value(
            &play,
            "side_effect_failure_rate",
            &format!(r#"{{"topic": "t", "subscriber": "default", "kind": "{kind}"}}"#),
        )
        .await
    };
    assert_eq!(rate("error").await, "0");
    play.show("select count(once.outbox_emit('t', '{}')) from generate_series(1, 8)")
        .await;
    for end in [
        "ack", "ack", "ack", "ack", "ack", "nack", "timeout", "released",
    ] {
        let token = take(&play, 1).await;
        let call = match end {
            "ack" => format!("once.outbox_ack('t', 'default', {token})"),
            "nack" => format!("once.outbox_nack('t', 'default', {token}, retry_after => '1 h')"),
            kind => format!(
                "once.outbox_nack('t', 'default', {token}, kind => '{kind}', retry_after => '1 h')"
            ),
        };
        play.show(&format!("select {call}")).await;
    }
    // Seven attempts counted: the released one did not.
    assert!(
        rate("error").await.starts_with("0.142857"),
        "{}",
        rate("error").await
    );
    assert!(rate("timeout").await.starts_with("0.142857"));
    assert_eq!(rate("released").await, "");
    play.clock("6 min").await;
    assert_eq!(rate("error").await, "0");
    assert_eq!(rate("timeout").await, "");
}

#[tokio::test]
async fn each_subscriber_has_rows_of_its_own_and_a_new_one_has_no_backlog() {
    let play = open().await;
    emit(&play, "").await;
    play.clock("5 s").await;
    play.show("select once.subscriber_set('t', 'late', '{}')")
        .await;
    emit(&play, "").await;
    play.clock("6 s").await;
    assert_eq!(backlog(&play).await, "6 2");
    let late = r#"{"topic": "t", "subscriber": "late"}"#;
    assert_eq!(value(&play, "outbox_lag_seconds", late).await, "1");
    assert_eq!(value(&play, "outbox_depth", late).await, "1");
}

/// They come by event id, not by the time since when they wait.
#[tokio::test]
async fn more_delayed_events_than_are_looked_at_are_told() {
    let play = open().await;
    play.show(
        "select count(once.outbox_emit('t', '1', delay => '1 s')) from generate_series(1, 1001)",
    )
    .await;
    play.clock("5 s").await;
    assert_eq!(backlog(&play).await, "4 1001");
    assert_eq!(value(&play, "pg_once_outbox_complete", "{}").await, "0");
}

#[tokio::test]
async fn an_event_that_commits_late_counts_once_it_is_there() {
    let play = open().await;
    let other = play.another().await;
    other.clock("0").await;
    other
        .show("begin; select once.outbox_emit('t', '{}')")
        .await;
    play.clock("50 s").await;
    emit(&play, "").await;
    let token = take(&play, 10).await;
    play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
        .await;
    assert_eq!(backlog(&play).await, "0 0");
    other.show("commit").await;
    assert_eq!(backlog(&play).await, "50 1");
}

//! `lanes` changes only while nothing is pending, and then every later event is in one of the new lanes.

use crate::playground::{Playground, Refusal};
use crate::waiting::Waiting;
use crate::{drain, emit, emit_sql, stored, subscriber_set, topic, topic_set};

const CHANGE: &str = r#"{"lanes": 3}"#;

async fn refused(play: &Playground, subscriber: &str, state: &str) -> Refusal {
    let before = stored(play).await;
    let refusal = play.refused(&topic_set("t", CHANGE)).await;
    assert_eq!(refusal.code, "55006", "{state}: {refusal:?}");
    assert!(
        refusal.hint.contains(&format!("\"{subscriber}\"")),
        "{state}: {refusal:?}"
    );
    assert_eq!(stored(play).await, before);
    refusal
}

async fn allowed(play: &Playground, state: &str) {
    play.show("begin").await;
    let answer = play.attempt(&topic_set("t", CHANGE)).await;
    play.show("rollback").await;
    assert!(answer.is_ok(), "{state}: {answer:?}");
}

async fn take(play: &Playground, max: i32) -> String {
    play.show(&format!(
        "select min(token) from once.outbox_take('t', 'default', {max})"
    ))
    .await
}

#[tokio::test]
async fn whatever_is_not_delivered_is_pending() {
    for key in ["", ", 'key'"] {
        let play = Playground::open().await;
        play.clock("0").await;
        topic(&play, "t", "{}").await;
        allowed(&play, "nothing was emitted").await;
        for payload in ["a", "b", "c"] {
            emit(&play, payload, key).await;
        }
        refused(&play, "default", "not taken").await;
        let token = take(&play, 2).await;
        refused(&play, "default", "one left").await;
        play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
            .await;
        refused(&play, "default", "one not taken").await;
        let token = take(&play, 2).await;
        refused(&play, "default", "taken").await;
        play.clock("1 h").await;
        refused(&play, "default", "the lease ran out").await;
        play.clock("0").await;
        play.show(&format!(
            "select once.outbox_nack('t', 'default', {token}, retry_after => '1 h')"
        ))
        .await;
        refused(&play, "default", "to be tried again").await;
        play.clock("2 h").await;
        let token = take(&play, 2).await;
        refused(&play, "default", "tried again").await;
        play.show(&format!(
            "select once.outbox_nack('t', 'default', {token}, kind => 'never')"
        ))
        .await;
        allowed(&play, "dead").await;
        play.show("select once.outbox_redrive('t', 'default')")
            .await;
        refused(&play, "default", "redriven").await;
        assert_eq!(drain(&play, "default").await, "c");
        allowed(&play, "delivered").await;
    }
}

#[tokio::test]
async fn a_delayed_event_is_pending() {
    let play = Playground::open().await;
    play.clock("0").await;
    topic(&play, "t", "{}").await;
    emit(&play, "later", ", delay => '1 h'").await;
    refused(&play, "default", "delayed").await;
    play.clock("2 h").await;
    assert_eq!(drain(&play, "default").await, "later");
    allowed(&play, "delivered").await;
}

#[tokio::test]
async fn every_subscriber_counts_and_no_other_topic() {
    let play = Playground::open().await;
    topic(&play, "t", "{}").await;
    topic(&play, "other", "{}").await;
    play.show("select once.outbox_emit('other', '1', 'key')")
        .await;
    allowed(&play, "pending in another topic").await;
    play.show(&subscriber_set("behind", "{}")).await;
    emit(&play, "a", ", 'key'").await;
    drain(&play, "default").await;
    let refusal = refused(&play, "behind", "one subscriber is behind").await;
    assert!(refusal.message.contains("topic \"t\""), "{refusal:?}");
    play.show("select once.subscriber_drop('t', 'behind')")
        .await;
    allowed(&play, "it was dropped").await;
    play.show(&subscriber_set("new", "{}")).await;
    allowed(&play, "a new one has nothing to get").await;
    play.show(
        "select once.subscriber_drop('t', 'new'); select once.subscriber_drop('t', 'default')",
    )
    .await;
    allowed(&play, "without subscribers").await;
}

#[tokio::test]
async fn the_lanes_that_there_are_can_be_named_at_any_time() {
    let play = Playground::open().await;
    topic(&play, "t", "{}").await;
    emit(&play, "a", ", 'key'").await;
    for same in [
        r#"{"lanes": 16}"#,
        r#"{"lanes": null}"#,
        r#"{"dedupe_for": "1 h"}"#,
    ] {
        topic(&play, "t", same).await;
    }
    drain(&play, "default").await;
    topic(&play, "t", CHANGE).await;
    emit(&play, "a", ", 'key'").await;
    topic(&play, "t", CHANGE).await;
    let refusal = play.refused(&topic_set("t", r#"{"lanes": null}"#)).await;
    assert_eq!(refusal.code, "55006", "back to 16");
}

#[tokio::test]
async fn an_open_transaction_that_has_emitted_is_pending_for_all_topics() {
    let play = Playground::open().await;
    topic(&play, "t", "{}").await;
    topic(&play, "other", "{}").await;
    for name in ["t", "other"] {
        let open = play.another().await;
        open.show(&format!(
            "begin; select once.outbox_emit('{name}', '1', 'key')"
        ))
        .await;
        let refusal = play.refused(&topic_set("t", CHANGE)).await;
        refusal.tells("55P03", &["once.event_"], name);
        let timeout = play.show("show lock_timeout").await;
        assert_eq!(timeout, "0", "the caller's own setting is back");
        open.show("rollback").await;
        allowed(&play, "rolled back").await;
    }
    play.show("begin").await;
    emit(&play, "own", ", 'key'").await;
    assert_eq!(play.code(&topic_set("t", CHANGE)).await, "55006", "its own");
    play.show("rollback").await;
}

#[tokio::test]
async fn an_emit_that_met_the_change_is_in_one_of_the_new_lanes() {
    let play = Playground::open().await;
    topic(&play, "t", r#"{"lanes": 1000}"#).await;
    let admin = play.another().await;
    for (lanes, end) in [
        (2, "commit"),
        (1000, "commit"),
        (3, "rollback"),
        (1, "commit"),
    ] {
        admin.show("begin").await;
        topic(&admin, "t", &format!(r#"{{"lanes": {lanes}}}"#)).await;
        let mut waiting = Vec::new();
        for i in 0..8 {
            let (emitter, sql) = (
                play.another().await,
                emit_sql(&format!("e{i}"), &format!(", 'key {i}'")),
            );
            waiting.push(Waiting::begin(&play, emitter, &sql).await);
        }
        admin.show(end).await;
        for emitter in waiting {
            let (_, answer) = emitter.end().await;
            answer.unwrap();
        }
        let (least, most) = match end {
            "rollback" => (2, 1000),
            _ => (1, lanes),
        };
        let lanes_used = "select min(lane) >= 1, max(lane), count(*) from once.event_0";
        let shown = play.show(lanes_used).await;
        let max: i32 = shown.split('|').nth(1).unwrap().parse().unwrap();
        assert!(
            shown.starts_with('t') && (least..=most).contains(&max),
            "{lanes} {end}: {shown}"
        );
        assert_eq!(drain(&play, "default").await, "e0 e1 e2 e3 e4 e5 e6 e7");
        play.show("truncate once.event_0").await;
    }
}

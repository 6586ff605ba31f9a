//! `subscriber_drop` discards everything of that subscriber, and nothing of anybody else.

use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::{LEVELS, assert_counted, drain, emit, subscriber_set, topic};

/// Rows that belong to a subscriber's number.
async fn rows_of(play: &Playground, id: &str) -> String {
    let mut all = Vec::new();
    for table in [
        "subscriber",
        "batch",
        "receipt",
        "retry",
        "dead",
        "delivery",
    ] {
        let sql = format!("select count(*) from once.{table} where subscriber_id = {id}");
        all.push(play.show(&sql).await);
    }
    all.join(" ")
}

async fn number(play: &Playground, subscriber: &str) -> String {
    play.show(&format!(
        "select subscriber_id from once.subscriber where subscriber = '{subscriber}'"
    ))
    .await
}

/// Leaves something of the subscriber in every table.
async fn used(play: &Playground, subscriber: &str) -> String {
    let token =
        |max: i32| format!("select min(token) from once.outbox_take('t', '{subscriber}', {max})");
    let first = play.show(&token(1)).await;
    play.show(&format!(
        "select once.outbox_nack('t', '{subscriber}', {first}, kind => 'never')"
    ))
    .await;
    let second = play.show(&token(1)).await;
    play.show(&format!(
        "select once.outbox_nack('t', '{subscriber}', {second}, retry_after => '1 h')"
    ))
    .await;
    play.show(&token(1)).await
}

#[tokio::test]
async fn everything_of_it_goes_and_the_others_keep_theirs() {
    for level in LEVELS {
        let play = Playground::open().await;
        topic(&play, "t", r#"{"subscribers": ["a", "b"]}"#).await;
        let old = play.another().await;
        old.show(&format!(
            "begin isolation level {level}; select count(*) from pg_class"
        ))
        .await;
        for payload in ["1", "2", "3", "4"] {
            emit(&play, payload, "").await;
        }
        let (a, b) = (number(&play, "a").await, number(&play, "b").await);
        let token = used(&play, "a").await;
        used(&play, "b").await;
        let before = rows_of(&play, &b).await;
        assert!(!rows_of(&play, &a).await.contains('0'), "in every table");
        old.show("select once.subscriber_drop('t', 'a'); commit")
            .await;
        assert_eq!(rows_of(&play, &a).await, "0 0 0 0 0 0", "{level}");
        assert_eq!(rows_of(&play, &b).await, before);
        assert_counted(&play).await;
        let ack = format!("select once.outbox_ack('t', 'a', {token})");
        assert_eq!(play.code(&ack).await, "42704");
        assert_eq!(
            play.code("select once.subscriber_drop('t', 'a')").await,
            "42704",
            "dropped already"
        );
        play.show(&subscriber_set("a", "{}")).await;
        assert_ne!(number(&play, "a").await, a, "a number of its own");
        assert_eq!(play.code(&ack).await, "ON001", "nothing of the old one");
        assert_eq!(drain(&play, "a").await, "", "it begins anew");
        emit(&play, "5", "").await;
        assert_eq!(drain(&play, "a").await, "5");
    }
}

#[tokio::test]
async fn a_drop_waits_for_open_takes_acks_and_nacks_and_leaves_nothing_of_theirs() {
    for call in ["take", "ack", "nack"] {
        let play = Playground::open().await;
        topic(&play, "t", "{}").await;
        for payload in ["1", "2"] {
            emit(&play, payload, "").await;
        }
        let id = number(&play, "default").await;
        let token = play
            .show("select token from once.outbox_take('t', max => 1)")
            .await;
        let worker = play.another().await;
        worker.show("begin").await;
        worker
            .show(&match call {
                "take" => "select * from once.outbox_take('t')".to_owned(),
                call => format!("select * from once.outbox_{call}('t', 'default', {token})"),
            })
            .await;
        let admin = play.another().await;
        let drop = "select once.subscriber_drop('t', 'default')";
        let waiting = Waiting::begin(&play, admin, drop).await;
        worker.show("commit").await;
        let (_, answer) = waiting.end().await;
        answer.unwrap();
        assert_eq!(rows_of(&play, &id).await, "0 0 0 0 0 0", "{call}");
        assert_counted(&play).await;
    }
}

/// A defect once: a row of a subscriber that is not there stayed for ever.
#[tokio::test]
async fn a_drop_and_a_delayed_emit_wait_for_each_other() {
    let delayed = crate::emit_sql("delayed", ", delay => '1 h'");
    let drop = "select once.subscriber_drop('t', 'a')";
    let left = "select count(*), count(s) from once.retry r left join once.subscriber s using (subscriber_id)";
    for emit_first in [true, false] {
        let play = Playground::open().await;
        topic(&play, "t", r#"{"subscribers": ["a", "b"]}"#).await;
        let (first, second) = match emit_first {
            true => (delayed.as_str(), drop),
            false => (drop, delayed.as_str()),
        };
        let one = play.another().await;
        one.show("begin").await;
        one.show(first).await;
        let waiting = Waiting::begin(&play, play.another().await, second).await;
        one.show("commit").await;
        waiting.end().await.1.unwrap();
        assert_eq!(play.show(left).await, "1|1", "emitted first: {emit_first}");
    }
}

#[tokio::test]
async fn a_take_that_meets_a_drop_gets_nothing_of_what_was_delivered_before() {
    let play = Playground::open().await;
    topic(&play, "t", "{}").await;
    emit(&play, "1", "").await;
    assert_eq!(drain(&play, "default").await, "1");
    let id = number(&play, "default").await;
    let admin = play.another().await;
    admin
        .show("begin; select once.subscriber_drop('t', 'default')")
        .await;
    let worker = play.another().await;
    let take = "select payload from once.outbox_take('t')";
    assert_eq!(worker.show(take).await, "", "it waits for a moment only");
    admin.show("commit").await;
    assert_eq!(worker.code(take).await, "42704");
    assert_eq!(rows_of(&play, &id).await, "0 0 0 0 0 0");
}

#[tokio::test]
async fn a_misspelt_topic_is_dropped_once_it_has_no_subscribers() {
    let play = Playground::open().await;
    topic(&play, "ordrs", "{}").await;
    play.show("select once.outbox_emit('ordrs', '1', dedupe_key => 'd')")
        .await;
    let drop = "select once.topic_drop('ordrs')";
    let kept = play.refused(drop).await;
    assert_eq!(kept.code, "55006");
    assert!(kept.hint.contains("subscriber_drop"), "{kept:?}");
    let emitter = play.another().await;
    play.show("select once.subscriber_drop('ordrs', 'default')")
        .await;
    play.show(drop).await;
    assert_eq!(
        emitter.code("select once.outbox_emit('ordrs', '1')").await,
        "42704"
    );
    assert_eq!(play.code(drop).await, "42704");
    play.show("select once.sweep()").await;
    // A topic of that name is another one: nothing of the first is delivered, or counts as emitted.
    topic(&play, "ordrs", "{}").await;
    let emit = "select emitted from once.outbox_emit('ordrs', '2', dedupe_key => 'd')";
    assert_eq!(play.show(emit).await, "t");
    let take = "select payload from once.outbox_take('ordrs')";
    assert_eq!(play.show(take).await, "2");
}

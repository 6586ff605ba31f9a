//! Two sessions that make or change the same thing at once: one waits for the other, and both get what they
//! asked for.

use crate::playground::Playground;
use crate::waiting::{Waiting, code};
use crate::{ABOVE, LEVELS, assert_counted, emit_sql, subscriber_set, topic, topic_set};

/// A session with an open transaction whose snapshot is taken.
async fn begun(play: &Playground, level: &str) -> Playground {
    let session = play.another().await;
    session
        .show(&format!(
            "begin isolation level {level}; select count(*) from pg_class"
        ))
        .await;
    session
}

/// What the second of two sessions gets that say `first` and `second` at once, where the first one ends with
/// `end`; at each isolation level of the second.
async fn second_of_two(first: &str, second: &str, end: &str) -> Vec<(String, Playground)> {
    let mut codes = Vec::new();
    for level in LEVELS {
        let play = Playground::open().await;
        topic(&play, "t", "{}").await;
        let one = begun(&play, "read committed").await;
        let other = begun(&play, level).await;
        one.show(first).await;
        let waiting = Waiting::begin(&play, other, second).await;
        one.show(end).await;
        let (other, answer) = waiting.end().await;
        if let Err(refusal) = &answer {
            assert!(!refusal.hint.is_empty(), "{refusal:?}");
        }
        let code = code(&answer).to_owned();
        other
            .show(if code.is_empty() {
                "commit"
            } else {
                "rollback"
            })
            .await;
        assert_counted(&play).await;
        codes.push((code, play));
    }
    codes
}

const RETRYABLE: [&str; 3] = ["", "40001", "40001"];

#[tokio::test]
async fn one_topic_made_twice_at_once_is_one_topic() {
    let second = topic_set("new", r#"{"dedupe_for": "1 h"}"#);
    let ends = second_of_two(&topic_set("new", r#"{"lanes": 3}"#), &second, "commit").await;
    for ((code, play), expected) in ends.iter().zip(RETRYABLE) {
        assert_eq!(code, expected);
        if !code.is_empty() {
            play.show(&second).await;
        }
        play.ask("select once.topic_get('new')")
            .is(r#"{"lanes": 3, "owner": null, "dedupe_for": "01:00:00", "subscribers": ["default"]}"#)
            .await;
    }
    let ends = second_of_two(&topic_set("new", r#"{"lanes": 3}"#), &second, "rollback").await;
    for (code, play) in ends {
        assert_eq!(code, "");
        play.ask("select once.topic_get('new') ->> 'lanes'")
            .is("16")
            .await;
    }
}

#[tokio::test]
async fn one_topic_made_twice_with_other_subscribers_is_refused_to_the_second() {
    let first = topic_set("new", r#"{"subscribers": ["a"]}"#);
    let second = topic_set("new", r#"{"subscribers": ["b"]}"#);
    let ends = second_of_two(&first, &second, "commit").await;
    for ((code, _), expected) in ends.iter().zip(["22023", "40001", "40001"]) {
        assert_eq!(code, expected);
    }
}

#[tokio::test]
async fn changes_of_different_options_at_once_are_both_kept() {
    let (first, second) = (
        topic_set("t", r#"{"lanes": 3}"#),
        topic_set("t", r#"{"dedupe_for": "1 h"}"#),
    );
    for ((code, play), expected) in second_of_two(&first, &second, "commit")
        .await
        .iter()
        .zip(RETRYABLE)
    {
        assert_eq!(code, expected);
        let dedupe = if code.is_empty() {
            "01:00:00"
        } else {
            "24:00:00"
        };
        assert_eq!(
            play.show("select o ->> 'lanes', o ->> 'dedupe_for' from once.topic_get('t') o")
                .await,
            format!("3|{dedupe}")
        );
    }
}

#[tokio::test]
async fn emitting_waits_for_no_change_but_one_of_the_lanes() {
    let play = Playground::open().await;
    topic(&play, "t", "{}").await;
    let admin = play.another().await;
    admin
        .show("begin; select once.topic_set('t', '{\"dedupe_for\": \"1 h\"}'); select once.subscriber_set('t', 'new')")
        .await;
    play.show("set lock_timeout = '5s'").await;
    play.show(&emit_sql("a", ", 'key'")).await;
    play.ask("select count(*) from once.outbox_take('t')")
        .is("1")
        .await;
    admin.show("commit").await;
    for level in ABOVE {
        let old = begun(&play, level).await;
        play.show(&subscriber_set("new", r#"{"lease": "9 s"}"#))
            .await;
        assert_eq!(
            old.show("select once.subscriber_get('t', 'new') ->> 'lease'")
                .await,
            "00:00:09",
            "options are what is committed now, as for every call of the outbox"
        );
        play.show(&subscriber_set("new", r#"{"lease": null}"#))
            .await;
    }
}

#[tokio::test]
async fn topics_and_subscribers_count_for_every_session_from_the_next_statement_on() {
    let play = Playground::directly("asks what each backend remembers").await;
    let other = play.another().await;
    let emit = "select once.outbox_emit('t', '1')";
    let attempts = "select once.subscriber_get('t', 'default') ->> 'max_attempts'";
    assert_eq!(other.code(emit).await, "42704");
    for undo in ["rollback", "rollback to s"] {
        play.show("begin; savepoint s").await;
        play.show(&topic_set("t", "{}")).await;
        play.show(emit).await;
        assert_eq!(play.show(attempts).await, "10");
        assert_eq!(other.code(emit).await, "42704", "not committed");
        play.show(undo).await;
        assert_eq!(
            play.attempt(emit).await.unwrap_err().code,
            "42704",
            "{undo}"
        );
        play.show("rollback").await;
    }
    play.show(&topic_set("t", "{}")).await;
    other.show(emit).await;
    assert_eq!(other.show(attempts).await, "10");
    for undo in ["rollback", "rollback to s; commit"] {
        play.show("begin; savepoint s").await;
        play.show(&subscriber_set("default", r#"{"max_attempts": 3}"#))
            .await;
        assert_eq!(play.show(attempts).await, "3");
        assert_eq!(other.show(attempts).await, "10", "not committed");
        play.show(undo).await;
        assert_eq!(play.show(attempts).await, "10", "{undo}");
    }
    play.show("select once.subscriber_drop('t', 'default')")
        .await;
    assert_eq!(other.code(emit).await, "22023", "no subscribers");
    assert_eq!(other.code(attempts).await, "42704");
}

//! A topic and the right to it are checked when an event is registered, never at the key's end.

use crate::{abort, complete, done, emitted, open, step};

#[tokio::test]
async fn an_event_for_nobody_is_refused_when_it_is_registered() {
    let play = open().await;
    play.show("select once.topic_set('empty', '{\"subscribers\": []}')")
        .await;
    let token = play.token("k", "").await;
    let stored = play.stored().await;
    for (topic, code, named) in [("none", "42704", "none"), ("empty", "22023", "on_")] {
        let event = format!(r#"'{{"topic": "{topic}", "payload": 1}}'"#);
        for call in [
            format!("key_step('s', 'k', {token}, 'pay', {event})"),
            format!("key_step_done('s', 'k', {token}, 'pay', '1', {event})"),
            format!("key_step_done('s', 'k', {token}, 'pay', '1', null, {event})"),
        ] {
            let refusal = play.refused(&format!("select once.{call}")).await;
            refusal.tells(code, &[named, topic], &call);
        }
    }
    assert_eq!(play.stored().await, stored);
    let lost = step(token - 1, "pay", "x").replace("\"t\"", "\"none\"");
    assert_eq!(play.code(&lost).await, "ON001", "the lease comes first");
}

#[tokio::test]
async fn a_topic_of_somebody_else_cannot_be_registered() {
    let play = open().await;
    play.show(
        "create role se_owner; create role se_member login in role se_owner; create role se_other login;
         select once.grant_role('se_member', 'use'); select once.grant_role('se_other', 'use');
         select once.topic_set('owned', '{\"owner\": \"se_owner\"}')",
    )
    .await;
    let token = play.token("k", "").await;
    let event = r#"'{"topic": "owned", "payload": "x"}'"#;
    let other = play.another_as("se_other").await;
    for call in [
        format!("key_step('s', 'k', {token}, 'pay', {event})"),
        format!("key_step_done('s', 'k', {token}, 'pay', '1', {event})"),
        format!("key_step_done('s', 'k', {token}, 'pay', '1', null, {event})"),
    ] {
        let refusal = other.refused(&format!("select once.{call}")).await;
        assert_eq!(refusal.code, "42501", "{call}: {refusal:?}");
        assert!(refusal.message.contains("topic \"owned\""), "{refusal:?}");
    }
    let member = play.another_as("se_member").await;
    member
        .show(&format!(
            "select once.key_step('s', 'k', {token}, 'pay', {event})"
        ))
        .await;
    // A repetition registers nothing, so it asks for nothing.
    other
        .show(&format!(
            "select once.key_step('s', 'k', {token}, 'pay', {event})"
        ))
        .await;
    other.show(&abort(token)).await;
    assert_eq!(emitted(&play).await, "x", "the end was made by another");
}

#[tokio::test]
async fn a_topic_that_is_closed_later_still_gets_what_was_registered() {
    for (i, end) in [complete as fn(i64) -> String, abort].iter().enumerate() {
        let play = open().await;
        let (owner, user) = (format!("sl_owner{i}"), format!("sl_user{i}"));
        play.show(&format!(
            "create role {owner}; create role {user} login; select once.grant_role('{user}', 'use')"
        ))
        .await;
        let session = play.another_as(&user).await;
        let token = session.token("k", "").await;
        session.show(&step(token, "pay", "x")).await;
        session.show(&done(token, "pay", "x", "")).await;
        play.show(&format!(
            r#"select once.topic_set('t', '{{"owner": "{owner}"}}')"#
        ))
        .await;
        assert_eq!(session.code(&step(token, "ship", "y")).await, "42501");
        assert_eq!(
            session.code("select once.outbox_emit('t', '1')").await,
            "42501"
        );
        session.show(&end(token)).await;
        assert_eq!(emitted(&play).await, "x");
    }
}

#[tokio::test]
async fn nothing_that_becomes_of_a_topic_keeps_a_key_from_ending() {
    for end in [complete as fn(i64) -> String, abort] {
        let play = open().await;
        play.show("select once.topic_set('u', '{}')").await;
        let token = play.token("k", "").await;
        play.show(&step(token, "pay", "gone")).await;
        play.show(&done(token, "pay", "gone", "")).await;
        let kept = r#"'{"topic": "u", "payload": "kept", "order_key": "k"}'"#;
        play.show(&format!(
            "select once.key_step_done('s', 'k', {token}, 'ship', '1', {kept}, {kept})"
        ))
        .await;
        play.show("select once.subscriber_drop('t', 'default'); select once.topic_set('u', '{\"lanes\": 1}')")
            .await;
        play.show(&end(token)).await;
        assert_eq!(
            emitted(&play).await,
            "kept",
            "the other one has nobody to get it"
        );
        let lane = "select lane from once.event_0";
        assert_eq!(play.show(lane).await, "1", "a lane that there is");
        assert_eq!(play.claim("k", "").await, "replayed");
        play.ask("select payload #>> '{}' from once.outbox_take('u')")
            .is("kept")
            .await;
    }
}

#[tokio::test]
async fn a_subscriber_that_comes_before_the_end_gets_the_events() {
    let play = open().await;
    let token = play.token("k", "").await;
    play.show(&step(token, "pay", "undo")).await;
    play.show(
        "select once.subscriber_set('t', 'new'); select once.subscriber_drop('t', 'default')",
    )
    .await;
    play.show(&abort(token)).await;
    play.ask("select payload #>> '{}' from once.outbox_take('t', 'new')")
        .is("undo")
        .await;
}

//! The order of a key's events: ends of steps for `on_complete`, beginnings backwards for `on_abort`.

use crate::{abort, complete, done, emitted, open, step};

#[tokio::test]
async fn many_steps_on_one_clock_come_in_their_order() {
    let names: Vec<String> = (0..40).map(|i| format!("s{}", i * 7919 % 1000)).collect();
    for ends in ["complete", "abort"] {
        let play = open().await;
        play.clock("0").await;
        let token = play.token("k", "").await;
        for name in &names {
            play.show(&step(token, name, &format!("undo-{name}"))).await;
        }
        // They end in another order than they began.
        let mut ended = names.clone();
        ended.sort();
        for name in &ended {
            play.show(&done(token, name, &format!("did-{name}"), ""))
                .await;
        }
        let expected: Vec<String> = match ends {
            "complete" => ended.iter().map(|n| format!("did-{n}")).collect(),
            _ => names.iter().rev().map(|n| format!("undo-{n}")).collect(),
        };
        let end = if ends == "complete" { complete } else { abort };
        play.show(&end(token)).await;
        assert_eq!(emitted(&play).await, expected.join(" "));
    }
}

#[tokio::test]
async fn a_compensation_named_at_the_end_has_the_place_of_the_beginning() {
    let play = open().await;
    let token = play.token("k", "").await;
    for name in ["a", "b", "c"] {
        play.show(&step(token, name, "")).await;
    }
    for name in ["c", "a", "b"] {
        play.show(&done(token, name, "", &format!("undo-{name}")))
            .await;
    }
    play.show(&abort(token)).await;
    assert_eq!(emitted(&play).await, "undo-c undo-b undo-a");
}

#[tokio::test]
async fn a_step_begun_anew_under_another_derived_key_is_newer() {
    let play = open().await;
    let token = play.token("k", "").await;
    play.show(&step(token, "pay", "undo-pay")).await;
    play.show(&step(token, "mail", "undo-mail")).await;
    play.show(&format!(
        "select once.key_rotate('s', 'k', {token}, 'pay', 1)"
    ))
    .await;
    play.show("begin").await;
    play.show(&abort(token)).await;
    assert_eq!(
        emitted(&play).await,
        "undo-mail undo-pay",
        "rotated only: it keeps what it registered, and its place"
    );
    play.show("rollback").await;
    play.show(&step(token, "pay", "")).await;
    play.show(&abort(token)).await;
    assert_eq!(emitted(&play).await, "undo-pay undo-mail");
}

#[tokio::test]
async fn events_of_one_order_key_are_handed_out_in_the_order_of_the_end() {
    let play = open().await;
    let token = play.token("k", "").await;
    for i in 0..20 {
        let event = format!(r#"{{"topic": "t", "payload": {i}, "order_key": "order 17"}}"#);
        play.show(&format!(
            "select once.key_step('s', 'k', {token}, 'step {i}', '{event}')"
        ))
        .await;
    }
    play.show(&abort(token)).await;
    let taken = play
        .show(
            "select string_agg(payload::text, ' '), min(order_key), count(distinct order_key)
                 from once.outbox_take('t', max => 100)",
        )
        .await;
    let expected: Vec<String> = (0..20).rev().map(|i| i.to_string()).collect();
    assert_eq!(taken, format!("{}|order 17|1", expected.join(" ")));
}

#[tokio::test]
async fn one_end_may_emit_to_several_topics_and_lanes() {
    let play = open().await;
    play.show(r#"select once.topic_set('u', '{"lanes": 1000}')"#)
        .await;
    let token = play.token("k", "").await;
    for (i, topic) in ["t", "u", "t", "u"].iter().enumerate() {
        let event = format!(r#"{{"payload": {i}, "order_key": "k{i}", "topic": "{topic}"}}"#);
        play.show(&format!(
            "select once.key_step('s', 'k', {token}, 'step {i}', '{event}')"
        ))
        .await;
    }
    play.show(&abort(token)).await;
    let by_topic = "select string_agg(topic || ':' || payload, ' ' order by event_id)
                      from once.event_0 join once.topic using (topic_id)";
    assert_eq!(play.show(by_topic).await, "u:3 t:2 u:1 t:0");
}

//! Options of topics and subscribers over real connections: `topic_set`, `topic_get`, `subscriber_set`,
//! `subscriber_get`, `subscriber_drop`, alone and at once with everybody else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod drops;
mod lanes;
mod owners;
mod races;
mod starts;
mod values;

use pg_once_tests::{playground, waiting};
use playground::Playground;

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];
const ABOVE: [&str; 2] = ["repeatable read", "serializable"];

/// Sets options of a topic; a new one where there is none.
async fn topic(play: &Playground, topic: &str, options: &str) {
    play.show(&topic_set(topic, options)).await;
}

fn topic_set(topic: &str, options: &str) -> String {
    format!("select once.topic_set('{topic}', '{options}')")
}

fn subscriber_set(subscriber: &str, options: &str) -> String {
    format!("select once.subscriber_set('t', '{subscriber}', '{options}')")
}

/// Emits one event to topic t.
async fn emit(play: &Playground, payload: &str, more: &str) {
    play.show(&emit_sql(payload, more)).await;
}

fn emit_sql(payload: &str, more: &str) -> String {
    format!("select event_id from once.outbox_emit('t', '\"{payload}\"'{more})")
}

/// Takes everything that a subscriber of topic t has, acks it and returns the payloads, sorted.
async fn drain(play: &Playground, subscriber: &str) -> String {
    let mut all: Vec<String> = Vec::new();
    loop {
        let taken = play
            .show(&format!(
                "select token, payload #>> '{{}}' from once.outbox_take('t', '{subscriber}', 100)"
            ))
            .await;
        let Some((token, _)) = taken.split_once('|') else {
            all.sort();
            return all.join(" ");
        };
        play.show(&format!(
            "select once.outbox_ack('t', '{subscriber}', {token})"
        ))
        .await;
        all.extend(
            taken
                .lines()
                .map(|l| l.split_once('|').unwrap().1.to_owned()),
        );
    }
}

/// What is stored of topics and subscribers.
async fn stored(play: &Playground) -> String {
    play.show(
        "select coalesce(string_agg(r, ';' order by r), '') from (
            select 't' || t::text from once.topic t union all
            select 's' || s::text from once.subscriber s) rows(r)",
    )
    .await
}

/// Every topic counts its subscribers right.
async fn assert_counted(play: &Playground) {
    let wrong = "select string_agg(topic, ' ') from once.topic t where subscribers is distinct from
                 (select count(*) from once.subscriber s where s.topic_id = t.topic_id)";
    assert_eq!(play.show(wrong).await, "~", "wrong counts");
}

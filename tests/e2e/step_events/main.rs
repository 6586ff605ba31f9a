//! Events that a key's steps register, and that its end emits: which, in which order, once, whatever happens
//! in between.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bytes;
mod crash;
mod ends;
mod order;
mod repeats;
mod rights;
mod shapes;

use pg_once_tests::{playground, waiting};
use playground::Playground;

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// A database with topic t.
async fn open() -> Playground {
    let play = Playground::open().await;
    play.show("select once.topic_set('t', '{}')").await;
    play
}

/// An event for topic t as a step registers it; NULL for an empty text.
fn event(payload: &str) -> String {
    match payload {
        "" => "null".to_owned(),
        payload => format!(r#"'{{"topic": "t", "payload": "{payload}"}}'"#),
    }
}

/// The call that begins a step of key k.
fn step(token: i64, step: &str, on_abort: &str) -> String {
    let on_abort = event(on_abort);
    format!("select done, attempted from once.key_step('s', 'k', {token}, '{step}', {on_abort})")
}

/// The call that ends one.
fn done(token: i64, step: &str, on_complete: &str, on_abort: &str) -> String {
    let (on_complete, on_abort) = (event(on_complete), event(on_abort));
    format!(
        "select recorded from once.key_step_done('s', 'k', {token}, '{step}', '1', {on_complete}, {on_abort})"
    )
}

fn complete(token: i64) -> String {
    format!("select once.key_complete('s', 'k', {token}, 200)")
}

fn abort(token: i64) -> String {
    format!("select once.key_abort('s', 'k', {token}, 500)")
}

/// What was emitted to topic t, in the order of the events.
async fn emitted(play: &Playground) -> String {
    play.show("select string_agg(payload #>> '{}', ' ' order by event_id) from once.event_0")
        .await
}

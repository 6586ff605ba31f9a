//! Inbox over real connections: messages and steps of sagas that are handled once, whoever meets whom.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod barrier;
mod crash;
mod isolation;
mod messages;
mod reap;

use pg_once_tests::{playground, waiting};
use playground::Playground;

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];
const ABOVE: [&str; 2] = ["repeatable read", "serializable"];

/// The call that accepts a message of consumer s.
fn accept(message: &str) -> String {
    format!("select accepted, verdict from once.inbox_accept('s', '{message}')")
}

/// The call that records its verdict.
fn record(message: &str, verdict: &str) -> String {
    format!("select once.inbox_record('s', '{message}', '{verdict}')")
}

/// The call of one step of saga g.
fn barrier(step: &str, operation: &str) -> String {
    format!("select once.inbox_barrier('s', 'g', '{step}', '{operation}')")
}

/// Everything that the inbox has stored.
async fn stored(play: &Playground) -> String {
    play.show("select coalesce(string_agg(i::text, ';' order by id), '') from once.inbox i")
        .await
}

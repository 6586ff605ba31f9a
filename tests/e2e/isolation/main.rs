//! Every isolation level: an answer is as of the transaction's snapshot, and where that is not possible
//! any more the error is 40001 with the next step in its HINT, never another.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod deferred;
mod serializable;
mod sessions;
mod snapshots;

use pg_once_tests::{playground, waiting};
use playground::{Playground, Refusal};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];
const ABOVE: [&str; 2] = ["repeatable read", "serializable"];

/// Begins a transaction whose snapshot, where it has one for all statements, is taken now.
async fn begin(play: &Playground, level: &str) {
    play.show(&format!(
        "begin isolation level {level}; select count(*) from pg_class"
    ))
    .await;
}

/// Asserts that a lost race is told as a race, with what to do about it.
fn assert_retryable(refusal: &Refusal, what: &str) {
    refusal.tells("40001", &[], what);
}

/// The refusal of a statement in a transaction that is then rolled back.
async fn refused(play: &Playground, sql: &str) -> Refusal {
    let answer = play.attempt(sql).await;
    play.show("rollback").await;
    match answer {
        Err(refusal) => refusal,
        Ok(rows) => panic!("not refused: {sql}\n{rows}"),
    }
}

async fn complete(play: &Playground, key: &str, token: i64) {
    play.show(&format!(
        "select once.key_complete('s', '{key}', {token}, 200, '\"ok\"')"
    ))
    .await;
}

//! Read-write dependencies under SERIALIZABLE: what was read from a key is part of what must be in order.

use std::sync::Arc;

use crate::playground::Playground;
use crate::waiting::sessions;
use crate::{assert_retryable, complete};

/// Runs both statements in two overlapping serializable transactions; the refusals of either side.
async fn overlap(
    play: &Playground,
    first: [&str; 2],
    second: [&str; 2],
) -> Vec<crate::playground::Refusal> {
    let other = play.another().await;
    let mut refusals = Vec::new();
    for session in [play, &other] {
        session.show("begin isolation level serializable").await;
    }
    for step in 0..2 {
        for (session, sql) in [(play, first[step]), (&other, second[step])] {
            if let Err(refusal) = session.attempt(sql).await {
                refusals.push(refusal);
                session.show("rollback; begin").await;
            }
        }
    }
    for session in [play, &other] {
        if let Err(refusal) = session.attempt("commit").await {
            refusals.push(refusal);
        }
        session.show("rollback").await;
    }
    refusals
}

#[tokio::test]
async fn two_readers_of_each_others_unfinished_keys_cannot_both_write() {
    let play = Playground::open().await;
    let (a, b) = (play.token("a", "").await, play.token("b", "").await);
    // Each sees the other's key unfinished and finishes its own: no serial order shows that to both.
    let refusals = overlap(
        &play,
        [
            "select once.key_claim('s', 'b')",
            &format!("select once.key_complete('s', 'a', {a}, 200)"),
        ],
        [
            "select once.key_claim('s', 'a')",
            &format!("select once.key_complete('s', 'b', {b}, 200)"),
        ],
    )
    .await;
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert_retryable(&refusals[0], "write skew over two keys");
}

#[tokio::test]
async fn two_readers_of_each_others_missing_keys_cannot_both_claim() {
    let play = Playground::open().await;
    let refusals = overlap(
        &play,
        [
            "select once.key_get('s', 'b')",
            "select once.key_claim('s', 'a')",
        ],
        [
            "select once.key_get('s', 'a')",
            "select once.key_claim('s', 'b')",
        ],
    )
    .await;
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert_retryable(&refusals[0], "write skew over two missing keys");
}

#[tokio::test]
async fn serializable_requests_with_retries_all_end_and_each_runs_once() {
    let play = Playground::directly("an outcome is handed on in a setting of the session").await;
    play.show("create table orders (id text)").await;
    let sessions = sessions(&play, 6).await;
    let tasks: Vec<_> = sessions
        .iter()
        .map(|session| {
            let session = Arc::clone(session);
            tokio::spawn(async move {
                for key in (0..25).map(|i| format!("k{i}")) {
                    while run(&session, &key).await != "replayed" {}
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    play.ask("select count(*), count(distinct id) from orders")
        .is("25|25")
        .await;
}

/// One attempt in one transaction; its outcome, or `race`.
async fn run(session: &Playground, key: &str) -> String {
    session.show("begin isolation level serializable").await;
    let work = format!(
        "do $$ declare c record; begin
            select * into c from once.key_claim('s', '{key}');
            if c.token is not null then
                insert into orders values ('{key}');
                perform once.key_complete('s', '{key}', c.token, 200);
            end if;
            perform set_config('my.outcome', c.outcome, false);
         end $$"
    );
    for sql in [work.as_str(), "commit"] {
        if let Err(refusal) = session.attempt(sql).await {
            assert_retryable(&refusal, sql);
            session.show("rollback").await;
            return "race".to_owned();
        }
    }
    session.show("select current_setting('my.outcome')").await
}

#[tokio::test]
async fn an_answer_read_under_serializable_costs_later_writers_nothing() {
    let play = Playground::open().await;
    let other = play.another().await;
    let token = play.token("k", "").await;
    other.show("begin isolation level serializable").await;
    assert_eq!(other.claim("k", "").await, "in_progress");
    complete(&play, "k", token).await;
    other.show("commit").await;
    assert_eq!(other.claim("k", "").await, "replayed");
}

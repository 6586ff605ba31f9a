//! A program that loses the answer to its COMMIT sends the whole transaction again, with the same token: its own
//! writes are committed once.

use crate::playground::{Playground, Refusal};
use crate::repeats::begin_key;
use crate::waiting::Waiting;

async fn shop() -> Playground {
    let play = Playground::open().await;
    play.show("create table orders (id uuid default gen_random_uuid(), key text)")
        .await;
    play
}

/// An order and these calls in one transaction; nothing of it is left where one is refused.
async fn order(play: &Playground, key: &str, calls: &str) -> Result<String, Refusal> {
    let sql = format!("begin; insert into orders (key) values ('{key}'); {calls}; commit");
    let answer = play.attempt(&sql).await;
    if answer.is_err() {
        play.show("rollback").await;
    }
    answer
}

async fn orders(play: &Playground, key: &str) -> String {
    play.show(&format!("select count(*) from orders where key = '{key}'"))
        .await
}

#[tokio::test]
async fn a_transaction_that_is_sent_twice_commits_its_writes_once() {
    let play = shop().await;
    for (key, call) in [
        ("advance", "key_advance('s', 'advance', $, 'ordered', '1')"),
        ("keep", "key_advance('s', 'keep', $, 'ordered')"),
        (
            "other lease",
            "key_advance('s', 'other lease', $, 'ordered', null, '5 s')",
        ),
        ("complete", "key_complete('s', 'complete', $, 201, '{}')"),
        ("abort", "key_abort('s', 'abort', $, 409)"),
        ("step", "key_step_done('s', 'step', $, 'pay', '7')"),
        ("verdict", "key_resolve('s', 'verdict', 1, 'complete', 200)"),
        ("retry", "key_resolve('s', 'retry', 1, 'retry')"),
    ] {
        let token = begin_key(&play, key).await;
        if call.starts_with("key_resolve") {
            play.show(&format!("select once.key_park('s', '{key}', {token}, 'x')"))
                .await;
        }
        let call = format!("select once.{}", call.replace('$', &token.to_string()));
        order(&play, key, &call).await.unwrap();
        let stored = play.stored().await;
        // With a heartbeat before it, behind it, or in a block of its own; a parked key has none.
        let extend = match call.contains("key_resolve") {
            true => "select 1".to_owned(),
            false => format!("select once.key_extend('s', '{key}', {token})"),
        };
        for again in [
            call.clone(),
            format!("{extend}; {call}"),
            format!("savepoint a; {extend}; release a; {call}"),
            format!("savepoint a; {call}; release a; {extend}"),
        ] {
            let refused = order(&play, key, &again).await.unwrap_err();
            refused.tells("ON006", &[], &again);
        }
        assert_eq!(orders(&play, key).await, "1", "{key}");
        assert_eq!(play.stored().await, stored, "{key}");
    }
}

#[tokio::test]
async fn what_was_rolled_back_was_not_made() {
    let play = shop().await;
    let token = begin_key(&play, "k").await;
    let advance = format!("select once.key_advance('s', 'k', {token}, 'p', '1')");
    let complete = format!("select once.key_complete('s', 'k', {token}, 200)");
    for call in [&advance, &complete] {
        play.show(&format!("begin; {call}; rollback")).await;
        let calls = format!("savepoint a; {call}; rollback to a; {call}");
        order(&play, "k", &calls).await.unwrap();
        assert_eq!(order(&play, "k", call).await.unwrap_err().code, "ON006");
    }
    assert_eq!(orders(&play, "k").await, "2");
}

#[tokio::test]
async fn a_loop_that_passes_one_point_with_other_states_is_no_repeat() {
    let play = shop().await;
    let token = begin_key(&play, "k").await;
    let page = |state: &str| format!("select once.key_advance('s', 'k', {token}, 'page', {state})");
    for state in ["'1'", "'2'", "'3'", "'1'"] {
        order(&play, "k", &page(state)).await.unwrap();
        for again in [state, "null"] {
            let refused = order(&play, "k", &page(again)).await.unwrap_err();
            assert_eq!(refused.code, "ON006", "{state}, {again}");
        }
    }
    assert_eq!(orders(&play, "k").await, "4");
    // The next attempt stands at the point by the advance of another token: its own advance is a first one.
    play.clock("1 h").await;
    let next = play.token("k", ", '1'").await;
    let call = format!("select once.key_advance('s', 'k', {next}, 'page', '1')");
    order(&play, "k", &call).await.unwrap();
    assert_eq!(order(&play, "k", &call).await.unwrap_err().code, "ON006");
    assert_eq!(orders(&play, "k").await, "5");
}

#[tokio::test]
async fn a_repeat_that_waited_for_the_transaction_it_repeats_is_told_so() {
    for (end, code) in [("commit", "ON006"), ("rollback", "")] {
        let play = shop().await;
        let token = begin_key(&play, "k").await;
        for call in [
            "key_advance('s', 'k', $, 'p', '1')",
            "key_step_done('s', 'k', $, 'pay')",
            "key_complete('s', 'k', $, 200)",
        ] {
            let call = format!("select once.{}", call.replace('$', &token.to_string()));
            let first = play.another().await;
            let (again, watcher) = (play.another().await, play.another().await);
            first.clock("0").await;
            again.clock("0").await;
            first.show(&format!("begin; {call}")).await;
            let waiting = Waiting::begin(&watcher, again, &call).await;
            first.show(end).await;
            let told = waiting
                .end()
                .await
                .1
                .map_or_else(|refusal| refusal.code, |_| String::new());
            assert_eq!(told, code, "{end}: {call}");
        }
    }
}

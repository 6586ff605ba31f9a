//! The holder's writes against takeovers: they never both count, and only the write ever waits.

use crate::playground::Playground;
use crate::waiting::{Waiting, at_once, code, sessions};

/// Every call that presents a token.
const WRITES: [&str; 9] = [
    "key_advance('s', 'k', TOKEN, 'paid', '{}')",
    "key_complete('s', 'k', TOKEN, 200)",
    "key_abort('s', 'k', TOKEN, 402)",
    "key_release('s', 'k', TOKEN, 'no')",
    "key_park('s', 'k', TOKEN, 'unknown')",
    "key_extend('s', 'k', TOKEN)",
    "key_step('s', 'k', TOKEN, 'pay')",
    "key_step_done('s', 'k', TOKEN, 'pay', '1')",
    "key_rotate('s', 'k', TOKEN, 'pay', 1)",
];

fn with(write: &str, token: i64) -> String {
    format!("select once.{}", write.replace("TOKEN", &token.to_string()))
}

/// The token of a holder whose lease has run out already.
async fn expired(play: &Playground) -> i64 {
    play.show("select once.key_forget('s', 'k')").await;
    play.token("k", ", lease => '1 microsecond'").await
}

#[tokio::test]
async fn a_claim_does_not_wait_for_the_old_holders_open_write() {
    let play = Playground::open().await;
    let holder = play.another().await;
    play.show("set lock_timeout = '1ms'").await;
    for write in WRITES {
        let token = expired(&play).await;
        play.show("select once.sweep(task => 'key_abandon')").await;
        holder.show("begin").await;
        holder.show(&with(write, token)).await;
        assert_eq!(play.claim("k", "").await, "in_progress", "{write}");
        assert_eq!(
            play.show("select key from once.key_take_abandoned('s')")
                .await,
            "",
            "{write}"
        );
        holder.show("rollback").await;
        assert_eq!(
            play.claim("k", ", lease => '1 microsecond'").await,
            "resumed",
            "{write}"
        );
    }
}

#[tokio::test]
async fn every_write_waits_for_an_open_takeover_and_is_then_refused() {
    let play = Playground::open().await;
    let mut holder = play.another().await;
    let thief = play.another().await;
    for write in WRITES {
        let token = expired(&play).await;
        thief.show("begin").await;
        assert_eq!(
            thief.claim("k", ", lease => '1 microsecond'").await,
            "resumed"
        );
        let waiting = Waiting::begin(&play, holder, &with(write, token)).await;
        thief.show("commit").await;
        let (session, answer) = waiting.end().await;
        let refusal = answer.unwrap_err();
        refusal.tells("ON001", &["\"k\""], write);
        holder = session;
    }
}

#[tokio::test]
async fn a_write_that_waited_for_a_takeover_that_rolled_back_counts() {
    let play = Playground::open().await;
    let mut holder = play.another().await;
    let thief = play.another().await;
    for write in WRITES {
        let token = expired(&play).await;
        thief.show("begin").await;
        assert_eq!(thief.claim("k", "").await, "resumed");
        let waiting = Waiting::begin(&play, holder, &with(write, token)).await;
        thief.show("rollback").await;
        let (session, answer) = waiting.end().await;
        assert_eq!(code(&answer), "", "{write}: {answer:?}");
        holder = session;
        play.show("update once.key set lease_until = now()").await;
    }
}

/// What one session of a token does in an open transaction, how that ends, and what every other write of the same
/// token then comes to.
const OPEN: [(&str, &str, [&str; 9]); 4] = [
    (
        "key_advance('s', 'k', TOKEN, 'paid', '{}')",
        "commit",
        ["ON006", "", "", "", "", "", "", "", ""],
    ),
    ("key_complete('s', 'k', TOKEN, 200)", "rollback", [""; 9]),
    ("key_complete('s', 'k', TOKEN, 200)", "commit", ["ON006"; 9]),
    (
        "key_release('s', 'k', TOKEN, 'no')",
        "commit",
        [
            "ON001", "ON001", "ON001", "", "ON001", "ON001", "ON001", "ON001", "ON001",
        ],
    ),
];

#[tokio::test]
async fn a_write_waits_for_an_open_one_of_its_own_token_and_is_then_answered() {
    let play = Playground::open().await;
    let mut second = play.another().await;
    let first = play.another().await;
    for (open, end, answers) in OPEN {
        for (write, answer) in WRITES.into_iter().zip(answers) {
            play.show("update once.key set lease_until = now()").await;
            let token = expired(&play).await;
            first.show("begin").await;
            first.show(&with(open, token)).await;
            let waiting = Waiting::begin(&play, second, &with(write, token)).await;
            first.show(end).await;
            let (session, told) = waiting.end().await;
            assert_eq!(
                code(&told),
                answer,
                "{write} behind {open}, {end}: {told:?}"
            );
            second = session;
        }
    }
}

#[tokio::test]
async fn two_connections_of_one_token_begin_a_step_once() {
    let play = Playground::open().await;
    let second = play.another().await;
    let token = play.token("k", "").await;
    play.show("begin").await;
    let begin = format!("select done, attempted from once.key_step('s', 'k', {token}, 'pay')");
    assert_eq!(play.show(&begin).await, "f|0");
    let watcher = play.another().await;
    let waiting = Waiting::begin(&watcher, second, &begin).await;
    play.show("commit").await;
    let (second, answer) = waiting.end().await;
    assert_eq!(answer.unwrap(), "f|0");
    assert_eq!(second.show("select begun from once.key_step").await, "1");
}

#[tokio::test]
async fn of_many_ends_of_one_step_the_first_stays() {
    let play = Playground::open().await;
    let sessions = sessions(&play, 8).await;
    let token = play.token("k", "").await;
    let answers = at_once(&sessions, |i| {
        format!("select recorded, result from once.key_step_done('s', 'k', {token}, 'pay', '{i}')")
    })
    .await;
    let stored = play.show("select result from once.key_step").await;
    let recorded: Vec<_> = answers.iter().flatten().collect();
    assert_eq!(recorded, [&format!("t|{stored}")]);
    assert!(
        answers.iter().all(|a| a.is_ok() || code(a) == "ON006"),
        "{answers:?}"
    );
}

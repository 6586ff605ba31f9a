//! What a holder is told after a wait: every time counts from the end of the wait, never from before it.
//!
//! A lease that counts from before the wait is shorter than its holder believes, and a second claimer
//! would run beside it. The instants are compared with a look at the clock while the write still waits.

use crate::playground::Playground;
use crate::waiting::Waiting;

/// A write of the holder, and what it stores as counted from its own time.
const WRITES: [(&str, &str); 6] = [
    (
        "key_extend('s', 'k', TOKEN, '3 min')",
        "lease_until - interval '3 min'",
    ),
    (
        "key_advance('s', 'k', TOKEN, 'paid', '{}', '3 min')",
        "lease_until - interval '3 min'",
    ),
    (
        "key_release('s', 'k', TOKEN, 'no', '3 min')",
        "lease_until - interval '3 min'",
    ),
    ("key_complete('s', 'k', TOKEN, 200)", "finished_at"),
    ("key_abort('s', 'k', TOKEN, 402)", "finished_at"),
    ("key_resolve('s', 'k', 1, 'retry')", "lease_until"),
];

/// What somebody else does in an open transaction; it leaves the row as it was.
const IN_THE_WAY: [(&str, &str); 3] = [
    ("select once.key_step('s', 'k', TOKEN, 'call')", "commit"),
    ("select from once.key where key = 'k' for update", "commit"),
    ("update once.key set note = 'x' where key = 'k'", "rollback"),
];

/// A key that `write` fits, and its token.
async fn ready_for(play: &Playground, write: &str) -> i64 {
    play.show("delete from once.key_step; delete from once.key")
        .await;
    let token = play.token("k", "").await;
    if write.starts_with("key_resolve") {
        play.show(&format!(
            "select once.key_park('s', 'k', {token}, 'timed out')"
        ))
        .await;
    }
    token
}

#[tokio::test]
async fn what_a_write_stores_counts_from_after_its_wait_for_a_lock() {
    let play = Playground::open().await;
    let other = play.another().await;
    let mut holder = play.another().await;
    for level in ["read committed", "repeatable read", "serializable"] {
        for (in_the_way, end) in IN_THE_WAY {
            for (write, counts_from) in WRITES {
                let parked = write.starts_with("key_resolve");
                if parked && in_the_way.contains("key_step") {
                    continue;
                }
                let token = ready_for(&play, write).await.to_string();
                other.show("begin").await;
                other.show(&in_the_way.replace("TOKEN", &token)).await;
                holder.show(&format!("begin isolation level {level}")).await;
                let write = format!("select once.{}", write.replace("TOKEN", &token));
                let waiting = Waiting::begin(&play, holder, &write).await;
                let meanwhile = play.show("select clock_timestamp()").await;
                other.show(end).await;
                let (session, answer) = waiting.end().await;
                let case = format!("{write} behind {in_the_way}, {level}");
                assert!(answer.is_ok(), "{case}: {answer:?}");
                session.show("commit").await;
                let stored =
                    format!("select {counts_from} > '{meanwhile}', {counts_from} from once.key");
                let stored = play.show(&stored).await;
                assert!(
                    stored.starts_with("t|"),
                    "{case}: {stored}, it waited at {meanwhile}"
                );
                holder = session;
            }
        }
    }
}

#[tokio::test]
async fn a_lease_counts_from_after_the_wait_for_a_takeover_that_rolled_back() {
    let play = Playground::open().await;
    let thief = play.another().await;
    let mut holder = play.another().await;
    for steal in [
        "select once.key_claim('s', 'k')",
        "select once.key_take_abandoned('s')",
    ] {
        play.show("delete from once.key").await;
        let token = play.token("k", ", lease => '1 microsecond'").await;
        play.show("select once.sweep(task => 'key_abandon')").await;
        thief.show("begin").await;
        thief.show(steal).await;
        let extend = format!("select once.key_extend('s', 'k', {token}, '3 min')");
        let waiting = Waiting::begin(&play, holder, &extend).await;
        let meanwhile = play.show("select clock_timestamp()").await;
        thief.show("rollback").await;
        let (session, answer) = waiting.end().await;
        assert!(answer.is_ok(), "{steal}: {answer:?}");
        let long = format!(
            "select lease_until > timestamptz '{meanwhile}' + interval '3 min' from once.key"
        );
        assert_eq!(play.show(&long).await, "t", "{steal}");
        holder = session;
    }
}

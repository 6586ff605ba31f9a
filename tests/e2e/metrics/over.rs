//! Rows that are over and that an old snapshot keeps: metrics() and doctor() read a bounded number of their index
//! entries, find what is alive beside them, and say where they could not look at everything.

use super::depth::pages_of;
use super::value;
use crate::playground::Playground;

/// Rows that are over, in each table.
const OVER: usize = 100_000;
/// Pages that a call may touch more than before; each entry that is read costs one here.
const BOUND: u64 = 60_000;

/// Numbers from 1 to [`OVER`], each once, in no order: so neighbours in the index are on different pages.
fn numbers() -> String {
    format!(
        "generate_series(1, {OVER}) i, lateral (select (i * 7919::bigint) % 100003 + 1000000) n (n)"
    )
}

async fn assert_bounded(play: &Playground, before: [u64; 2], what: &str) {
    for (call, before) in ["once.metrics()", "once.doctor()"].into_iter().zip(before) {
        let after = pages_of(play, call).await;
        assert!(
            after < before + BOUND,
            "{call}, {what}: {before} pages, then {after}"
        );
    }
}

async fn both(play: &Playground) -> [u64; 2] {
    [
        pages_of(play, "once.metrics()").await,
        pages_of(play, "once.doctor()").await,
    ]
}

#[tokio::test]
async fn retries_that_are_over_and_kept_by_an_old_snapshot() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show("select once.topic_set('t', '{}'); select once.outbox_emit('t', '{}')")
        .await;
    let subscriber = play.show("select subscriber_id from once.subscriber").await;
    let old = play.another().await;
    old.show("begin isolation level repeatable read; select 1")
        .await;
    let before = both(&play).await;
    play.show(&format!(
        "insert into once.retry (due_at, event_id, subscriber_id, topic_id, lane, failures, redriven, suspect)
         select now() - i * interval '1 ms', n, {subscriber}, 1, 0, 1, 0, false from {};
         delete from once.retry",
        numbers()
    ))
    .await;
    assert_bounded(&play, before, "retries").await;
    // What is alive is found all the same.
    play.clock("5 min").await;
    let here = r#"{"topic": "t", "subscriber": "default"}"#;
    assert_eq!(value(&play, "outbox_lag_seconds", here).await, "300");

    old.show("commit").await;
    play.show("vacuum").await;
    assert_eq!(value(&play, "pg_once_outbox_complete", "{}").await, "1");
}

#[tokio::test]
async fn keys_and_leases_that_are_over_and_kept_by_an_old_snapshot() {
    let play = Playground::open().await;
    let old = play.another().await;
    old.show("begin isolation level repeatable read; select 1")
        .await;
    let before = both(&play).await;
    // Three scopes; the last of them has a key that is alive.
    play.show(&format!(
        "insert into once.key (token, lease_until, claimed_at, created_at, look_at, reap_at, ttl_us, attempt,
                attempt_base, status, reap_stage, look_lane, emits, advanced, id, scope, key, recovery_point, fingerprint,
                finished_at, response_code)
         select i, t, t, t, t, t + '1 day', 86400000000, 1, 0, 'c', '0', '0', false, '0', md5(i::text)::uuid, 's' || i % 3,
                'k' || i, 'started', '\\x01'::bytea || sha256(i::text::bytea), t + '1 s', 201
           from {}, lateral (select now() - (n - 1000000) * interval '1 ms') x (t);
         delete from once.key",
        numbers()
    ))
    .await;
    play.show("select * from once.key_claim('s2', 'alive')")
        .await;
    assert_bounded(&play, before, "keys").await;
    let alive = value(&play, "pg_once_key_leases", r#"{"state": "alive"}"#).await;
    assert_eq!(alive, "1");
    old.show("commit").await;
}

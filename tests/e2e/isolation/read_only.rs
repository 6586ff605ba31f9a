//! READ ONLY transactions: what need not write answers, everything else is 25006.

use crate::LEVELS;
use crate::playground::Playground;

/// Keys in every state, by name, and the token of `held`.
async fn keys(play: &Playground) -> i64 {
    let done = play.token("done", ", '1'").await;
    play.show(&format!(
        "select once.key_complete('s', 'done', {done}, 200, '\"ok\"')"
    ))
    .await;
    let gone = play.token("gone", ", '1', ttl => '1 microsecond'").await;
    play.show(&format!(
        "select once.key_complete('s', 'gone', {gone}, 200)"
    ))
    .await;
    let parked = play.token("parked", ", '1'").await;
    play.show(&format!(
        "select once.key_park('s', 'parked', {parked}, 'unknown')"
    ))
    .await;
    play.token("lost", ", '1', lease => '1 microsecond'").await;
    let held = play.token("held", ", '1', holder => 'me'").await;
    play.show(&format!("select once.key_step('s', 'held', {held}, 'pay')"))
        .await;
    held
}

#[tokio::test]
async fn answers_that_need_no_write_come_in_a_read_only_transaction() {
    let play = Playground::open().await;
    let held = keys(&play).await;
    for level in LEVELS {
        play.show(&format!("begin isolation level {level} read only"))
            .await;
        for (claim, outcome) in [
            ("'done', '1'", "replayed"),
            ("'done', '2'", "mismatched"),
            ("'gone', '1'", "gone"),
            ("'parked', '1'", "parked"),
            ("'held', '1'", "in_progress"),
            ("'held', '1', holder => 'me'", "resumed"),
        ] {
            let sql = format!("select outcome from once.key_claim('s', {claim})");
            let answer = play.show(&sql).await;
            assert!(
                answer == outcome || (claim.contains("me") && answer == "claimed"),
                "{claim}: {answer}"
            );
        }
        assert_eq!(
            play.show("select status from once.key_get('s', 'held')")
                .await,
            "running"
        );
        assert_eq!(
            play.show("select once.scope_get('s') ->> 'lease'").await,
            "00:01:00"
        );
        assert_eq!(
            play.show("select length(once.key_derive('s', 'k', 'pay'))")
                .await,
            "69"
        );
        // The last write with a token, repeated, changes nothing.
        let step = format!("select attempted from once.key_step('s', 'held', {held}, 'pay')");
        assert_eq!(play.show(&step).await, "0");
        play.show("commit").await;
    }
}

#[tokio::test]
async fn calls_that_have_to_write_are_refused_in_a_read_only_transaction() {
    let play = Playground::open().await;
    let held = keys(&play).await;
    let calls = [
        "key_claim('s', 'new')",
        "key_claim('s', 'lost', '1')",
        "key_claim_hashed('s', 'new', sha256(''))",
        "key_advance('s', 'held', TOKEN, 'paid')",
        "key_complete('s', 'held', TOKEN, 200)",
        "key_abort('s', 'held', TOKEN, 402)",
        "key_release('s', 'held', TOKEN)",
        "key_park('s', 'held', TOKEN, 'x')",
        "key_extend('s', 'held', TOKEN)",
        "key_step('s', 'held', TOKEN, 'other')",
        "key_step_done('s', 'held', TOKEN, 'pay')",
        "key_rotate('s', 'held', TOKEN, 'pay', 1)",
        "key_take_abandoned('s')",
        "key_resolve('s', 'parked', 1, 'retry')",
        "key_forget('s', 'lost')",
        "scope_set('s', '{\"ttl\": \"1 h\"}')",
        "sweep()",
        "sweep_key_reap()",
        "sweep_key_tombstone()",
        "grant_role('pg_monitor', 'use')",
        "revoke_role('pg_monitor', 'use')",
    ];
    let before = play.stored().await;
    for level in LEVELS {
        for call in calls {
            play.show(&format!("begin isolation level {level} read only"))
                .await;
            let sql = format!("select once.{}", call.replace("TOKEN", &held.to_string()));
            let refusal = play.refused(&sql).await;
            play.show("rollback").await;
            assert_eq!(refusal.code, "25006", "{call} at {level}: {refusal:?}");
            assert!(!refusal.hint.is_empty(), "{call}: {refusal:?}");
        }
    }
    assert_eq!(play.stored().await, before);
}

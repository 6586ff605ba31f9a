//! Every outcome of a claim and what it fills, and what completers, people and scopes see of a key.
//!
//! The table of the contract is the specification: what it does not name is NULL, and the clock
//! decides, whether or not a sweep has run.
use crate::playground::Playground;

/// Every column of a claim but the token, which is shown as whether there is one.
pub fn claim_of(arguments: &str) -> String {
    format!(
        "select outcome, token is not null, attempt, recovery_point, state, response_code, response_body,
                response_headers, lease_left, retry_after from once.key_claim({arguments})"
    )
}

const IN_PROGRESS: &str = "in_progress|f|~|~|~|~|~|~";
const MISMATCHED: &str = "mismatched|f|~|~|~|~|~|~|~|~";
const GONE: &str = "gone|f|~|~|~|~|~|~|~|~";

#[tokio::test]
async fn a_first_claim_is_claimed_with_a_token_the_first_attempt_and_its_lease() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.ask(&claim_of("'s', 'k'"))
        .is("claimed|t|1|started|~|~|~|~|00:01:00|~")
        .await;
    play.ask(&claim_of("'s', 'k2', lease => '5 min'"))
        .is("claimed|t|1|started|~|~|~|~|00:05:00|~")
        .await;
    play.show("set once.key_lease = '7s'").await;
    play.ask(&claim_of("'s', 'k3'"))
        .is("claimed|t|1|started|~|~|~|~|00:00:07|~")
        .await;
    play.show(r#"select once.scope_set('s', '{"lease": "9 s"}')"#)
        .await;
    play.ask(&claim_of("'s', 'k4'"))
        .is("claimed|t|1|started|~|~|~|~|00:00:09|~")
        .await;
}

#[tokio::test]
async fn a_token_is_the_servers_real_clock_even_where_time_is_pretended() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", "").await;
    let real: i64 = play
        .show("select ((extract(epoch from clock_timestamp()) - 946684800) * 1000000)::bigint")
        .await
        .parse()
        .unwrap();
    assert!((real - token).abs() < 60_000_000, "{token} against {real}");
    assert!(token < 1 << 53, "it fits a JavaScript number");
}

#[tokio::test]
async fn a_claim_of_a_held_key_is_asked_back_soon_and_never_for_the_rest_of_a_long_lease() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.token("k", "").await;
    let says = async |options: &str, clock: &str, expected: &str| {
        play.show(options).await;
        play.clock(clock).await;
        let expected = format!("{IN_PROGRESS}|{expected}");
        assert_eq!(
            play.show(&claim_of("'s', 'k'")).await,
            expected,
            "{options}"
        );
    };
    says("", "20 s", "00:00:40|00:00:01").await;
    says("set once.retry_after = '2s'", "20 s", "00:00:40|00:00:02").await;
    let scope = r#"select once.scope_set('s', '{"retry_after": "250 ms"}')"#;
    says(scope, "20 s", "00:00:40|00:00:00.25").await;
    says("", "59.8 s", "00:00:00.2|00:00:00.2").await;
    says("", "59.99 s", "00:00:00.01|00:00:00.1").await;
    let scope = r#"select once.scope_set('s', '{"retry_after": "1 ms"}')"#;
    says(scope, "20 s", "00:00:40|00:00:00.1").await;
    let scope = r#"select once.scope_set('s', '{"retry_after": "1 h"}')"#;
    says(scope, "20 s", "00:00:40|00:00:40").await;
}

#[tokio::test]
async fn a_claim_that_another_open_transaction_is_making_is_in_progress_for_a_second() {
    let play = Playground::open().await;
    let other = play.another().await;
    other.show("begin; select once.key_claim('s', 'k')").await;
    assert_eq!(
        play.show(&claim_of("'s', 'k'")).await,
        format!("{IN_PROGRESS}|~|00:00:01")
    );
    other.show("rollback").await;
    assert_eq!(play.claim("k", "").await, "claimed");
}

#[tokio::test]
async fn a_lease_that_ran_out_is_resumed_from_the_recovery_point_with_its_state() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", "").await;
    play.show(&format!(
        r#"select once.key_advance('s', 'k', {token}, 'paid', '{{"a":  1}}')"#
    ))
    .await;
    play.clock("60 s").await;
    play.ask(&claim_of("'s', 'k'"))
        .is(r#"resumed|t|2|paid|{"a":  1}|~|~|~|00:01:00|~"#)
        .await;
    play.clock("120 s").await;
    assert!(
        play.token("k", "").await > token,
        "tokens grow with each holder"
    );
}

#[tokio::test]
async fn a_released_key_is_resumed_at_once_or_not_before_it_is_due() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", "").await;
    play.show(&format!(
        "select once.key_release('s', 'k', {token}, 'bank away')"
    ))
    .await;
    play.ask(&claim_of("'s', 'k'"))
        .is("resumed|t|2|started|~|~|~|~|00:01:00|~")
        .await;
    let token = play.token("k2", "").await;
    play.show(&format!(
        "select once.key_release('s', 'k2', {token}, null, '10 s')"
    ))
    .await;
    play.clock("4 s").await;
    assert_eq!(
        play.show(&claim_of("'s', 'k2'")).await,
        format!("{IN_PROGRESS}|~|00:00:06")
    );
    play.clock("9.95 s").await;
    assert_eq!(
        play.show(&claim_of("'s', 'k2'")).await,
        format!("{IN_PROGRESS}|~|00:00:00.1")
    );
    play.clock("10 s").await;
    assert_eq!(play.claim("k2", "").await, "resumed");
}

#[tokio::test]
async fn a_finished_key_replays_its_answer_whether_completed_or_aborted() {
    let play = Playground::open().await;
    for (function, key) in [("key_complete", "c"), ("key_abort", "a")] {
        let token = play.token(key, "").await;
        play.show(&format!(
            r#"select once.{function}('s', '{key}', {token}, 201, '{{"id":  7}}', '{{"X":1}}')"#
        ))
        .await;
        play.ask(&claim_of(&format!("'s', '{key}'")))
            .is(r#"replayed|f|~|~|~|201|{"id":  7}|{"X":1}|~|~"#)
            .await;
    }
    let token = play.token("bare", "").await;
    play.show(&format!(
        "select once.key_complete('s', 'bare', {token}, 204)"
    ))
    .await;
    play.ask(&claim_of("'s', 'bare'"))
        .is("replayed|f|~|~|~|204|~|~|~|~")
        .await;
}

#[tokio::test]
async fn another_request_under_the_same_key_is_mismatched_in_every_state() {
    let play = Playground::open().await;
    let wrong = claim_of("'s', 'k', '2', holder => 'h'");
    play.clock("0").await;
    let token = play
        .token("k", ", '1', holder => 'h', ttl => '1 hour'")
        .await;
    assert_eq!(
        play.show(&wrong).await,
        MISMATCHED,
        "held by the same holder"
    );
    play.clock("2 min").await;
    assert_eq!(play.show(&wrong).await, MISMATCHED, "abandoned");
    play.show(&format!(
        "select once.key_park('s', 'k', {token}, 'timeout')"
    ))
    .await;
    assert_eq!(play.show(&wrong).await, MISMATCHED, "parked");
    play.show("select once.key_resolve('s', 'k', 1, 'retry')")
        .await;
    assert_eq!(play.show(&wrong).await, MISMATCHED, "released");
    let token = play.token("k", ", '1'").await;
    play.show(&format!(
        "select once.key_complete('s', 'k', {token}, 200, '\"secret\"')"
    ))
    .await;
    assert_eq!(play.show(&wrong).await, MISMATCHED, "finished");
    play.clock("2 hours").await;
    assert_eq!(play.show(&wrong).await, MISMATCHED, "gone");
    assert_eq!(play.show(&claim_of("'s', 'k', '1'")).await, GONE);
    play.show("select * from once.sweep()").await;
    assert_eq!(play.show(&wrong).await, MISMATCHED, "tombstone");
    assert_eq!(play.show(&claim_of("'s', 'k', '1'")).await, GONE);
    play.clock("26 hours").await;
    assert_eq!(play.claim("k", ", '2'").await, "claimed", "new again");
}

#[tokio::test]
async fn sql_null_equals_only_null_and_a_callers_hash_only_the_same_hash() {
    let play = Playground::open().await;
    play.token("n", "").await;
    assert_eq!(play.claim("n", ", null").await, "in_progress");
    assert_eq!(play.claim("n", ", 'null'").await, "mismatched");
    play.token("j", ", 'null'").await;
    assert_eq!(play.claim("j", "").await, "mismatched");
    let hashed = |key: &str, body: &str| {
        format!("select outcome from once.key_claim('s', '{key}', fingerprint => sha256('{body}'))")
    };
    assert_eq!(play.show(&hashed("h", "a")).await, "claimed");
    assert_eq!(play.show(&hashed("h", "a")).await, "in_progress");
    assert_eq!(play.show(&hashed("h", "b")).await, "mismatched");
    assert_eq!(play.claim("h", "").await, "mismatched");
    assert_eq!(play.claim("h", ", '1'").await, "mismatched");
    assert_eq!(play.show(&hashed("n", "a")).await, "mismatched");
    let both = ", '1', fingerprint => sha256('a')";
    assert_eq!(
        play.claim("h", both).await,
        "in_progress",
        "it decides alone"
    );
    play.show("update once.key set fingerprint = '\\x01'::bytea || sha256('z') where key = 'j'")
        .await;
    assert_eq!(
        play.show(&hashed("j", "z")).await,
        "mismatched",
        "the same bytes under another scheme"
    );
}

#[tokio::test]
async fn the_holder_of_a_live_lease_gets_its_token_again_and_nothing_is_written() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", ", holder => 'h'").await;
    play.clock("10 s").await;
    let stored = play.stored().await;
    let again = "select outcome, token, attempt, recovery_point, lease_left
                   from once.key_claim('s', 'k', holder => 'h', lease => '1 day')";
    assert_eq!(
        play.show(again).await,
        format!("claimed|{token}|1|started|00:00:50")
    );
    assert_eq!(play.stored().await, stored);
    assert_eq!(play.claim("k", ", holder => 'H'").await, "in_progress");
    assert_eq!(
        play.claim("k", "").await,
        "in_progress",
        "NULL matches nobody"
    );
    play.show(&format!(
        "select once.key_advance('s', 'k', {token}, 'paid')"
    ))
    .await;
    assert_eq!(
        play.show(again).await,
        format!("resumed|{token}|1|paid|00:01:00"),
        "something advanced"
    );
    play.clock("5 min").await;
    assert_eq!(play.claim("k", ", holder => 'h'").await, "resumed");
    assert!(
        play.token("k", ", holder => 'h'").await > token,
        "the lease ran out: a new attempt"
    );
    play.token("nobody", "").await;
    assert_eq!(
        play.claim("nobody", "").await,
        "in_progress",
        "NULL matches nobody"
    );
}

#[tokio::test]
async fn keys_of_two_scopes_and_keys_that_differ_in_one_byte_are_apart() {
    let play = Playground::open().await;
    for (scope, key) in [
        ("s", "k"),
        ("S", "k"),
        ("s", "K"),
        ("s", "k "),
        ("sk", ""),
        ("s", "é"),
        ("s", "e\u{301}"),
    ] {
        let key = if key.is_empty() { "-" } else { key };
        assert_eq!(
            play.show(&format!(
                "select outcome from once.key_claim('{scope}', '{key}')"
            ))
            .await,
            "claimed",
            "{scope}/{key}"
        );
    }
}

//! `key_take_abandoned`: it finds every abandoned key, wherever it stands and whenever it was committed,
//! and hands out nothing else.
//!
//! Most of this runs on the real clock, because under a pretended one sweeps read everything: an abandoned key is one
//! whose lease was a microsecond long.

use crate::playground::Playground;

const SHORT: &str = ", lease => '1 microsecond'";
const TAKE: &str = "select outcome, key from once.key_take_abandoned('s', 100)";

/// So many keys that were claimed and finished.
async fn finish_keys(play: &Playground, prefix: &str, count: u32) {
    play.show(&format!(
        "select count(once.key_complete('s', '{prefix}' || n, c.token, 200)::text)
           from generate_series(1, {count}) n,
                once.key_claim('s', '{prefix}' || n{SHORT}) c"
    ))
    .await;
}

async fn sweep(play: &Playground) {
    play.show("select once.sweep(task => 'key_abandon')").await;
}

/// What a take answers after a sweep.
async fn taken(play: &Playground) -> String {
    sweep(play).await;
    play.show(TAKE).await
}

#[tokio::test]
async fn a_take_claims_what_is_abandoned_and_leaves_out_everything_else() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.show(r#"select once.scope_set('s', '{"keep_request": true}')"#)
        .await;
    play.token("abandoned", &format!(r#", '{{"n": 1.50}}'{SHORT}"#))
        .await;
    let token = play.token("advanced", SHORT).await;
    play.show(&format!(
        "select once.key_advance('s', 'advanced', {token}, 'paid', '{{\"a\": 1}}', '1 microsecond')"
    ))
    .await;
    let token = play.token("released", "").await;
    play.show(&format!(
        "select once.key_release('s', 'released', {token})"
    ))
    .await;
    let token = play.token("not due", SHORT).await;
    play.show(&format!(
        "select once.key_release('s', 'not due', {token}, null, '1 day')"
    ))
    .await;
    let token = play.token("parked", SHORT).await;
    play.show(&format!(
        "select once.key_park('s', 'parked', {token}, 'x')"
    ))
    .await;
    let token = play.token("finished", SHORT).await;
    play.show(&format!(
        "select once.key_complete('s', 'finished', {token}, 200)"
    ))
    .await;
    play.token("alive", "").await;
    play.show("select once.key_claim('another scope', 'k', lease => '1 microsecond')")
        .await;
    let token = play.token("locked", SHORT).await;
    other
        .show(&format!(
            "begin; select once.key_extend('s', 'locked', {token}, '1 microsecond')"
        ))
        .await;
    sweep(&play).await;
    play.ask(
        "select outcome, token is not null, attempt, recovery_point, state, response_code,
                    response_body, response_headers, lease_left > '59 s' and lease_left <= '60 s',
                    retry_after, key, request from once.key_take_abandoned('s') order by key",
    )
    .is("resumed|t|2|started|~|~|~|~|t|~|abandoned|{\"n\": 1.50}\n\
         resumed|t|2|paid|{\"a\": 1}|~|~|~|t|~|advanced|~\n\
         resumed|t|2|started|~|~|~|~|t|~|released|~")
    .await;
    assert_eq!(taken(&play).await, "", "they have leases now");
    other.show("rollback").await;
    assert_eq!(taken(&play).await, "resumed|locked");
}

#[tokio::test]
async fn a_take_is_bounded_and_the_next_one_goes_on() {
    let play = Playground::open().await;
    for n in 0..5 {
        play.token(&format!("k{n}"), SHORT).await;
    }
    sweep(&play).await;
    let two = "select count(*) from once.key_take_abandoned('s', 2)";
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(play.show(two).await);
    }
    assert_eq!(counts, ["2", "2", "1", "0"]);
    play.ask("select count(*) from once.key_take_abandoned('nowhere')")
        .is("0")
        .await;
}

#[tokio::test]
async fn the_same_holder_asking_again_gets_its_live_keys_and_no_new_ones() {
    let play = Playground::open().await;
    play.token("a", SHORT).await;
    let take = "select key, token, attempt from once.key_take_abandoned('s', 10, '1 hour', 'h')";
    sweep(&play).await;
    let first = play.show(take).await;
    play.token("b", SHORT).await;
    sweep(&play).await;
    let stored = play.stored().await;
    assert_eq!(play.show(take).await, first);
    assert_eq!(play.stored().await, stored);
    assert!(
        play.show("select key from once.key_take_abandoned('s', 10, '1 hour', 'i')")
            .await
            == "b"
    );
    let token = first.split('|').nth(1).unwrap();
    play.show(&format!("select once.key_complete('s', 'a', {token}, 200)"))
        .await;
    play.token("c", SHORT).await;
    sweep(&play).await;
    assert!(
        play.show(take).await.starts_with("c|"),
        "it has none left: it gets new ones"
    );
}

#[tokio::test]
async fn two_completers_at_once_never_get_the_same_key_and_never_wait() {
    let play = Playground::open().await;
    let other = play.another().await;
    for key in ["a", "b", "c"] {
        play.token(key, SHORT).await;
    }
    sweep(&play).await;
    play.show("begin").await;
    play.ask("select key from once.key_take_abandoned('s', 2)")
        .is("a\nb")
        .await;
    assert_eq!(taken(&other).await, "resumed|c");
    play.show("rollback").await;
    assert_eq!(
        taken(&other).await,
        "resumed|a\nresumed|b",
        "a take that was rolled back took nothing"
    );
}

#[tokio::test]
async fn an_abandoned_key_behind_thousands_of_finished_ones_is_found_on_each_kind_of_poll() {
    let play = Playground::open().await;
    finish_keys(&play, "before ", 2500).await;
    play.token("first", SHORT).await;
    finish_keys(&play, "after ", 2500).await;
    assert_eq!(taken(&play).await, "resumed|first");
    play.token("second", SHORT).await;
    assert_eq!(taken(&play).await, "resumed|second");
    play.token("third", SHORT).await;
    finish_keys(&play, "more ", 100).await;
    let in_one = "begin isolation level repeatable read; select count(*) from once.key;
                  select once.sweep(task => 'key_abandon'); select key from once.key_take_abandoned('s')";
    assert_eq!(play.show(in_one).await, "third");
    play.show("commit").await;
    play.clock("10 min").await;
    let keys = play
        .show("select string_agg(key, ' ' order by key) from once.key_take_abandoned('s')")
        .await;
    assert_eq!(
        keys, "first second third",
        "the leases that the takes gave, in pretended time"
    );
}

#[tokio::test]
async fn keys_that_are_abandoned_again_and_again_are_found_each_time() {
    let play = Playground::open().await;
    let mut token = play.token("k", SHORT).await;
    for round in 0..6 {
        finish_keys(&play, &format!("round {round} "), 80).await;
        sweep(&play).await;
        let token_now = play
            .show("select token from once.key_take_abandoned('s', 10, '1 microsecond')")
            .await;
        let next: i64 = token_now.parse().unwrap();
        assert!(next > token);
        token = next;
        if round % 2 == 0 {
            play.show(&format!("select once.key_release('s', 'k', {token})"))
                .await;
        }
    }
}

#[tokio::test]
async fn an_extended_lease_is_left_alone_and_found_when_it_has_run_out() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", ", lease => '1 min'").await;
    play.clock("59 s").await;
    play.show(&format!(
        "select once.key_extend('s', 'k', {token}, '1 hour')"
    ))
    .await;
    for minutes in [1, 30, 60] {
        play.clock(&format!("{minutes} min")).await;
        assert_eq!(taken(&play).await, "");
    }
    play.clock("61 min").await;
    assert_eq!(taken(&play).await, "resumed|k");
}

#[tokio::test]
async fn a_lease_that_its_holder_made_shorter_is_found_when_it_has_run_out() {
    let play = Playground::open().await;
    let token = play.token("extended", ", lease => '1 hour'").await;
    play.show(&format!(
        "select once.key_extend('s', 'extended', {token}, '1 microsecond')"
    ))
    .await;
    assert_eq!(taken(&play).await, "resumed|extended");
    let token = play.token("advanced", ", lease => '1 hour'").await;
    play.show(&format!(
        "select once.key_advance('s', 'advanced', {token}, 'p', null, '1 microsecond')"
    ))
    .await;
    assert_eq!(taken(&play).await, "resumed|advanced");
}

#[tokio::test]
async fn keys_that_the_options_park_are_found_when_the_options_change() {
    let play = Playground::open().await;
    play.token("expired", SHORT).await;
    play.token("used up", SHORT).await;
    play.show(r#"select once.scope_set('s', '{"on_expiry": "park"}')"#)
        .await;
    assert_eq!(taken(&play).await, "");
    play.show(r#"select once.scope_set('s', '{"on_expiry": null, "max_attempts": 1}')"#)
        .await;
    assert_eq!(taken(&play).await, "");
    play.show(r#"select once.scope_set('s', '{"max_attempts": null}')"#)
        .await;
    assert_eq!(taken(&play).await, "resumed|expired\nresumed|used up");
}

#[tokio::test]
async fn a_verdict_retry_puts_a_parked_key_back_into_the_intake() {
    let play = Playground::open().await;
    let token = play.token("k", "").await;
    play.show(&format!("select once.key_park('s', 'k', {token}, 'x')"))
        .await;
    sweep(&play).await;
    play.show("select once.key_resolve('s', 'k', 1, 'retry')")
        .await;
    assert_eq!(taken(&play).await, "resumed|k");
}

#[tokio::test]
async fn a_request_is_kept_only_where_the_scope_says_so() {
    let play = Playground::open().await;
    play.token("before", &format!(", '1'{SHORT}")).await;
    play.show(r#"select once.scope_set('s', '{"keep_request": true}')"#)
        .await;
    play.token("kept", &format!(r#", '{{"b":1,"a":[1.0, null]}}'{SHORT}"#))
        .await;
    play.show("select once.key_claim('s', 'hashed', '{\"c\":  3}', fingerprint => sha256('x'), lease => '1 microsecond')")
        .await;
    sweep(&play).await;
    play.ask("select key, request from once.key_take_abandoned('s') order by key")
        .is("before|~\nhashed|{\"c\":  3}\nkept|{\"b\":1,\"a\":[1.0, null]}")
        .await;
}

#[tokio::test]
async fn a_lease_that_ran_out_is_found_after_the_next_sweep_and_a_released_key_at_once() {
    let play = Playground::open().await;
    play.token("expired", SHORT).await;
    let token = play.token("released", "").await;
    play.show(&format!(
        "select once.key_release('s', 'released', {token})"
    ))
    .await;
    assert_eq!(play.show(TAKE).await, "resumed|released");
    assert_eq!(taken(&play).await, "resumed|expired");
}

#[tokio::test]
async fn a_take_never_waits_for_a_change_of_options() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.token("parked by option", SHORT).await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": 1}')"#)
        .await;
    let token = play.token("released", "").await;
    play.show("select once.scope_set('s', '{\"max_attempts\": 2}')")
        .await;
    play.show(&format!(
        "select once.key_release('s', 'released', {token})"
    ))
    .await;
    play.show("select once.scope_set('s', '{\"on_expiry\": \"park\"}')")
        .await;
    other
        .show(r#"begin; select once.scope_set('s', '{"on_expiry": null}')"#)
        .await;
    sweep(&play).await;
    play.show("set statement_timeout = '20s'").await;
    assert_eq!(play.show(TAKE).await, "resumed|released");
    other.show("commit").await;
    // Deferred under the options of before: it comes back by itself.
    let soon = "select look_at < clock_timestamp() + interval '11 s' from once.key where key = 'parked by option'";
    assert_eq!(play.show(soon).await, "t");
    play.show("update once.key set look_at = look_at - interval '11 s'")
        .await;
    assert_eq!(play.show(TAKE).await, "resumed|parked by option");
}

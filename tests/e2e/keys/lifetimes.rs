//! What time does to a key: ttl, gone_for and new again; leases that run out, attempts that are used up,
//! and parkings that stay.

use crate::outcomes::claim_of;
use crate::playground::Playground;

#[tokio::test]
async fn the_ttl_runs_from_the_finish_and_is_fixed_by_the_first_claim() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", ", ttl => '1 hour'").await;
    play.show(r#"select once.scope_set('s', '{"ttl": "1 s", "gone_for": "2 hours"}')"#)
        .await;
    play.clock("3 days").await;
    play.show(&format!("select once.key_complete('s', 'k', {token}, 200)"))
        .await;
    play.clock("3 days 00:59:59.999999").await;
    assert_eq!(play.claim("k", ", ttl => '1 s'").await, "replayed");
    play.clock("3 days 01:00").await;
    assert_eq!(play.claim("k", "").await, "gone");
    play.clock("3 days 02:59:59.999999").await;
    assert_eq!(play.claim("k", "").await, "gone");
    play.clock("3 days 03:00").await;
    assert_eq!(
        play.show(&claim_of("'s', 'k', '\"other\"'")).await,
        "claimed|t|1|started|~|~|~|~|00:01:00|~",
        "new, with any request"
    );
}

#[tokio::test]
async fn with_gone_for_zero_an_expired_key_is_new_at_once() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"gone_for": "0", "ttl": "1 min"}')"#)
        .await;
    play.clock("0").await;
    let token = play.token("k", "").await;
    play.show(&format!("select once.key_complete('s', 'k', {token}, 200)"))
        .await;
    play.clock("59 s").await;
    assert_eq!(play.claim("k", "").await, "replayed");
    play.clock("60 s").await;
    assert!(
        play.token("k", ", '1'").await > token,
        "tokens grow over the key's lives, too"
    );
}

#[tokio::test]
async fn a_key_that_is_new_again_has_lost_its_state_steps_and_attempts() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", ", '1', ttl => '1 s', holder => 'h'").await;
    play.show(&format!(
        "begin; select once.key_step('s', 'k', {token}, 'pay');
         select once.key_rotate('s', 'k', {token}, 'pay', 1);
         select once.key_advance('s', 'k', {token}, 'paid', '7');
         select once.key_complete('s', 'k', {token}, 200); commit"
    ))
    .await;
    play.clock("2 days").await;
    play.ask(&claim_of("'s', 'k'"))
        .is("claimed|t|1|started|~|~|~|~|00:01:00|~")
        .await;
    play.ask(
        "select status, attempt, holder, recovery_point, state, steps, response_code,
                          request, last_error, finished_at, gone_at from once.key_get('s', 'k')",
    )
    .is("running|1|~|started|~|[]|~|~|~|~|~")
    .await;
}

#[tokio::test]
async fn a_lease_that_ran_out_parks_where_the_scope_says_so() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", "").await;
    play.show(r#"select once.scope_set('s', '{"on_expiry": "park"}')"#)
        .await;
    play.clock("59 s").await;
    assert_eq!(play.claim("k", "").await, "in_progress");
    play.clock("60 s").await;
    let stored = play.stored().await;
    play.ask(&claim_of("'s', 'k'"))
        .is("parked|f|1|~|~|~|~|~|~|~")
        .await;
    assert_eq!(play.stored().await, stored, "computed, never written");
    play.ask("select status from once.key_get('s', 'k')")
        .is("parked")
        .await;
    // Until a verdict the last holder may still write, which ends the parking.
    play.show(&format!("select once.key_extend('s', 'k', {token})"))
        .await;
    assert_eq!(play.claim("k", "").await, "in_progress");
    play.clock("10 min").await;
    assert_eq!(play.claim("k", "").await, "parked");
    play.show(r#"select once.scope_set('s', '{"on_expiry": null}')"#)
        .await;
    assert_eq!(
        play.claim("k", "").await,
        "resumed",
        "the present options decide"
    );
}

#[tokio::test]
async fn a_released_key_is_not_parked_by_the_expiry_of_its_lease() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"on_expiry": "park"}')"#)
        .await;
    play.clock("0").await;
    let token = play.token("k", "").await;
    play.show(&format!("select once.key_release('s', 'k', {token})"))
        .await;
    play.clock("1 day").await;
    assert_eq!(play.claim("k", "").await, "resumed");
}

#[tokio::test]
async fn after_max_attempts_a_key_is_parked_and_the_verdict_retry_counts_anew() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": 2}')"#)
        .await;
    play.clock("0").await;
    play.token("k", "").await;
    play.clock("1 h").await;
    let second = play.token("k", "").await;
    play.clock("2 h").await;
    play.ask(&claim_of("'s', 'k'"))
        .is("parked|f|2|~|~|~|~|~|~|~")
        .await;
    play.show(&format!(
        "select once.key_release('s', 'k', {second}, null, '1 h')"
    ))
    .await;
    assert_eq!(
        play.claim("k", "").await,
        "parked",
        "released and not due, but used up"
    );
    play.show("select once.key_resolve('s', 'k', 2, 'retry')")
        .await;
    for attempt in 3..5 {
        let claimed = play
            .show("select outcome, attempt from once.key_claim('s', 'k')")
            .await;
        assert_eq!(claimed, format!("resumed|{attempt}"));
        play.clock(&format!("{attempt} h")).await;
    }
    play.ask(&claim_of("'s', 'k'"))
        .is("parked|f|4|~|~|~|~|~|~|~")
        .await;
}

#[tokio::test]
async fn without_a_setting_the_25th_attempt_is_the_last_and_null_means_no_limit() {
    let play = Playground::open().await;
    for _ in 0..25 {
        play.token("k", ", lease => '1 microsecond'").await;
    }
    play.ask(&claim_of("'s', 'k'"))
        .is("parked|f|25|~|~|~|~|~|~|~")
        .await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": null}')"#)
        .await;
    for _ in 0..30 {
        play.token("k", ", lease => '1 microsecond'").await;
    }
    play.ask("select outcome, attempt from once.key_claim('s', 'k')")
        .is("resumed|56")
        .await;
}

#[tokio::test]
async fn a_parked_key_stays_parked_until_its_verdict() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", ", holder => 'h'").await;
    play.show(&format!(
        "select once.key_park('s', 'k', {token}, 'the bank timed out')"
    ))
    .await;
    play.clock("10 years").await;
    let stored = play.stored().await;
    play.ask(&claim_of("'s', 'k', holder => 'h'"))
        .is("parked|f|1|~|~|~|~|~|~|~")
        .await;
    assert_eq!(play.stored().await, stored);
    play.show("select once.key_resolve('s', 'k', 1, 'complete', 200, '\"paid\"')")
        .await;
    play.ask(&claim_of("'s', 'k'"))
        .is("replayed|f|~|~|~|200|\"paid\"|~|~|~")
        .await;
}

//! What people see and do: key_get of each status, key_forget, key_resolve's preconditions, and derived
//! keys, which never change but by key_rotate.

use crate::playground::Playground;

const GET: &str = "select status, attempt, holder, recovery_point, state, response_code, response_body,
                          response_headers, request, last_error, lease_left from once.key_get('s', 'k')";

#[tokio::test]
async fn key_get_tells_each_status_and_never_a_token() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"keep_request": true, "ttl": "1 h"}')"#)
        .await;
    assert_eq!(play.show(GET).await, "", "no row for a missing key");
    play.clock("0").await;
    let token = play.token("k", ", '7', holder => 'h'").await;
    play.clock("10 s").await;
    play.show(&format!(
        "select once.key_advance('s', 'k', {token}, 'paid', '{{}}', '20 s')"
    ))
    .await;
    play.ask(GET)
        .is("running|1|h|paid|{}|~|~|~|7|~|00:00:20")
        .await;
    play.clock("40 s").await;
    assert_eq!(
        play.show(GET).await,
        "running|1|h|paid|{}|~|~|~|7|~|-00:00:10",
        "the lease ran out"
    );
    play.show(&format!(
        "select once.key_release('s', 'k', {token}, 'bank away', '1 s')"
    ))
    .await;
    play.ask(GET)
        .is("released|1|h|paid|{}|~|~|~|7|bank away|~")
        .await;
    play.clock("1 min").await;
    play.ask(GET)
        .is("released|1|h|paid|{}|~|~|~|7|bank away|~")
        .await;
    let token = play.token("k", ", '7', holder => 'i'").await;
    play.show(&format!(
        "select once.key_park('s', 'k', {token}, 'timed out')"
    ))
    .await;
    play.ask(GET)
        .is("parked|2|i|paid|{}|~|~|~|7|timed out|~")
        .await;
    play.show("select once.key_resolve('s', 'k', 2, 'abort', 502, '[ ]', '{ }')")
        .await;
    play.ask(GET)
        .is("finished|2|i|paid|{}|502|[ ]|{ }|7|timed out|~")
        .await;
    let times = "select created_at - '2030-01-01+00', finished_at - '2030-01-01+00', gone_at - '2030-01-01+00'
                   from once.key_get('s', 'k')";
    assert_eq!(play.show(times).await, "00:00:00|00:01:00|01:01:00");
    play.clock("61 min").await;
    let gone = play.show(GET).await;
    assert!(
        gone.starts_with("gone|2|") && gone.contains("|paid|~|~|~|~|~|"),
        "{gone}"
    );
    play.ask("select steps from once.key_get('s', 'k')")
        .is("[]")
        .await;
    assert_eq!(play.show(times).await, "00:00:00|00:01:00|01:01:00");
    play.clock("26 h").await;
    assert_eq!(
        play.show(GET).await,
        "",
        "past gone_for it is as if never claimed"
    );
    let columns = play.show(
        "select * from once.key_get('s', 'k') union all select * from once.key_get('s', 'k')",
    );
    assert_eq!(columns.await, "");
    let outs = play
        .show("select array_to_string(proargnames, ' ') from pg_proc where proname = 'key_get'")
        .await;
    assert!(!outs.contains("token"), "{outs}");
}

/// A defect once: what key_get and key_resolve told of a gone key depended on the sweep.
#[tokio::test]
async fn what_is_told_of_a_gone_key_does_not_depend_on_the_sweep() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", ", '1', ttl => '1 h', holder => 'h'").await;
    play.show(&format!("select once.key_step('s', 'k', {token}, 'pay')"))
        .await;
    play.show(&format!(
        "select once.key_advance('s', 'k', {token}, 'paid', '{{}}')"
    ))
    .await;
    play.show(&format!("select once.key_park('s', 'k', {token}, 'why')"))
        .await;
    play.show("select once.key_resolve('s', 'k', 1, 'complete', 200, to_json(repeat('x', 900)))")
        .await;
    play.clock("2 h").await;
    let mut told = Vec::new();
    for _ in 0..2 {
        told.push((
            play.show("select * from once.key_get('s', 'k')").await,
            play.claim("k", ", '1'").await,
            play.claim("k", ", '2'").await,
            play.attempt(
                "select once.key_resolve('s', 'k', 1, 'complete', 200, to_json(repeat('x', 900)))",
            )
            .await
            .map_err(|r| r.code),
            play.attempt("select once.key_resolve('s', 'k', 1, 'retry')")
                .await
                .map_err(|r| r.code),
            play.code("select once.key_resolve('s', 'k', 2, 'retry')")
                .await,
            play.code(&format!("select once.key_extend('s', 'k', {token})"))
                .await,
            play.show("select once.key_derive('s', 'k', 'pay')").await,
        ));
        play.show("select * from once.sweep()").await;
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(
        play.show("select status from once.key where key = 'k'")
            .await,
        "g",
        "the sweep was there"
    );
}

/// A defect once: the sweep counted a month and a day by the calendar, the claim as 30 days and 24 hours.
#[tokio::test]
async fn a_tombstone_stands_until_gone_for_ends_whatever_the_calendar_and_time_zone_say() {
    let play = Playground::open().await;
    play.show("set timezone = 'America/New_York'").await;
    // February has 28 days; on 10 March 2030 a day in New York has 23 hours.
    for (finished, option, hours) in [(31 * 24, "1 mon", 30 * 24), (67 * 24 + 17, "1 day", 24)] {
        play.show(&format!(
            r#"select once.scope_set('s', '{{"gone_for": "{option}", "ttl": "1 min"}}')"#
        ))
        .await;
        play.clock(&format!("{finished} h")).await;
        let token = play.token(option, "").await;
        play.show(&format!(
            "select once.key_complete('s', '{option}', {token}, 200)"
        ))
        .await;
        for (minutes, outcome) in [(0, "gone"), (1, "claimed")] {
            play.clock(&format!("{} h {minutes} min", finished + hours))
                .await;
            for _ in 0..2 {
                play.show("select * from once.sweep()").await;
            }
            assert_eq!(play.claim(option, "").await, outcome, "{option}");
        }
    }
}

/// A defect once: its SQL text relied on the session's way of reading backslashes.
#[tokio::test]
async fn key_get_works_where_strings_do_not_conform_to_the_standard() {
    let play = Playground::open().await;
    let token = play.token("k", "").await;
    play.show(&format!("select once.key_step('s', 'k', {token}, 'pay')"))
        .await;
    let session = play.another().await;
    session
        .show("set standard_conforming_strings = off; set backslash_quote = off; set quote_all_identifiers = on;
               set bytea_output = 'escape'; set intervalstyle = 'sql_standard'; set datestyle = 'German';
               set timezone = 'Asia/Kolkata'; set xmlbinary = hex; set extra_float_digits = -15;
               set transform_null_equals = on; set plan_cache_mode = force_generic_plan;
               set row_security = off")
        .await;
    let steps = "select steps::jsonb -> 0 ->> 'derived_key' = once.key_derive('s', 'k', 'pay') from once.key_get('s', 'k')";
    assert_eq!(session.show(steps).await, "t");
    session
        .show(r#"select once.scope_set('s', '{"lease": "-1 day +25:00:00", "max_attempts": 3}')"#)
        .await;
    session
        .ask("select once.scope_get('s') ->> 'max_attempts'")
        .is("3")
        .await;
    assert_eq!(
        session.show("select count(*) from once.sweep()").await,
        "10"
    );
}

#[tokio::test]
async fn key_expire_ends_the_lease_of_a_dead_holder_and_only_that() {
    let play = Playground::open().await;
    let expire = "select once.key_expire('s', 'k')";
    assert_eq!(play.show(expire).await, "f");
    let dead = play.token("k", ", lease => '6 h'").await;
    let claim = "select outcome, attempt from once.key_claim('s', 'k')";
    assert_eq!(play.show(claim).await, "in_progress|~");
    assert_eq!(play.show(expire).await, "t");
    assert_eq!(play.show(expire).await, "f");
    // Until the next claim the holder may still write; its heartbeat renews the lease.
    play.show(&format!("select once.key_extend('s', 'k', {dead}, '6 h')"))
        .await;
    assert_eq!(play.show(claim).await, "in_progress|~");
    assert_eq!(play.show(expire).await, "t");
    assert_eq!(play.show(claim).await, "resumed|2");
    let late = format!("select once.key_complete('s', 'k', {dead}, 200)");
    assert_eq!(play.code(&late).await, "ON001");
    // A completer finds it after one sweep.
    play.show("select once.key_claim('s', 'other', lease => '6 h'); select once.key_expire('s', 'other'); select once.sweep()")
        .await;
    let take = "select key from once.key_take_abandoned('s')";
    assert_eq!(play.show(take).await, "other");
    // A released key becomes due at once.
    let token = play.token("later", "").await;
    play.show(&format!(
        "select once.key_release('s', 'later', {token}, 'e', '30 days')"
    ))
    .await;
    let claim = "select outcome from once.key_claim('s', 'later')";
    assert_eq!(play.show(claim).await, "in_progress");
    assert_eq!(play.show("select once.key_expire('s', 'later')").await, "t");
    assert_eq!(play.show("select once.key_expire('s', 'later')").await, "f");
    assert_eq!(play.show(take).await, "later");
    // A finished key has no lease.
    let token = play.token("done", "").await;
    play.show(&format!(
        "select once.key_complete('s', 'done', {token}, 200)"
    ))
    .await;
    assert_eq!(play.show("select once.key_expire('s', 'done')").await, "f");
}

#[tokio::test]
async fn key_forget_deletes_a_key_with_its_steps_but_not_a_live_lease() {
    let play = Playground::open().await;
    assert_eq!(play.show("select once.key_forget('s', 'k')").await, "f");
    play.clock("0").await;
    let token = play.token("k", "").await;
    play.show(&format!("select once.key_step('s', 'k', {token}, 'pay')"))
        .await;
    let alive = play.refused("select once.key_forget('s', 'k')").await;
    alive.tells("55006", &["\"k\""], "key_forget");
    play.clock("1 min").await;
    assert_eq!(play.show("select once.key_forget('s', 'k')").await, "t");
    assert_eq!(play.stored().await, "", "nothing is left of it");
    assert_eq!(play.show("select once.key_forget('s', 'k')").await, "f");
    play.ask(&format!("select once.key_extend('s', 'k', {token})"))
        .fails("ON001")
        .await;
    for end in [
        "key_release('s', 'k', $)",
        "key_park('s', 'k', $, 'x')",
        "key_complete('s', 'k', $, 200)",
    ] {
        let token = play.token("k", ", '1'").await.to_string();
        play.show(&format!("select once.{}", end.replace('$', &token)))
            .await;
        assert_eq!(
            play.show("select once.key_forget('s', 'k')").await,
            "t",
            "{end}"
        );
    }
    let both =
        "begin; select once.key_complete('s', 'k', c.token, 200) from once.key_claim('s', 'k') c;
                select once.key_forget('s', 'k'), c.outcome from once.key_claim('s', 'k') c; commit;
                select count(*) from once.key";
    assert_eq!(
        play.show(both).await,
        "0",
        "claimed, finished and forgotten in one transaction"
    );
    assert_eq!(play.claim("k", ", '2'").await, "claimed");
}

#[tokio::test]
async fn a_forgotten_key_that_is_claimed_again_gets_a_larger_token() {
    let play = Playground::open().await;
    let first = play.token("k", ", lease => '1 microsecond'").await;
    play.show("select once.key_forget('s', 'k')").await;
    let second = play.token("k", "").await;
    assert!(second > first);
    play.ask(&format!("select once.key_complete('s', 'k', {first}, 200)"))
        .fails("ON001")
        .await;
}

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
    assert_eq!(
        play.show(GET).await,
        "running|1|h|paid|{}|~|~|~|7|~|00:00:20"
    );
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
    assert_eq!(
        play.show(GET).await,
        "released|1|h|paid|{}|~|~|~|7|bank away|~"
    );
    play.clock("1 min").await;
    assert_eq!(
        play.show(GET).await,
        "released|1|h|paid|{}|~|~|~|7|bank away|~"
    );
    let token = play.token("k", ", '7', holder => 'i'").await;
    play.show(&format!(
        "select once.key_park('s', 'k', {token}, 'timed out')"
    ))
    .await;
    assert_eq!(
        play.show(GET).await,
        "parked|2|i|paid|{}|~|~|~|7|timed out|~"
    );
    play.show("select once.key_resolve('s', 'k', 2, 'abort', 502, '[ ]', '{ }')")
        .await;
    assert_eq!(
        play.show(GET).await,
        "finished|2|i|paid|{}|502|[ ]|{ }|7|timed out|~"
    );
    let times = "select created_at - '2030-01-01+00', finished_at - '2030-01-01+00', gone_at - '2030-01-01+00'
                   from once.key_get('s', 'k')";
    assert_eq!(play.show(times).await, "00:00:00|00:01:00|01:01:00");
    play.clock("61 min").await;
    let gone = play.show(GET).await;
    assert!(
        gone.starts_with("gone|2|") && gone.contains("|paid|~|~|~|~|~|"),
        "{gone}"
    );
    assert_eq!(
        play.show("select steps from once.key_get('s', 'k')").await,
        "[]"
    );
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
    play.show("select once.key_resolve('s', 'k', 1, 'complete', 200, '1')")
        .await;
    play.clock("2 h").await;
    let mut told = Vec::new();
    for _ in 0..2 {
        told.push((
            play.show("select * from once.key_get('s', 'k')").await,
            play.claim("k", ", '1'").await,
            play.claim("k", ", '2'").await,
            play.attempt("select once.key_resolve('s', 'k', 1, 'complete', 200, '1')")
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

#[tokio::test]
async fn key_get_lists_the_steps_with_the_derived_keys_that_were_sent() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", "").await;
    let mut sent = Vec::new();
    for step in ["zahlung ✓", "mail"] {
        play.clock(&format!("{} s", sent.len())).await;
        sent.push(
            play.show(&format!(
                "select derived_key from once.key_step('s', 'k', {token}, '{step}')"
            ))
            .await,
        );
    }
    play.show(&format!(
        "select once.key_step_done('s', 'k', {token}, 'zahlung ✓', '{{\"id\": 1}}')"
    ))
    .await;
    play.show(&format!(
        "select once.key_rotate('s', 'k', {token}, 'mail', 1)"
    ))
    .await;
    play.show(&format!(
        "select once.key_step_done('s', 'k', {token}, 'never begun')"
    ))
    .await;
    let listed = play
        .show(
            "select string_agg(concat_ws('|', e ->> 'step', e ->> 'done', coalesce(e ->> 'result', '~'),
                                         e ->> 'version', e ->> 'begun', e ->> 'first_at' is not null,
                                         e ->> 'done_at' is not null), ' / ')
               from once.key_get('s', 'k') g, json_array_elements(g.steps) e",
        )
        .await;
    assert!(
        listed.contains("zahlung ✓|true|{\"id\": 1}|1|1|t|t"),
        "{listed}"
    );
    assert!(listed.contains("mail|false|~|2|0|f|f"), "{listed}");
    assert!(listed.contains("never begun|true|~|1|0|f|t"), "{listed}");
    let derived = "select bool_and(e ->> 'derived_key' = once.key_derive('s', 'k', e ->> 'step'))
                     from once.key_get('s', 'k') g, json_array_elements(g.steps) e";
    assert_eq!(play.show(derived).await, "t");
    assert_eq!(
        play.show("select once.key_derive('s', 'k', 'zahlung ✓')")
            .await,
        sent[0]
    );
    assert_ne!(
        play.show("select once.key_derive('s', 'k', 'mail')").await,
        sent[1],
        "rotated"
    );
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
    assert_eq!(
        session
            .show("select once.scope_get('s') ->> 'max_attempts'")
            .await,
        "3"
    );
    assert_eq!(session.show("select count(*) from once.sweep()").await, "2");
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
    assert_eq!(alive.code, "55006");
    assert!(
        alive.message.contains("\"k\"") && !alive.hint.is_empty(),
        "{alive:?}"
    );
    play.clock("1 min").await;
    assert_eq!(play.show("select once.key_forget('s', 'k')").await, "t");
    assert_eq!(play.stored().await, "", "nothing is left of it");
    assert_eq!(play.show("select once.key_forget('s', 'k')").await, "f");
    assert_eq!(
        play.code(&format!("select once.key_extend('s', 'k', {token})"))
            .await,
        "ON001"
    );
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
    assert_eq!(
        play.code(&format!("select once.key_complete('s', 'k', {first}, 200)"))
            .await,
        "ON001"
    );
}

#[tokio::test]
async fn derived_keys_are_pure_and_the_same_on_every_attempt_and_after_a_reap() {
    let play = Playground::open().await;
    let derive = "select once.key_derive('s', 'k', 'pay')";
    let before = play.show(derive).await;
    assert!(before.is_ascii() && before.len() <= 255, "{before}");
    play.clock("0").await;
    let token = play.token("k", ", ttl => '1 s'").await;
    let step =
        |token: i64| format!("select derived_key from once.key_step('s', 'k', {token}, 'pay')");
    assert_eq!(play.show(&step(token)).await, before);
    play.clock("1 h").await;
    let token = play.token("k", "").await;
    assert_eq!(play.show(&step(token)).await, before);
    play.show(&format!("select once.key_complete('s', 'k', {token}, 200)"))
        .await;
    play.clock("1 year").await;
    for _ in 0..2 {
        play.show("select * from once.sweep()").await;
    }
    assert_eq!(play.stored().await, "", "reaped");
    assert_eq!(play.show(derive).await, before);
    let token = play.token("k", ", '\"other\"'").await;
    assert_eq!(play.show(&step(token)).await, before);
    let other = Playground::open().await;
    assert_eq!(other.show(derive).await, before, "in any database");
    for different in [
        "'s', 'k', 'pay2'",
        "'s', 'k2', 'pay'",
        "'s2', 'k', 'pay'",
        "'s', 'kpay', 'p'",
        "'sk', 'p', 'ay'",
    ] {
        assert_ne!(
            play.show(&format!("select once.key_derive({different})"))
                .await,
            before
        );
    }
}

#[tokio::test]
async fn a_rotated_step_gets_a_new_derived_key_and_counts_its_beginnings_anew() {
    let play = Playground::open().await;
    play.clock("0").await;
    let first = play.token("k", "").await;
    let step = |token: i64, step: &str| {
        format!(
            "select done, attempted, first_at is null, derived_key from once.key_step('s', 'k', {token}, '{step}')"
        )
    };
    let begun = play.show(&step(first, "pay")).await;
    let mail = play.show(&step(first, "mail")).await;
    assert_eq!(
        play.show(&format!(
            "select once.key_rotate('s', 'k', {first}, 'pay', 1)"
        ))
        .await,
        "2"
    );
    let rotated = play.show(&step(first, "pay")).await;
    assert!(
        rotated.starts_with("f|0|t|") && rotated != begun,
        "{rotated}"
    );
    assert_eq!(
        play.show(&step(first, "mail")).await,
        mail,
        "that step alone"
    );
    play.clock("1 h").await;
    let second = play.token("k", "").await;
    let again = play.show(&step(second, "pay")).await;
    assert_eq!(
        again,
        rotated.replace("f|0|t", "f|1|f"),
        "the same version on the next attempt"
    );
    let refused = play
        .refused(&format!(
            "select once.key_rotate('s', 'k', {second}, 'pay', 3)"
        ))
        .await;
    assert_eq!(refused.code, "22023");
    assert!(refused.message.contains("from_version"), "{refused:?}");
    play.show(&format!(
        "select once.key_step_done('s', 'k', {second}, 'pay')"
    ))
    .await;
    let done = play
        .refused(&format!(
            "select once.key_rotate('s', 'k', {second}, 'pay', 2)"
        ))
        .await;
    assert_eq!(done.code, "22023");
    assert!(done.message.contains("pay"), "{done:?}");
}

#[tokio::test]
async fn a_step_tells_how_often_earlier_attempts_began_it_without_an_end() {
    let play = Playground::open().await;
    let ask = |token: i64| {
        format!(
            "select done, result, attempted, first_at - '2030-01-01+00' from once.key_step('s', 'k', {token}, 'pay')"
        )
    };
    let mut token = 0;
    for attempt in 0..3 {
        play.clock(&format!("{attempt} h")).await;
        token = play.token("k", "").await;
        let first = if attempt == 0 { "~" } else { "00:00:00" };
        for _ in 0..2 {
            assert_eq!(
                play.show(&ask(token)).await,
                format!("f|~|{attempt}|{first}")
            );
        }
    }
    play.show(&format!(
        "select once.key_step_done('s', 'k', {token}, 'pay', '[ 1 ]')"
    ))
    .await;
    play.clock("4 h").await;
    let token = play.token("k", "").await;
    assert_eq!(play.show(&ask(token)).await, "t|[ 1 ]|0|~");
    assert_eq!(
        play.show(&format!(
            "select * from once.key_step_done('s', 'k', {token}, 'pay', '2')"
        ))
        .await,
        "f|[ 1 ]",
        "the first write wins"
    );
    assert_eq!(
        play.show(&format!(
            "select * from once.key_step_done('s', 'k', {token}, 'unbegun', '2')"
        ))
        .await,
        "t|2"
    );
}

#[tokio::test]
async fn a_verdict_is_refused_unless_the_key_is_parked_now() {
    let play = Playground::open().await;
    play.clock("0").await;
    let resolve =
        |attempt: i32, more: &str| format!("select once.key_resolve('s', 'k', {attempt}, {more})");
    assert_eq!(
        play.code(&resolve(1, "'retry'")).await,
        "ON001",
        "no such key"
    );
    let token = play.token("k", "").await;
    let held = play.refused(&resolve(1, "'retry'")).await;
    assert_eq!(held.code, "55006");
    assert!(
        held.message.contains("\"k\"") && !held.hint.is_empty(),
        "{held:?}"
    );
    play.clock("1 h").await;
    assert_eq!(
        play.code(&resolve(1, "'retry'")).await,
        "55006",
        "abandoned is not parked"
    );
    play.show(&format!("select once.key_park('s', 'k', {token}, 'x')"))
        .await;
    assert_eq!(play.code(&resolve(2, "'retry'")).await, "ON001");
    assert_eq!(play.code(&resolve(0, "'complete', 200")).await, "ON001");
    play.show(&resolve(1, "'retry'")).await;
    assert_eq!(
        play.show("select outcome, attempt from once.key_claim('s', 'k')")
            .await,
        "resumed|2"
    );
    play.show(r#"select once.scope_set('s', '{"on_expiry": "park"}')"#)
        .await;
    play.clock("2 h").await;
    play.show(&resolve(2, "'complete', 200, '\"by hand\"', '{}'"))
        .await;
    assert_eq!(
        play.show("select outcome, response_code, response_body, response_headers from once.key_claim('s', 'k')").await,
        "replayed|200|\"by hand\"|{}",
        "parked by its options, which key_claim computes"
    );
    assert_eq!(play.code(&resolve(3, "'retry'")).await, "55006", "finished");
}

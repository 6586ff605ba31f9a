//! Options of a scope: each one, each bad value, what null does, and what recovery points allow.

use crate::playground::Playground;

const DEFAULTS: &str = r#"{"ttl": "24:00:00", "lease": "00:01:00", "owner": null, "gone_for": "24:00:00", "on_expiry": "resume", "retry_after": "00:00:01", "keep_request": false, "max_attempts": 25, "max_lease_life": "24:00:00", "recovery_points": null}"#;

async fn set(play: &Playground, options: &str) -> String {
    play.show(&format!("select once.scope_set('s', '{options}')"))
        .await
}

#[tokio::test]
async fn a_scope_needs_no_declaration_and_shows_the_defaults() {
    let play = Playground::open().await;
    assert_eq!(play.show("select once.scope_get('s')").await, DEFAULTS);
    play.show("set once.key_lease = '5s'; set once.key_ttl = '2h'")
        .await;
    let shown = play.show("select once.scope_get('s')").await;
    assert!(
        shown.contains(r#""lease": "00:00:05""#) && shown.contains(r#""ttl": "02:00:00""#),
        "{shown}"
    );
    assert_eq!(play.stored().await, "");
}

#[tokio::test]
async fn setting_changes_only_what_is_named_and_null_resets_one() {
    let play = Playground::open().await;
    play.show("create role scope_owner").await;
    let all = set(
        &play,
        r#"{"lease": "2 min", "ttl": "1 h", "gone_for": "0", "on_expiry": "park", "max_attempts": 3,
            "max_lease_life": "10 min", "retry_after": "3 s", "keep_request": true, "recovery_points": ["a", "b"],
            "owner": "scope_owner"}"#,
    )
    .await;
    let expected = r#"{"ttl": "01:00:00", "lease": "00:02:00", "owner": "scope_owner", "gone_for": "00:00:00", "on_expiry": "park", "retry_after": "00:00:03", "keep_request": true, "max_attempts": 3, "max_lease_life": "00:10:00", "recovery_points": ["a", "b"]}"#;
    assert_eq!(all, expected, "scope_set returns them all");
    assert_eq!(play.show("select once.scope_get('s')").await, expected);
    assert_eq!(set(&play, "{}").await, expected, "nothing is named");
    assert_eq!(
        set(&play, r#"{"lease": "3 min"}"#).await,
        expected.replace("00:02:00", "00:03:00")
    );
    let unlimited = set(&play, r#"{"lease": null, "max_attempts": null}"#).await;
    assert_eq!(
        unlimited,
        expected
            .replace("00:02:00", "00:01:00")
            .replace(r#""max_attempts": 3"#, r#""max_attempts": null"#),
        "for max_attempts null means no limit"
    );
    let nulls = r#"{"lease": null, "ttl": null, "gone_for": null, "on_expiry": null, "max_attempts": 25,
                    "max_lease_life": null, "retry_after": null, "keep_request": null, "recovery_points": null, "owner": null}"#;
    assert_eq!(set(&play, nulls).await, DEFAULTS);
    assert_eq!(
        play.show("select once.scope_get('other')").await,
        DEFAULTS,
        "another scope"
    );
}

#[tokio::test]
async fn every_bad_option_is_refused_by_name_and_changes_nothing() {
    let play = Playground::open().await;
    set(&play, r#"{"lease": "2 min", "max_attempts": 7}"#).await;
    let stored = play.stored().await;
    for (options, named) in [
        (r#"{"leese": "1 s"}"#, "leese"),
        (r#"{"Lease": "1 s"}"#, "Lease"),
        (r#"{"": "1 s"}"#, "options"),
        (
            r#"{"lease": "1 s", "le\u0061se": "1 s"}"#,
            "\"lease\" twice",
        ),
        (r#"{"lease": "1 s", "surprise": 1}"#, "surprise"),
        (r#"{"lease": "0"}"#, "lease"),
        (r#"{"lease": "-1 s"}"#, "lease"),
        (r#"{"lease": "soon"}"#, "lease"),
        (r#"{"lease": ""}"#, "lease"),
        (r#"{"lease": 30}"#, "lease"),
        (r#"{"lease": true}"#, "lease"),
        (r#"{"lease": ["1 s"]}"#, "lease"),
        (r#"{"lease": {"seconds": 1}}"#, "lease"),
        (r#"{"lease": "1100 years"}"#, "lease"),
        (r#"{"lease": "178000000 years"}"#, "lease"),
        (r#"{"lease": "infinity"}"#, "lease"),
        (r#"{"ttl": "0"}"#, "ttl"),
        (r#"{"ttl": "-1 day"}"#, "ttl"),
        (r#"{"ttl": 3600}"#, "ttl"),
        (r#"{"max_lease_life": "0 s"}"#, "max_lease_life"),
        (r#"{"max_lease_life": "x"}"#, "max_lease_life"),
        (r#"{"retry_after": "0 s"}"#, "retry_after"),
        (r#"{"gone_for": "-1 microsecond"}"#, "gone_for"),
        (r#"{"gone_for": "never"}"#, "gone_for"),
        (r#"{"on_expiry": "PARK"}"#, "on_expiry"),
        (r#"{"on_expiry": ""}"#, "on_expiry"),
        (r#"{"on_expiry": true}"#, "on_expiry"),
        (r#"{"on_expiry": ["park"]}"#, "on_expiry"),
        (r#"{"max_attempts": 0}"#, "max_attempts"),
        (r#"{"max_attempts": -1}"#, "max_attempts"),
        (r#"{"max_attempts": 1.5}"#, "max_attempts"),
        (r#"{"max_attempts": 2147483648}"#, "max_attempts"),
        (r#"{"max_attempts": 1e131071}"#, "max_attempts"),
        (r#"{"max_attempts": "3"}"#, "max_attempts"),
        (r#"{"keep_request": "true"}"#, "keep_request"),
        (r#"{"keep_request": 1}"#, "keep_request"),
        (r#"{"recovery_points": []}"#, "recovery_points"),
        (r#"{"recovery_points": "a"}"#, "recovery_points"),
        (r#"{"recovery_points": {"a": 1}}"#, "recovery_points"),
        (r#"{"recovery_points": ["a", ""]}"#, "recovery_points"),
        (r#"{"recovery_points": ["a", 1]}"#, "recovery_points"),
        (r#"{"recovery_points": ["a", null]}"#, "recovery_points"),
        (r#"{"recovery_points": ["a", ["b"]]}"#, "recovery_points"),
        (r#"{"recovery_points": ["a", "a"]}"#, "recovery_points"),
        (r#"{"owner": "nobody of that name"}"#, "owner"),
        (r#"{"owner": ""}"#, "owner"),
        (r#"{"owner": 10}"#, "owner"),
        (r#"{"owner": ["postgres"]}"#, "owner"),
        ("[]", "options"),
        (r#"["lease"]"#, "options"),
        (r#""lease""#, "options"),
        ("5", "options"),
        ("true", "options"),
        ("null", "options"),
    ] {
        let refused = play
            .refused(&format!("select once.scope_set('s', '{options}')"))
            .await;
        assert_eq!(refused.code, "22023", "{options}: {refused:?}");
        assert!(
            refused.message.contains("\"options\""),
            "{options}: {refused:?}"
        );
        assert!(refused.message.contains(named), "{options}: {refused:?}");
        assert!(!refused.hint.is_empty(), "{options}: {refused:?}");
    }
    let long = "x".repeat(101);
    play.ask(&format!(
        r#"select once.scope_set('s', '{{"recovery_points": ["{long}"]}}')"#
    ))
    .fails("22023")
    .await;
    assert_eq!(play.code("select once.scope_set('s', null)").await, "22023");
    assert_eq!(play.stored().await, stored);
}

#[tokio::test]
async fn declared_recovery_points_are_reached_in_their_order_only() {
    let play = Playground::open().await;
    set(
        &play,
        r#"{"recovery_points": ["charged", "shipped", "mailed"]}"#,
    )
    .await;
    let token = play.token("k", "").await;
    let advance = |point: &str| format!("select once.key_advance('s', 'k', {token}, '{point}')");
    let unknown = play.refused(&advance("chargd")).await;
    assert_eq!(unknown.code, "22023");
    assert!(
        unknown.message.contains("recovery_point") && unknown.message.contains("chargd"),
        "{unknown:?}"
    );
    assert!(unknown.hint.contains("charged"), "{unknown:?}");
    play.show(&advance("shipped")).await;
    let backward = play.refused(&advance("charged")).await;
    assert_eq!(backward.code, "22023");
    assert!(backward.message.contains("charged"), "{backward:?}");
    assert_eq!(play.code(&advance("started")).await, "22023");
    play.show(&format!(
        "select once.key_advance('s', 'k', {token}, 'shipped', '{{}}')"
    ))
    .await;
    set(&play, r#"{"recovery_points": ["packed", "posted"]}"#).await;
    play.show(&advance("posted")).await;
    assert_eq!(play.code(&advance("packed")).await, "22023");
    set(&play, r#"{"recovery_points": null}"#).await;
    play.show(&advance("anything")).await;
    play.show(&advance("back again")).await;
    play.ask("select recovery_point, state from once.key_get('s', 'k')")
        .is("back again|{}")
        .await;
}

#[tokio::test]
async fn a_repeated_advance_is_told_so_whatever_the_points_are_now() {
    let play = Playground::open().await;
    set(&play, r#"{"recovery_points": ["a", "b"]}"#).await;
    let token = play.token("k", "").await;
    let advance = format!("select once.key_advance('s', 'k', {token}, 'b', '1')");
    play.show(&advance).await;
    for points in [r#"["b", "a", "c"]"#, r#"["x"]"#] {
        set(&play, &format!(r#"{{"recovery_points": {points}}}"#)).await;
        assert_eq!(play.code(&advance).await, "ON006", "{points}");
    }
}

#[tokio::test]
async fn no_lease_goes_past_its_claims_time_plus_max_lease_life() {
    let play = Playground::open().await;
    play.clock("0").await;
    set(&play, r#"{"max_lease_life": "10 min", "lease": "4 min"}"#).await;
    let claim = "select token, lease_left from once.key_claim('s', 'k', lease => '1 day')";
    let claimed = play.show(claim).await;
    let (token, left) = claimed.split_once('|').unwrap();
    assert_eq!(left, "00:10:00", "what is granted is told");
    let extend = |more: &str| format!("select once.key_extend('s', 'k', {token}{more})");
    play.clock("3 min").await;
    assert_eq!(
        play.show(&extend(", '1 min'")).await,
        "00:01:00",
        "counted from now, shorter too"
    );
    assert_eq!(play.show(&extend("")).await, "00:04:00");
    assert_eq!(play.show(&extend(", '1 hour'")).await, "00:07:00");
    let advance = format!("select once.key_advance('s', 'k', {token}, 'p', null, '1 hour')");
    play.clock("8 min").await;
    assert_eq!(play.show(&advance).await, "00:02:00");
    play.clock("15 min").await;
    assert_eq!(play.show(&extend(", '1 hour'")).await, "00:00:00");
    assert_eq!(play.claim("k", "").await, "resumed");
}

#[tokio::test]
async fn an_advance_without_a_lease_never_makes_it_shorter() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", ", lease => '1 hour'").await;
    play.ask(&format!("select once.key_advance('s', 'k', {token}, 'a')"))
        .is("01:00:00")
        .await;
    play.clock("59 min 50 s").await;
    play.ask(&format!("select once.key_advance('s', 'k', {token}, 'b')"))
        .is("00:01:00")
        .await;
    play.ask(&format!(
        "select once.key_advance('s', 'k', {token}, 'c', '1', '5 s')"
    ))
    .is("00:00:05")
    .await;
    play.show(&format!("select once.key_advance('s', 'k', {token}, 'd')"))
        .await;
    assert_eq!(
        play.show("select recovery_point, state from once.key_get('s', 'k')")
            .await,
        "d|1",
        "a NULL state keeps the present one"
    );
}

#[tokio::test]
async fn started_and_finished_are_no_recovery_points() {
    let play = Playground::open().await;
    let token = play.token("k", "").await;
    for point in ["started", "finished"] {
        let advance = format!("select once.key_advance('s', 'k', {token}, '{point}')");
        let refused = play.refused(&advance).await;
        assert_eq!(refused.code, "22023");
        assert!(
            refused.message.contains(point) && refused.hint.contains("key_complete"),
            "{refused:?}"
        );
        let declare =
            format!(r#"select once.scope_set('s', '{{"recovery_points": ["paid", "{point}"]}}')"#);
        assert_eq!(play.refused(&declare).await.code, "22023");
    }
    let point = "select recovery_point from once.key_get('s', 'k')";
    assert_eq!(play.show(point).await, "started");
    set(&play, r#"{"recovery_points": ["paid"]}"#).await;
    play.show(&format!(
        "select once.key_advance('s', 'k', {token}, 'paid')"
    ))
    .await;
}

#[tokio::test]
async fn scopes_are_listed_and_one_that_may_be_misspelt_is_told() {
    let play = Playground::open().await;
    let doctor = "select level, problem from once.doctor() where problem like '%scope%' order by 1";
    for scope in ["payments.craete", "refunds"] {
        play.show(&format!("select once.key_claim('{scope}', 'k')"))
            .await;
    }
    assert_eq!(play.show(doctor).await, "", "no scope needs a declaration");
    play.show("select once.scope_set('payments.create', '{\"lease\": \"5 s\"}'), once.scope_set('a', '{}')")
        .await;
    play.ask(doctor).is("info|2 scopes have keys and no options\n\
         warning|scope \"payments.craete\" has keys and no options; \"payments.create\" has options").await;
    let list = |more: &str| {
        format!("select scope, options ->> 'lease', has_keys from once.scope_list({more})")
    };
    play.ask(&list(""))
        .is("a|00:01:00|f\npayments.craete|00:01:00|t\npayments.create|00:00:05|f\nrefunds|00:01:00|t")
        .await;
    play.ask(&list("1, after => 'payments.craete'"))
        .is("payments.create|00:00:05|f")
        .await;
    assert_eq!(play.code(&list("0")).await, "22023");
}

#[tokio::test]
async fn key_get_says_what_happens_next_and_by_whom() {
    let play = Playground::open().await;
    let next = async |words: &str| {
        let told = play.show("select next from once.key_get('s', 'k')").await;
        assert!(told.contains(words), "{told}, not {words}");
    };
    play.clock("0").await;
    let token = play.token("k", "").await;
    play.clock("20 s").await;
    next("Its holder, who claimed it 20 s ago, completes, releases or parks it within 40 s").await;
    play.clock("2 min").await;
    next("The next claim resumes it").await;
    play.show(&format!(
        "select once.key_release('s', 'k', {token}, retry_after => '1 min')"
    ))
    .await;
    next("Claims resume it in 60 s").await;
    play.clock("4 min").await;
    let token = play.token("k", "").await;
    play.show(&format!(
        "select once.key_park('s', 'k', {token}, 'who knows')"
    ))
    .await;
    next("once.key_resolve(scope, key, 2, 'retry')").await;
    play.show("select once.key_resolve('s', 'k', 2, 'complete', 200)")
        .await;
    next("Claims replay its answer until gone_at").await;
    play.clock("30 h").await;
    next("Claims answer gone").await;
}

/// The lease that a new key of the scope gets.
async fn leased(play: &Playground) -> String {
    play.show("select lease_left from once.key_claim('s', gen_random_uuid()::text)")
        .await
}

#[tokio::test]
async fn options_count_for_every_session_from_the_next_statement_on() {
    let play = Playground::directly("asks what each backend remembers").await;
    let other = play.another().await;
    let both = async || [leased(&play).await, leased(&other).await];
    assert_eq!(both().await, ["00:01:00", "00:01:00"]);
    play.show("begin").await;
    set(&play, r#"{"lease": "2 min"}"#).await;
    assert_eq!(both().await, ["00:02:00", "00:01:00"], "not committed");
    play.show("rollback").await;
    assert_eq!(both().await, ["00:01:00", "00:01:00"], "rolled back");
    play.show("begin; savepoint s").await;
    set(&play, r#"{"lease": "2 min"}"#).await;
    assert_eq!(leased(&play).await, "00:02:00");
    play.show("rollback to s").await;
    assert_eq!(leased(&play).await, "00:01:00", "back to the savepoint");
    play.show("commit; begin").await;
    set(&play, r#"{"lease": "2 min"}"#).await;
    assert_eq!(leased(&play).await, "00:02:00");
    play.show("prepare transaction 'scope'").await;
    assert_eq!(both().await, ["00:01:00", "00:01:00"], "prepared");
    play.show("commit prepared 'scope'").await;
    assert_eq!(both().await, ["00:02:00", "00:02:00"], "committed");
    for (i, level) in ["read committed", "repeatable read"].iter().enumerate() {
        other.show(&format!("begin isolation level {level}")).await;
        leased(&other).await;
        set(&play, &format!(r#"{{"lease": "1{i} min"}}"#)).await;
        assert_eq!(leased(&other).await, format!("00:1{i}:00"), "{level}");
        other.show("commit").await;
        assert_eq!(leased(&other).await, format!("00:1{i}:00"), "{level}");
    }
    // No function has told it: a replica's apply worker does the same.
    play.show("update once.scope set lease_us = 1000000").await;
    let told = pg_once_tests::race::poll_async("a row written by hand", async || {
        Ok((leased(&other).await == "00:00:01").then_some(()))
    });
    told.await.unwrap();
    play.show("drop extension pg_once; create extension pg_once")
        .await;
    assert_eq!(both().await, ["00:01:00", "00:01:00"], "another scope");
}

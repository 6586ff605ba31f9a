//! Limits: what is just long enough, what is cut, what belongs together.

use crate::playground::Playground;

#[tokio::test]
async fn texts_of_the_greatest_length_are_fine_and_characters_are_counted_not_bytes() {
    let play = Playground::open().await;
    let emoji = |count: usize| "😀".repeat(count);
    let (scope, key, step) = (emoji(100), emoji(255), emoji(100));
    let claimed = play
        .show(&format!(
            "select outcome, token from once.key_claim('{scope}', '{key}', holder => '{}')",
            emoji(200)
        ))
        .await;
    let token = claimed.strip_prefix("claimed|").unwrap();
    for call in [
        format!("select once.key_advance('{scope}', '{key}', {token}, '{step}')"),
        format!("select once.key_step('{scope}', '{key}', {token}, '{step}')"),
        format!("select once.key_step_done('{scope}', '{key}', {token}, '{step}')"),
        format!("select once.key_derive('{scope}', '{key}', '{step}')"),
        format!("select once.scope_set('{scope}', '{{}}')"),
        format!(
            "select once.key_park('{scope}', '{key}', {token}, '{}')",
            emoji(10_001)
        ),
        format!("select once.key_resolve('{scope}', '{key}', 1, 'complete', -7)"),
    ] {
        play.show(&call).await;
    }
    let got = play
        .show(&format!(
            "select recovery_point, last_error from once.key_get('{scope}', '{key}')"
        ))
        .await;
    assert_eq!(got, format!("{step}|{}", emoji(10_000)));
    let derived = play
        .show(&format!(
            "select once.key_derive('{scope}', '{key}', '{step}')"
        ))
        .await;
    assert!(derived.is_ascii() && derived.len() <= 255);
    for length in 1..=3 {
        let other = emoji(255 - length);
        play.ask(&format!(
            "select outcome from once.key_claim('{scope}', '{other}')"
        ))
        .is("claimed")
        .await;
    }
}

#[tokio::test]
async fn the_error_of_a_release_is_free_text_and_cut_rather_than_refused() {
    let play = Playground::open().await;
    for (error, kept) in [
        ("''", 0),
        ("repeat('é', 9999)", 9999),
        ("repeat('é', 2000000)", 10_000),
    ] {
        let token = play.token("k", "").await;
        let release = format!("select once.key_release('s', 'k', {token}, {error})");
        play.show(&release).await;
        play.show(&release).await;
        assert_eq!(
            play.show("select length(last_error) from once.key_get('s', 'k')")
                .await,
            kept.to_string()
        );
    }
}

#[tokio::test]
async fn a_verdict_retry_takes_no_answer_and_a_finish_needs_its_code() {
    let play = Playground::open().await;
    let token = play.token("k", "").await;
    play.show(&format!("select once.key_park('s', 'k', {token}, 'x')"))
        .await;
    for arguments in [
        "response_code => 200",
        "response_body => '1'",
        "response_headers => '1'",
    ] {
        let refused = play
            .refused(&format!(
                "select once.key_resolve('s', 'k', 1, 'retry', {arguments})"
            ))
            .await;
        assert_eq!(refused.code, "22023");
        assert!(refused.message.contains("response"), "{refused:?}");
    }
    for verdict in ["complete", "abort"] {
        let refused = play
            .refused(&format!(
                "select once.key_resolve('s', 'k', 1, '{verdict}')"
            ))
            .await;
        refused.tells("22023", &["response_code"], verdict);
    }
}

#[tokio::test]
async fn a_pretended_time_that_is_none_is_refused_and_so_is_who_is_not_a_superuser() {
    let play = Playground::open().await;
    play.show("create role bad_clock login; select once.grant_role('bad_clock', 'operate')")
        .await;
    for time in ["soon", "infinity", "-infinity", "2030-13-01"] {
        let set = format!(
            "begin; set local once.fake_now = $${time}$$; select * from once.key_claim('s', 'k')"
        );
        let refused = play.refused(&set).await;
        refused.tells("22023", &["once.fake_now"], time);
        play.show("rollback").await;
    }
    let worker = play.another_as("bad_clock").await;
    // Before the library is loaded the server cannot know that the setting is not for everybody.
    let _ = worker.attempt("set once.fake_now = '2030-01-01'").await;
    worker
        .show("select once.key_claim('s', 'early', ttl => '1 s')")
        .await;
    assert_eq!(
        worker.code("set once.fake_now = '2030-01-01'").await,
        "42501"
    );
    assert_eq!(
        play.show("select created_at < '2029-01-01' from once.key_get('s', 'early')")
            .await,
        "t",
        "the real clock"
    );
}

#[tokio::test]
async fn time_can_be_pretended_for_a_whole_database() {
    let play = Playground::directly("a setting of the database is for sessions to come").await;
    let name = &play.database.name;
    play.show("create role limits_clock login; select once.grant_role('limits_clock', 'operate')")
        .await;
    play.show(&format!(
        "alter database {name} set once.fake_now = '2040-01-01 00:00:00+00'"
    ))
    .await;
    let worker = play.another_as("limits_clock").await;
    worker.token("k", ", lease => '1 min'").await;
    let created = "select created_at = '2040-01-01+00', lease_left from once.key_get('s', 'k')";
    assert_eq!(worker.show(created).await, "t|00:01:00");
    assert_eq!(worker.code("set once.fake_now = ''").await, "42501");
    play.show(&format!("alter database {name} reset once.fake_now"))
        .await;
    let worker = play.another_as("limits_clock").await;
    let real = "select lease_left > '1 year' from once.key_get('s', 'k')";
    assert_eq!(worker.show(real).await, "t", "back to the real clock");
}

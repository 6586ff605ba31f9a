//! Steps: what earlier attempts began, the first result that wins, and derived keys, which never change
//! but by key_rotate.

use crate::playground::Playground;

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
    play.ask(&format!(
        "select once.key_rotate('s', 'k', {first}, 'pay', 1)"
    ))
    .is("2")
    .await;
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
    play.ask(&format!(
        "select * from once.key_step_done('s', 'k', {token}, 'unbegun', '2')"
    ))
    .is("t|2")
    .await;
}

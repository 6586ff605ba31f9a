//! key_resolve: a verdict ends the present parking and no other, once.

use crate::playground::Playground;
use crate::repeats::begin_key;

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
    held.tells("55006", &["\"k\""], "key_resolve");
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
    play.ask("select outcome, attempt from once.key_claim('s', 'k')")
        .is("resumed|2")
        .await;
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

#[tokio::test]
async fn a_verdict_repeated_is_already_done_and_another_one_is_lease_lost() {
    for (verdict, then) in [
        ("'retry'", "resumed"),
        ("'complete', 200, '1'", "replayed"),
        ("'abort', 500", "replayed"),
    ] {
        let play = Playground::open().await;
        let token = begin_key(&play, "k").await;
        play.show(&format!("select once.key_park('s', 'k', {token}, 'x')"))
            .await;
        let resolve = format!("select once.key_resolve('s', 'k', 1, {verdict})");
        play.show(&format!("begin; {resolve}")).await;
        let stored = play.stored().await;
        play.show(&resolve).await;
        assert_eq!(play.stored().await, stored, "{verdict} in its transaction");
        play.show("commit").await;
        assert_eq!(play.code(&resolve).await, "ON006", "{verdict}");
        for other in ["'retry'", "'complete', 200, '1'", "'abort', 500"] {
            if other != verdict {
                let refused = play
                    .refused(&format!("select once.key_resolve('s', 'k', 1, {other})"))
                    .await;
                assert_eq!(
                    refused.code, "ON001",
                    "{verdict}, then {other}: {refused:?}"
                );
            }
        }
        let refused = play
            .refused("select once.key_resolve('s', 'k', 2, 'retry')")
            .await;
        assert!(
            matches!(refused.code.as_str(), "ON001" | "55006"),
            "{refused:?}"
        );
        play.ask(&format!("select once.key_park('s', 'k', {token}, 'x')"))
            .fails("ON001")
            .await;
        play.ask(&format!(
            "select once.key_complete('s', 'k', {token}, 200, '1')"
        ))
        .fails("ON001")
        .await;
        assert_eq!(play.stored().await, stored);
        assert_eq!(play.claim("k", ", '1'").await, then);
        assert_eq!(play.code(&resolve).await, "ON006", "{verdict}");
    }
    let play = Playground::open().await;
    let token = begin_key(&play, "k").await;
    play.show(&format!("select once.key_park('s', 'k', {token}, 'x')"))
        .await;
    play.show("select once.key_resolve('s', 'k', 1, 'complete', 200, '1')")
        .await;
    let other_answer = play
        .refused("select once.key_resolve('s', 'k', 1, 'complete', 200, '2')")
        .await;
    assert_eq!(other_answer.code, "ON006", "{other_answer:?}");
}

#[tokio::test]
async fn a_verdict_repeated_after_the_key_was_parked_again_does_not_end_the_new_parking() {
    let play = Playground::open().await;
    let token = begin_key(&play, "k").await;
    play.show(&format!("select once.key_park('s', 'k', {token}, 'x')"))
        .await;
    play.show("select once.key_resolve('s', 'k', 1, 'retry')")
        .await;
    let token = play.token("k", ", '1'").await;
    play.show(&format!("select once.key_park('s', 'k', {token}, 'y')"))
        .await;
    let again = "select once.key_resolve('s', 'k', 1, 'retry')";
    assert_eq!(play.code(again).await, "ON006");
    assert_eq!(play.claim("k", ", '1'").await, "parked");
    play.ask("select once.key_resolve('s', 'k', 1, 'complete', 200)")
        .fails("ON001")
        .await;
    play.show("select once.key_resolve('s', 'k', 2, 'retry')")
        .await;
    assert_eq!(play.claim("k", ", '1'").await, "resumed");
}

#[tokio::test]
async fn a_verdict_that_names_an_earlier_attempt_is_lease_lost_or_not_parked() {
    let play = Playground::open().await;
    let mut token = begin_key(&play, "k").await;
    for hours in 1..4 {
        play.clock(&format!("{hours} h")).await;
        token = play.token("k", ", '1'").await;
    }
    play.show(&format!("select once.key_park('s', 'k', {token}, 'x')"))
        .await;
    for attempt in [i32::MIN, -1, 0, 1, 3, 5, i32::MAX] {
        let resolve = format!("select once.key_resolve('s', 'k', {attempt}, 'retry')");
        assert_eq!(play.code(&resolve).await, "ON001", "{attempt}");
    }
    play.show("select once.key_resolve('s', 'k', 4, 'retry')")
        .await;
}

//! Keys that a take has put aside: a change of options shows them to takes again, however old the snapshot
//! is under which the options change, and the take's lock is in the way of nothing else.

use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::{LEVELS, begin};

/// Options under which an abandoned key counts as parked, and the same options given up.
const OPTIONS: [(&str, &str); 2] = [
    (r#"{"max_attempts": 1}"#, r#"{"max_attempts": null}"#),
    (r#"{"on_expiry": "park"}"#, r#"{"on_expiry": "resume"}"#),
];

/// An abandoned key `k` that the options park, and no completer has looked at yet.
async fn parked_by_options(play: &Playground, options: &str) {
    play.show("delete from once.key; delete from once.scope")
        .await;
    play.show(&format!("select once.scope_set('s', '{options}')"))
        .await;
    play.token("k", ", lease => '1 microsecond'").await;
}

async fn put_aside(completer: &Playground) {
    assert_eq!(taken(completer).await, "");
    let look_at = completer.show("select look_at from once.key").await;
    assert_eq!(look_at, "infinity");
}

async fn taken(completer: &Playground) -> String {
    completer
        .show("select key from once.key_take_abandoned('s')")
        .await
}

#[tokio::test]
async fn a_key_put_aside_since_the_snapshot_comes_back_with_the_options() {
    let play = Playground::open().await;
    let completer = play.another().await;
    for level in LEVELS {
        for (parks, resumes) in OPTIONS {
            parked_by_options(&play, parks).await;
            begin(&play, level).await;
            put_aside(&completer).await;
            play.show(&format!("select once.scope_set('s', '{resumes}')"))
                .await;
            play.show("commit").await;
            assert_eq!(taken(&completer).await, "k", "{level}, {resumes}");
        }
    }
}

#[tokio::test]
async fn a_key_put_aside_while_the_change_waits_comes_back_with_the_options() {
    let play = Playground::open().await;
    let completer = play.another().await;
    let mut setter = play.another().await;
    for level in LEVELS {
        for (parks, resumes) in OPTIONS {
            parked_by_options(&play, parks).await;
            begin(&setter, level).await;
            completer.show("begin").await;
            put_aside(&completer).await;
            let set = format!("select once.scope_set('s', '{resumes}')");
            let waiting = Waiting::begin(&play, setter, &set).await;
            completer.show("commit").await;
            let (session, answer) = waiting.end().await;
            assert!(answer.is_ok(), "{level}: {answer:?}");
            session.show("commit").await;
            setter = session;
            assert_eq!(taken(&completer).await, "k", "{level}, {resumes}");
        }
    }
}

#[tokio::test]
async fn a_change_of_options_that_rolls_back_leaves_the_key_aside() {
    let play = Playground::open().await;
    let completer = play.another().await;
    for level in LEVELS {
        parked_by_options(&play, OPTIONS[0].0).await;
        put_aside(&completer).await;
        begin(&play, level).await;
        play.show(&format!("select once.scope_set('s', '{}')", OPTIONS[0].1))
            .await;
        play.show("rollback").await;
        put_aside(&completer).await;
        play.show(&format!("select once.scope_set('s', '{}')", OPTIONS[0].1))
            .await;
        assert_eq!(taken(&completer).await, "k", "{level}");
    }
}

#[tokio::test]
async fn what_a_person_parked_stays_parked_when_the_options_change() {
    let play = Playground::open().await;
    for level in LEVELS {
        let token = play.token(level, "").await;
        play.show(&format!(
            "select once.key_park('s', '{level}', {token}, 'timed out')"
        ))
        .await;
        begin(&play, level).await;
        play.show(&format!("select once.scope_set('s', '{}')", OPTIONS[1].1))
            .await;
        play.show("commit").await;
        assert_eq!(taken(&play).await, "");
        assert_eq!(play.claim(level, "").await, "parked");
    }
}

#[tokio::test]
async fn a_completer_that_puts_keys_aside_is_in_no_keys_way() {
    let play = Playground::open().await;
    let completer = play.another().await;
    play.show(
        r#"select once.scope_set('pay', '{"max_attempts": 1}');
           select once.key_claim('pay', 'k', lease => '1 microsecond')"#,
    )
    .await;
    completer.show("begin").await;
    let nothing = completer
        .show("select key from once.key_take_abandoned('pay')")
        .await;
    assert_eq!(nothing, "");
    let aside = completer.show("select look_at from once.key").await;
    assert_eq!(aside, "infinity", "the lock is held");
    // Nobody has ever claimed any of these.
    for (scope, key) in [
        ("put aside", "pay"),
        ("pay", "pay"),
        ("pay", "put aside"),
        ("put asidepay", "pay"),
    ] {
        let claim = format!("select outcome from once.key_claim('{scope}', '{key}')");
        assert_eq!(play.show(&claim).await, "claimed", "{scope}, {key}");
    }
    completer.show("rollback").await;
}

#[tokio::test]
async fn a_key_that_a_sweep_moves_while_the_options_change_comes_back_with_them() {
    let play = Playground::open().await;
    let sweeper = play.another().await;
    let mut setter = play.another().await;
    for level in LEVELS {
        for (parks, resumes) in OPTIONS {
            parked_by_options(&play, parks).await;
            // Due for the sweep, which only moves its next visit: it is not finished.
            play.show("update once.key set reap_at = look_at").await;
            put_aside(&play).await;
            begin(&setter, level).await;
            sweeper
                .show("begin; select once.sweep(task => 'key_tombstone')")
                .await;
            let set = format!("select once.scope_set('s', '{resumes}')");
            let waiting = Waiting::begin(&play, setter, &set).await;
            sweeper.show("commit").await;
            let (session, answer) = waiting.end().await;
            let told = crate::waiting::code(&answer).to_owned();
            session
                .show(if told.is_empty() {
                    "commit"
                } else {
                    "rollback"
                })
                .await;
            setter = session;
            // A race above READ COMMITTED is told as one; the change is then made again.
            if told == "40001" && level != "read committed" {
                play.show(&set).await;
            } else {
                assert_eq!(told, "", "{level}: {answer:?}");
            }
            assert_eq!(taken(&play).await, "k", "{level}, {resumes}");
        }
    }
}

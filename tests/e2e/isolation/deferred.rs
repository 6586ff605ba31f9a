//! Keys that a take has deferred, because the options park them: a change of options shows them to takes again,
//! however old the snapshot is under which the options change.

use crate::playground::Playground;
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
    play.show("select once.sweep(task => 'key_abandon')").await;
}

async fn defer(completer: &Playground) {
    assert_eq!(taken(completer).await, "");
    let deferred = "select look_at > clock_timestamp() + interval '5 s' from once.key";
    assert_eq!(completer.show(deferred).await, "t");
}

async fn taken(completer: &Playground) -> String {
    completer
        .show("select key from once.key_take_abandoned('s')")
        .await
}

#[tokio::test]
async fn a_key_deferred_since_the_snapshot_comes_back_with_the_options() {
    let play = Playground::open().await;
    let completer = play.another().await;
    for level in LEVELS {
        for (parks, resumes) in OPTIONS {
            parked_by_options(&play, parks).await;
            begin(&play, level).await;
            defer(&completer).await;
            play.show(&format!("select once.scope_set('s', '{resumes}')"))
                .await;
            play.show("commit").await;
            assert_eq!(taken(&completer).await, "k", "{level}, {resumes}");
        }
    }
}

/// The change waits for nobody.
#[tokio::test]
async fn a_key_that_a_take_defers_while_the_options_change_comes_back_within_an_hour() {
    let play = Playground::open().await;
    let completer = play.another().await;
    let within = "select look_at between clock_timestamp() and clock_timestamp() + interval '1 h' from once.key";
    for level in LEVELS {
        for (parks, resumes) in OPTIONS {
            parked_by_options(&play, parks).await;
            completer.show("begin").await;
            defer(&completer).await;
            begin(&play, level).await;
            play.show(&format!("select once.scope_set('s', '{resumes}')"))
                .await;
            play.show("commit").await;
            completer.show("commit").await;
            assert_eq!(play.show(within).await, "t", "{level}");
            assert_eq!(play.claim("k", "").await, "resumed");
        }
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

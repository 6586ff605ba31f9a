//! Completers: abandoned keys are shared without overlap, and none is ever lost.

use std::collections::BTreeSet;

use crate::playground::Playground;
use crate::waiting::{at_once, sessions};

async fn abandon(play: &Playground, count: usize) {
    let sql = format!(
        "select count(*) from generate_series(1, {count}) as g,
                lateral once.key_claim('s', 'k' || g, lease => '1 microsecond')"
    );
    play.show(&sql).await;
    play.show("select once.sweep(task => 'key_abandon')").await;
}

#[tokio::test]
async fn eight_completers_at_once_take_each_key_once() {
    let play = Playground::open().await;
    let sessions = sessions(&play, 8).await;
    abandon(&play, 400).await;
    let mut seen = BTreeSet::new();
    loop {
        let answers = at_once(&sessions, |_| {
            "select key from once.key_take_abandoned('s', 7)".to_owned()
        })
        .await;
        let before = seen.len();
        for answer in answers {
            for key in answer.unwrap().lines() {
                assert!(seen.insert(key.to_owned()), "{key} was taken twice");
            }
        }
        if seen.len() == before {
            break;
        }
    }
    assert_eq!(seen.len(), 400);
    play.ask("select min(attempt), max(attempt) from once.key")
        .is("2|2")
        .await;
}

#[tokio::test]
async fn a_claim_and_a_completer_never_both_get_the_key() {
    let play = Playground::open().await;
    let sessions = sessions(&play, 8).await;
    for round in 0..40 {
        let key = format!("k{round}");
        play.token(&key, ", lease => '1 microsecond'").await;
        play.show("select once.sweep(task => 'key_abandon')").await;
        let answers = at_once(&sessions, |i| match i % 2 {
            0 => format!("select outcome from once.key_claim('s', '{key}')"),
            _ => "select outcome from once.key_take_abandoned('s')".to_owned(),
        })
        .await;
        let got = answers
            .iter()
            .filter(|a| a.as_ref().unwrap() == "resumed")
            .count();
        assert_eq!(got, 1, "{answers:?}");
    }
}

#[tokio::test]
async fn the_same_holder_from_many_connections_gets_the_same_keys() {
    let play = Playground::open().await;
    let sessions = sessions(&play, 4).await;
    abandon(&play, 30).await;
    let take = "select string_agg(key || token, ',' order by key)
                  from once.key_take_abandoned('s', 10, holder => 'h')";
    let mine = play.show(take).await;
    for answer in at_once(&sessions, |_| take.to_owned()).await {
        assert_eq!(answer.unwrap(), mine);
    }
}

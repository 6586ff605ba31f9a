//! Completers: abandoned keys are shared without overlap, and none is ever lost to the bookmark.

use std::collections::BTreeSet;

use crate::playground::Playground;
use crate::waiting::{at_once, sessions};

async fn abandon(play: &Playground, count: usize) {
    let sql = format!(
        "select count(*) from generate_series(1, {count}) as g,
                lateral once.key_claim('s', 'k' || g, lease => '1 microsecond')"
    );
    play.show(&sql).await;
}

fn keys(shown: &str) -> BTreeSet<String> {
    shown.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn two_completers_share_abandoned_keys_without_waiting_or_overlap() {
    let play = Playground::open().await;
    let (first, second) = (play.another().await, play.another().await);
    second.show("set lock_timeout = '1ms'").await;
    abandon(&play, 40).await;
    first.show("begin").await;
    let mine = keys(
        &first
            .show("select key from once.key_take_abandoned('s', 15)")
            .await,
    );
    let theirs = keys(
        &second
            .show("select key from once.key_take_abandoned('s', 100)")
            .await,
    );
    assert_eq!((mine.len(), theirs.len()), (15, 25));
    assert!(mine.is_disjoint(&theirs));
    first.show("rollback").await;
    let left = keys(
        &second
            .show("select key from once.key_take_abandoned('s', 100)")
            .await,
    );
    assert_eq!(left, mine);
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
    assert_eq!(
        play.show("select min(attempt), max(attempt) from once.key")
            .await,
        "2|2"
    );
}

#[tokio::test]
async fn a_claim_and_a_completer_never_both_get_the_key() {
    let play = Playground::open().await;
    let sessions = sessions(&play, 8).await;
    for round in 0..40 {
        let key = format!("k{round}");
        play.token(&key, ", lease => '1 microsecond'").await;
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
async fn a_claim_that_commits_late_is_found_behind_thousands_of_finished_keys() {
    let play = Playground::open().await;
    let late = play.another().await;
    let finished = "
        select count(once.key_complete('s', c.key, c.token, 200))
          from (select 'f' || g || 'BATCH' as key, (once.key_claim('s', 'f' || g || 'BATCH',
                       lease => '1 microsecond')).token from generate_series(1, 500) as g) as c";
    late.show("begin").await;
    late.token("late", ", lease => '1 microsecond'").await;
    for batch in ["a", "b", "c"] {
        play.show(&finished.replace("BATCH", batch)).await;
        assert_eq!(
            play.show("select key from once.key_take_abandoned('s')")
                .await,
            ""
        );
    }
    late.show("commit").await;
    assert_eq!(
        play.show("select key from once.key_take_abandoned('s')")
            .await,
        "late"
    );

    // With nobody in between, the bookmark goes on, and what it passed was finished.
    for batch in ["d", "e", "f"] {
        play.show(&finished.replace("BATCH", batch)).await;
        assert_eq!(
            play.show("select key from once.key_take_abandoned('s')")
                .await,
            ""
        );
    }
    play.token("last", ", lease => '1 microsecond'").await;
    assert_eq!(
        play.show("select key from once.key_take_abandoned('s')")
            .await,
        "last"
    );
}

#[tokio::test]
async fn a_key_whose_completer_rolled_back_is_not_behind_the_bookmark() {
    let play = Playground::open().await;
    let completer = play.another().await;
    abandon(&play, 200).await;
    completer.show("begin").await;
    completer
        .show("select count(*) from once.key_take_abandoned('s', 200)")
        .await;
    for _ in 0..3 {
        assert_eq!(
            play.show("select count(*) from once.key_take_abandoned('s')")
                .await,
            "0"
        );
    }
    completer.show("rollback").await;
    assert_eq!(
        play.show("select count(*) from once.key_take_abandoned('s', 1000)")
            .await,
        "200"
    );
}

#[tokio::test]
async fn a_key_put_aside_while_its_scope_parked_comes_back_when_the_scope_resumes() {
    let play = Playground::open().await;
    let completer = play.another().await;
    play.show(r#"select once.scope_set('s', '{"on_expiry": "park"}')"#)
        .await;
    play.token("k", ", lease => '1 microsecond'").await;
    completer.show("begin").await;
    assert_eq!(
        completer
            .show("select key from once.key_take_abandoned('s')")
            .await,
        ""
    );
    // It may wait for the completer, but not see less than everything that was put aside.
    let setter = play.another().await;
    let set = tokio::spawn(async move {
        setter
            .show(r#"select once.scope_set('s', '{"on_expiry": "resume"}')"#)
            .await
    });
    let pause = pg_once_tests::race::poll_async("the setter to end or wait", async || {
        let waits = play
            .show("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'scope_set'")
            .await;
        Ok((set.is_finished() || waits != "0").then_some(()))
    });
    pause.await.unwrap();
    completer.show("commit").await;
    set.await.unwrap();
    // A completer has to find it again within the time of a lease.
    play.show("set once.fake_now = '2200-01-01 00:00:00+00'")
        .await;
    assert_eq!(
        play.show("select key from once.key_take_abandoned('s')")
            .await,
        "k"
    );
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

//! A completer's intake beside many keys: what a take reads is bounded, and what it takes is shared out
//! between keys that failed before and keys whose first client died.

use std::collections::BTreeSet;

use crate::playground::Playground;

/// Finishes so many keys whose leases still live.
async fn finish(play: &Playground, prefix: &str, count: u32) {
    let sql = format!(
        "select count(once.key_complete('s', '{prefix}' || g,
                (once.key_claim('s', '{prefix}' || g, lease => '1 hour')).token, 200))
           from generate_series(1, {count}) as g"
    );
    play.show(&sql).await;
}

/// Keys whose first attempt was abandoned.
async fn abandon(play: &Playground, prefix: &str, count: u32) {
    let sql = format!(
        "select count(once.key_claim('s', '{prefix}' || g, lease => '1 microsecond'))
           from generate_series(1, {count}) as g"
    );
    play.show(&sql).await;
}

/// Keys that somebody gave back.
async fn release(play: &Playground, prefix: &str, count: u32) {
    let sql = format!(
        "select count(once.key_release('s', '{prefix}' || g,
                (once.key_claim('s', '{prefix}' || g)).token, 'no'))
           from generate_series(1, {count}) as g"
    );
    play.show(&sql).await;
}

/// What a take answers, sorted, and how many entries of the index it read.
async fn take(play: &Playground, arguments: &str) -> (Vec<String>, i64) {
    let read = "select pg_stat_get_xact_tuples_returned('once.key_look'::regclass)";
    play.show("begin").await;
    let before: i64 = play.show(read).await.parse().unwrap();
    let sql = format!("select key from once.key_take_abandoned('s'{arguments})");
    let mut keys: Vec<_> = play.show(&sql).await.lines().map(str::to_owned).collect();
    let after: i64 = play.show(read).await.parse().unwrap();
    play.show("commit").await;
    keys.sort();
    (keys, after - before)
}

/// Takes so many keys and gives them all back; their names.
async fn take_and_release(play: &Playground, max: u32) -> BTreeSet<String> {
    let sql = format!(
        "select t.key, once.key_release('s', t.key, t.token, 'again')
           from once.key_take_abandoned('s', {max}) as t"
    );
    let shown = play.show(&sql).await;
    shown
        .lines()
        .map(|line| line.split('|').next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_take_with_a_holder_does_not_read_the_finished_keys_of_live_leases() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": null}')"#)
        .await;
    finish(&play, "done", 5000).await;
    abandon(&play, "left", 3).await;
    let (mine, _) = take(&play, ", 10, '1 hour', 'h'").await;
    assert_eq!(mine, ["left1", "left2", "left3"]);
    for arguments in [", 10, '1 hour', 'h'", ", 10, '1 hour', 'another'", ""] {
        let (keys, read) = take(&play, arguments).await;
        assert_eq!(keys.len(), if arguments.contains("'h'") { 3 } else { 0 });
        assert!(read < 30, "take({arguments}) read {read} entries");
    }
}

#[tokio::test]
async fn a_holder_gets_its_live_keys_again_however_they_came_to_it() {
    let play = Playground::open().await;
    abandon(&play, "abandoned", 2).await;
    release(&play, "released", 2).await;
    let first = take(&play, ", 10, '1 hour', 'h'").await.0;
    assert_eq!(first.len(), 4);
    assert_eq!(take(&play, ", 10, '1 hour', 'h'").await.0, first);
    // Extended and advanced leases are its own, too.
    play.show(
        "select once.key_extend(scope, key, token, '1 min'),
                      once.key_advance(scope, key, token, 'p', '{}', '2 hours') from once.key",
    )
    .await;
    assert_eq!(take(&play, ", 10, '1 hour', 'h'").await.0, first);
    play.show(
        "select once.key_complete(scope, key, token, 200) from once.key where key ~ 'released'",
    )
    .await;
    let left = take(&play, ", 10, '1 hour', 'h'").await.0;
    assert_eq!(left, ["abandoned1", "abandoned2"]);
}

#[tokio::test]
async fn half_of_a_take_comes_from_each_side_while_both_have_enough() {
    let play = Playground::open().await;
    abandon(&play, "abandoned", 30).await;
    release(&play, "released", 30).await;
    let (keys, _) = take(&play, ", 20").await;
    let released = keys
        .iter()
        .filter(|key| key.starts_with("released"))
        .count();
    assert_eq!((keys.len(), released), (20, 10));
    // Of an odd number, the odd one is anybody's.
    let (keys, _) = take(&play, ", 9").await;
    let released = keys
        .iter()
        .filter(|key| key.starts_with("released"))
        .count();
    assert_eq!(keys.len(), 9);
    assert!(matches!(released, 4 | 5), "{keys:?}");
    // Where one side has too few, the other fills up.
    let (keys, _) = take(&play, ", 100").await;
    assert_eq!(keys.len(), 31);
}

#[tokio::test]
async fn either_side_fills_a_take_alone() {
    let play = Playground::open().await;
    abandon(&play, "abandoned", 7).await;
    assert_eq!(take(&play, ", 5").await.0.len(), 5);
    assert_eq!(take(&play, ", 5").await.0.len(), 2);
    release(&play, "released", 7).await;
    assert_eq!(take(&play, ", 5").await.0.len(), 5);
    assert_eq!(take(&play, ", 5").await.0.len(), 2);
}

#[tokio::test]
async fn keys_that_fail_again_and_again_do_not_starve_a_dead_clients_key() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": null}')"#)
        .await;
    release(&play, "failing", 40).await;
    for _ in 0..5 {
        assert_eq!(take_and_release(&play, 10).await.len(), 10);
    }
    abandon(&play, "dead", 1).await;
    assert!(take_and_release(&play, 2).await.contains("dead1"));

    // A completer that takes one at a time tosses a coin.
    abandon(&play, "late", 1).await;
    let mut tries = 0;
    while !take_and_release(&play, 1).await.contains("late1") {
        tries += 1;
        assert!(tries < 200, "it starves");
    }
}

#[tokio::test]
async fn dead_clients_keys_do_not_starve_one_that_failed() {
    let play = Playground::open().await;
    abandon(&play, "dead", 500).await;
    release(&play, "failed", 1).await;
    assert!(take_and_release(&play, 2).await.contains("failed1"));

    // A completer that takes one at a time tosses a coin; the other failed key comes first.
    release(&play, "late", 1).await;
    let mut tries = 0;
    while take(&play, ", 1, '1 hour'").await.0 != ["late1"] {
        tries += 1;
        assert!(tries < 200, "it starves");
    }
}

#[tokio::test]
async fn keys_that_fail_again_and_again_take_turns() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": null}')"#)
        .await;
    release(&play, "k", 20).await;
    for _ in 0..12 {
        assert_eq!(take_and_release(&play, 5).await.len(), 5);
    }
    // 60 takes of 20 keys on top of the first claim of each.
    let attempts = play
        .show("select min(attempt), max(attempt) from once.key")
        .await;
    assert_eq!(attempts, "4|4");
}

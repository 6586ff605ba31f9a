//! A completer's intake beside many keys: what a take reads is bounded, and it takes what has been due for longest.

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

/// What a take answers after a sweep, sorted, and how many entries of the index it read.
async fn take(play: &Playground, arguments: &str) -> (Vec<String>, i64) {
    play.show("select once.sweep(task => 'key_abandon')").await;
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
        "select once.sweep(task => 'key_abandon');
         select t.key, once.key_release('s', t.key, t.token, 'again')
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
async fn what_has_been_due_for_longest_is_taken_first_however_it_came_to_be() {
    let play = Playground::open().await;
    for part in 0..3 {
        abandon(&play, &format!("abandoned {part} "), 2).await;
        release(&play, &format!("released {part} "), 2).await;
    }
    for part in 0..3 {
        let (keys, _) = take(&play, ", 4").await;
        let parts = ["abandoned", "abandoned", "released", "released"];
        let wanted = parts.map(|what| format!("{what} {part}"));
        assert!(
            keys.iter()
                .zip(&wanted)
                .all(|(key, wanted)| key.starts_with(wanted)),
            "{keys:?}"
        );
    }
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
    let mut tries = 1;
    while !take_and_release(&play, 2).await.contains("dead1") {
        tries += 1;
        assert!(tries <= 21, "it starves");
    }
}

#[tokio::test]
async fn a_take_does_not_read_the_keys_that_the_options_park_again_and_again() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": 1}')"#)
        .await;
    abandon(&play, "parked", 500).await;
    assert_eq!(take(&play, ", 10").await.0.len(), 0);
    play.show("vacuum once.key").await;
    let (keys, read) = take(&play, ", 10").await;
    assert_eq!(keys.len(), 0);
    assert!(read < 30, "{read} entries");
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
    play.ask("select min(attempt), max(attempt) from once.key")
        .is("4|4")
        .await;
}

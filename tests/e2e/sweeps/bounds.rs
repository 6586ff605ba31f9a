//! How much a sweep does, in which order, and that any number of sessions may sweep at once.

use crate::playground::Playground;
use crate::{LARGE, SMALL, counts, drain, finish, reap, tombstone};

#[tokio::test]
async fn each_sweep_is_bounded_by_max_and_says_whether_more_is_waiting() {
    let play = Playground::open().await;
    play.clock("0").await;
    finish(&play, "k", 25, "'1 h'", LARGE).await;
    play.clock("59 min").await;
    assert_eq!(tombstone(&play, 10).await, "0|0|f");
    play.clock("61 min").await;
    assert_eq!(tombstone(&play, 10).await, "10|0|t");
    assert_eq!(tombstone(&play, 10).await, "10|0|t");
    assert_eq!(counts(&play).await, "25|5");
    assert_eq!(tombstone(&play, 10).await, "5|0|f");
    assert_eq!(reap(&play, 10).await, "0|0|f");
    play.clock("25 h 1 min").await;
    assert_eq!(reap(&play, 10).await, "10|0|t");
    assert_eq!(reap(&play, 14).await, "14|0|t");
    assert_eq!(counts(&play).await, "1|0");
    assert_eq!(reap(&play, 14).await, "1|0|f");
}

#[tokio::test]
async fn one_pass_of_sweep_does_each_task_up_to_max() {
    let play = Playground::open().await;
    play.clock("0").await;
    finish(&play, "old", 5, "'1 h'", SMALL).await;
    play.clock("26 h").await;
    finish(&play, "new", 5, "'1 h'", LARGE).await;
    play.clock("28 h").await;
    play.ask("select * from once.sweep(3) where task ~ '^key'")
        .is("key_abandon|0|0|f\nkey_reap|3|0|t\nkey_tombstone|3|0|t")
        .await;
    assert_eq!(drain(&play, 3).await, 2 + 2);
    assert_eq!(counts(&play).await, "5|0");
}

/// So a small answer costs no write between its finish and its end.
#[tokio::test]
async fn a_key_with_little_in_it_is_left_alone_until_its_gone_for_ends() {
    let play = Playground::open().await;
    play.clock("0").await;
    finish(&play, "k", 5, "'1 h'", SMALL).await;
    let places = "select string_agg(ctid::text || xmin, ' ' order by id) from once.key";
    let before = play.show(places).await;
    for clock in ["61 min", "24 h 59 min"] {
        play.clock(clock).await;
        assert_eq!(drain(&play, 2).await, 0);
        assert_eq!(play.claim("k1", ", '1'").await, "gone");
    }
    assert_eq!(play.show(places).await, before);
    play.show("select once.key_get('s', 'k1')").await;
    play.ask("select status, response_code, response_body from once.key_get('s', 'k1')")
        .is("gone|~|~")
        .await;
    play.clock("25 h 1 min").await;
    assert_eq!(drain(&play, 2).await, 5);
    assert_eq!(counts(&play).await, "0|0");
}

#[tokio::test]
async fn an_unfinished_key_is_never_swept_however_old() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.token("running", ", ttl => '1 s'").await;
    let token = play.token("released", ", ttl => '1 s'").await;
    play.show(&format!(
        "select once.key_release('s', 'released', {token})"
    ))
    .await;
    let token = play.token("parked", ", ttl => '1 s'").await;
    play.show(&format!(
        "select once.key_step('s', 'parked', {token}, 'pay')"
    ))
    .await;
    play.show(&format!(
        "select once.key_park('s', 'parked', {token}, 'unknown')"
    ))
    .await;
    for years in [0, 1, 10, 100] {
        play.clock(&format!("{years} years 1 min")).await;
        assert_eq!(drain(&play, 2).await, 0);
    }
    assert_eq!(counts(&play).await, "3|1");
    assert_eq!(play.claim("running", "").await, "resumed");
    assert_eq!(play.claim("parked", "").await, "parked");
}

#[tokio::test]
async fn long_lived_keys_at_the_head_do_not_starve_short_ones() {
    let play = Playground::open().await;
    play.clock("0").await;
    finish(&play, "long", 300, "'10 years'", LARGE).await;
    play.show(
        "select count(*) from generate_series(1, 300) as g,
                lateral once.key_claim('s', 'open' || g, ttl => '1 s')",
    )
    .await;
    finish(&play, "short", 20, "'1 min'", LARGE).await;
    play.clock("1 day").await;
    assert_eq!(drain(&play, 10).await, 20);
    play.clock("3 days").await;
    assert_eq!(drain(&play, 10).await, 20);
    assert_eq!(counts(&play).await, "600|300");
}

#[tokio::test]
async fn a_row_that_somebody_holds_is_skipped_and_swept_later() {
    let play = Playground::open().await;
    let holder = play.another().await;
    play.show("set lock_timeout = '1ms'").await;
    play.clock("0").await;
    finish(&play, "k", 10, "'1 h'", LARGE).await;
    play.clock("2 h").await;
    let hold = "begin; select from once.key where key in ('k3', 'k7') for key share";
    holder.show(hold).await;
    assert_eq!(drain(&play, 100).await, 8);
    holder.show("commit").await;
    assert_eq!(drain(&play, 100).await, 2);
    play.clock("2 days").await;
    holder.show(hold).await;
    assert_eq!(drain(&play, 100).await, 8);
    holder.show("commit").await;
    assert_eq!(drain(&play, 100).await, 2);
    assert_eq!(counts(&play).await, "0|0");
}

/// An old snapshot keeps the index entries of the keys that a run of sweeps has deleted.
#[tokio::test]
async fn a_run_of_sweeps_goes_on_where_the_last_one_ended_and_comes_back_to_what_it_skipped() {
    let play = Playground::directly("a backend remembers where its last sweep ended").await;
    play.clock("0").await;
    finish(&play, "k", 1000, "'1 h'", SMALL).await;
    play.show("update once.key set reap_at = reap_at - substr(key, 2)::int * interval '1 ms'")
        .await;
    let (old, holder) = (play.another().await, play.another().await);
    old.show("begin isolation level repeatable read; select 1")
        .await;
    holder
        .show("begin; select from once.key where key = 'k999' for key share")
        .await;
    play.clock("26 h").await;
    let read = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'key_reap'";
    let before: i64 = play.show(read).await.parse().unwrap();
    for _ in 0..19 {
        assert_eq!(reap(&play, 50).await, "50|0|t");
    }
    assert_eq!(reap(&play, 50).await, "49|0|f");
    play.show("select pg_stat_force_next_flush()").await;
    let after: i64 = play.show(read).await.parse().unwrap();
    assert!(after - before < 6000, "{} entries", after - before);
    holder.show("commit").await;
    assert_eq!(reap(&play, 50).await, "1|0|f");
}

/// How many rows of keys and steps a sweep reads.
pub(crate) async fn rows_read(play: &Playground, sweep: &str) -> i64 {
    // The counters are of what was not yet sent to the statistics.
    play.show("select pg_stat_force_next_flush()").await;
    play.show("begin").await;
    play.show(sweep).await;
    let rows = play
        .show(
            "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))
               from pg_stat_xact_user_tables where schemaname = 'once'",
        )
        .await;
    play.show("commit").await;
    rows.parse().unwrap()
}

#[tokio::test]
async fn both_sweeps_read_in_the_order_of_their_index_and_no_more_than_they_need() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show(
        "alter table once.key set (autovacuum_enabled = off); alter table once.key_step set (autovacuum_enabled = off)",
    )
    .await;
    // A session that has swept while there was nothing, as a janitor's has.
    for _ in 0..10 {
        play.show("select once.sweep(50)").await;
    }
    finish(&play, "k", 5000, "'1 h'", LARGE).await;
    for state in ["new", "analyzed", "empty when vacuumed"] {
        if state == "analyzed" {
            play.show("vacuum analyze once.key").await;
            play.show("vacuum analyze once.key_step").await;
        }
        if state == "empty when vacuumed" {
            // Many pages, and no row as far as the planner knows.
            play.show("delete from once.key; delete from once.key_step")
                .await;
            play.show("vacuum (truncate off, analyze) once.key").await;
            play.show("vacuum (truncate off, analyze) once.key_step")
                .await;
            play.clock("0").await;
            finish(&play, "l", 2000, "'1 h'", LARGE).await;
            let known = "select relpages > 50 and reltuples < 10 from pg_class where oid = 'once.key'::regclass";
            assert_eq!(play.show(known).await, "t");
        }
        play.clock("2 h").await;
        let emptied = rows_read(&play, "select once.sweep(50, 'key_tombstone')").await;
        assert!(emptied < 1000, "{emptied} rows read to empty 50, {state}");
        play.clock("2 days").await;
        let reaped = rows_read(&play, "select once.sweep(50, 'key_reap')").await;
        assert!(reaped < 1000, "{reaped} rows read to delete 50, {state}");
    }
}

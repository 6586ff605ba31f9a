//! What claims answer before, during and after a sweep: the same.

use crate::bounds::rows_read;
use crate::playground::Playground;
use crate::{LARGE, SMALL, counts, drain, finish, reap};

#[tokio::test]
async fn a_key_that_finishes_late_keeps_its_answer_for_its_whole_ttl() {
    let play = Playground::open().await;
    play.clock("0").await;
    let token = play.token("k", ", ttl => '1 h'").await;
    play.clock("10 days").await;
    drain(&play, 10).await;
    play.show(&format!("select once.key_complete('s', 'k', {token}, 200)"))
        .await;
    for (clock, outcome) in [
        ("10 days 59 min", "replayed"),
        ("10 days 61 min", "gone"),
        ("11 days 59 min", "gone"),
    ] {
        play.clock(clock).await;
        drain(&play, 10).await;
        assert_eq!(play.claim("k", "").await, outcome, "{clock}");
    }
    play.clock("11 days 61 min").await;
    drain(&play, 10).await;
    assert_eq!(counts(&play).await, "0|0");
}

/// What claims of eight keys with different ttls answer at this time.
async fn answers(play: &Playground) -> String {
    play.show(
        "select string_agg(outcome, ' ' order by g) from generate_series(1, 8) as g,
                lateral once.key_claim('s', 'k' || g, '1')
          where (select count(*) from once.key_get('s', 'k' || g)) > 0",
    )
    .await
}

#[tokio::test]
async fn answers_do_not_depend_on_whether_a_sweep_has_run() {
    for options in [
        "{}",
        r#"{"gone_for": "0"}"#,
        r#"{"gone_for": "1 month"}"#,
        r#"{"gone_for": "1 day"}"#,
        r#"{"gone_for": "1 year 2 months"}"#,
    ] {
        let (swept, unswept) = (Playground::open().await, Playground::open().await);
        for play in [&swept, &unswept] {
            // A session whose days have 23 or 25 hours sometimes, and whose months differ.
            play.show("set timezone = 'Europe/Berlin'").await;
            play.show(&format!("select once.scope_set('s', '{options}')"))
                .await;
            play.clock("31 days").await;
            for key in 1..=8 {
                play.show(&format!(
                    "select once.key_complete('s', 'k{key}', (once.key_claim('s', 'k{key}', '1',
                            ttl => '{} h')).token, 200)",
                    key * key
                ))
                .await;
            }
        }
        for days in [
            31, 32, 33, 34, 35, 58, 59, 60, 61, 62, 63, 64, 87, 88, 89, 90, 450, 456, 457, 458,
        ] {
            for hours in [1, 4, 13] {
                for play in [&swept, &unswept] {
                    play.clock(&format!("{days} days {hours} hours 1 min"))
                        .await;
                }
                drain(&swept, 3).await;
                let (with, without) = (answers(&swept).await, answers(&unswept).await);
                assert_eq!(with, without, "{options} after {days} days {hours} hours");
            }
        }
    }
}

#[tokio::test]
async fn a_gone_for_that_is_lowered_counts_at_once_and_gives_the_space_back_within_a_day() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show(r#"select once.scope_set('s', '{"gone_for": "10 years"}')"#)
        .await;
    finish(&play, "k", 10, "'1 h'", LARGE).await;
    finish(&play, "l", 10, "'1 h'", SMALL).await;
    play.clock("2 h").await;
    assert_eq!(drain(&play, 100).await, 10);
    assert_eq!(play.claim("k1", ", '1'").await, "gone");
    play.show(r#"select once.scope_set('s', '{"gone_for": "2 h"}')"#)
        .await;
    play.clock("4 h").await;
    assert_eq!(play.claim("k1", ", '1'").await, "claimed");
    drain(&play, 100).await;
    play.clock("1 day 3 h").await;
    drain(&play, 100).await;
    assert_eq!(counts(&play).await, "1|0");
}

#[tokio::test]
async fn a_gone_for_that_is_raised_keeps_tombstones_out_of_the_way_of_others() {
    let play = Playground::open().await;
    play.clock("0").await;
    finish(&play, "k", 30, "'1 h'", LARGE).await;
    play.show(
        "do $$ declare t bigint; begin
            select token into t from once.key_claim('other', 'k', ttl => '1 h');
            perform once.key_complete('other', 'k', t, 200);
         end $$",
    )
    .await;
    play.clock("2 h").await;
    assert_eq!(drain(&play, 100).await, 30);
    play.show(r#"select once.scope_set('s', '{"gone_for": "10 years"}')"#)
        .await;
    play.clock("3 days").await;
    assert_eq!(drain(&play, 5).await, 1);
    assert_eq!(play.claim("k1", ", '1'").await, "gone");
    let read = rows_read(&play, "select once.sweep(5, 'key_reap')").await;
    assert!(read < 10, "{read} rows read with nothing due");
    play.clock("11 years").await;
    assert_eq!(drain(&play, 5).await, 30);
}

/// The options count as they are, not as a snapshot of the past has them.
#[tokio::test]
async fn a_sweep_with_an_old_snapshot_reaps_nothing_that_a_raised_gone_for_keeps() {
    let play = Playground::open().await;
    for level in ["repeatable read", "serializable"] {
        play.clock("0").await;
        play.show(r#"select once.scope_set('s', '{"gone_for": "1 h"}')"#)
            .await;
        finish(&play, "k", 3, "'1 h'", LARGE).await;
        finish(&play, "l", 3, "'1 h'", SMALL).await;
        play.clock("3 h").await;
        for emptied in [false, true] {
            if emptied {
                play.show(r#"select once.scope_set('s', '{"gone_for": "2 h 30 s"}')"#)
                    .await;
                play.show("select * from once.sweep(task => 'key_tombstone')")
                    .await;
            }
            let sweeper = play.another().await;
            sweeper.clock("3 h 1 min").await;
            sweeper
                .show(&format!(
                    "begin isolation level {level}; select count(*) from once.scope"
                ))
                .await;
            play.show(r#"select once.scope_set('s', '{"gone_for": "10 years"}')"#)
                .await;
            assert_eq!(play.claim("k1", ", '1'").await, "gone");
            let reaped = "select done, failed from once.sweep(task => 'key_reap')";
            assert_eq!(sweeper.show(reaped).await, "0|0", "{level}, {emptied}");
            sweeper.show("commit").await;
            assert_eq!(play.claim("k1", ", '1'").await, "gone");
        }
        play.show("truncate once.key, once.key_step").await;
    }
}

/// None of ours leaves such a row behind; somebody's own UPDATE may.
#[tokio::test]
async fn unfinished_rows_among_the_tombstones_keep_nothing_waiting_and_no_sweep_busy() {
    let play = Playground::directly("CALL goes by the settings of its session").await;
    play.clock("0").await;
    finish(&play, "k", 10, "'1 h'", LARGE).await;
    play.clock("2 h").await;
    assert_eq!(drain(&play, 100).await, 10);
    play.show(
        "update once.key set status = 'r', finished_at = null, reap_at = reap_at - interval '1 h'
          where key in ('k1', 'k2', 'k3')",
    )
    .await;
    play.clock("10 days").await;
    play.show("call once.sweep_all(1)").await;
    assert_eq!(counts(&play).await, "3|0");
    let later = "select bool_and(reap_at > '2030-01-10') from once.key";
    assert_eq!(play.show(later).await, "t");
}

#[tokio::test]
async fn with_gone_for_0_an_expired_key_is_new_at_once_swept_or_not() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show(r#"select once.scope_set('s', '{"gone_for": "0"}')"#)
        .await;
    finish(&play, "k", 6, "'1 h'", SMALL).await;
    play.clock("61 min").await;
    let first = "select outcome, attempt from once.key_claim('s', 'KEY', '2')";
    assert_eq!(play.show(&first.replace("KEY", "k1")).await, "claimed|1");
    assert_eq!(reap(&play, 2).await, "2|0|t");
    drain(&play, 2).await;
    assert_eq!(counts(&play).await, "1|0");
    assert_eq!(play.show(&first.replace("KEY", "k2")).await, "claimed|1");
}

#[tokio::test]
async fn claims_during_an_open_sweep_answer_as_before_it() {
    let play = Playground::open().await;
    let sweeper = play.another().await;
    for session in [&play, &sweeper] {
        session.show("set lock_timeout = '1ms'").await;
    }
    play.clock("0").await;
    finish(&play, "k", 3, "'1 h'", LARGE).await;
    finish(&play, "live", 1, "'1 year'", LARGE).await;
    for (clock, sweep, before, after) in [
        ("2 h", "key_tombstone", "gone", "gone"),
        ("2 days", "key_reap", "in_progress", "claimed"),
    ] {
        for session in [&play, &sweeper] {
            session.clock(clock).await;
        }
        sweeper.show("begin").await;
        sweeper
            .ask(&format!("select done from once.sweep(task => '{sweep}')"))
            .is("3")
            .await;
        assert_eq!(play.claim("k1", ", '1'").await, before);
        assert_eq!(
            play.claim("k1", ", '2'").await,
            if before == "gone" {
                "mismatched"
            } else {
                before
            }
        );
        assert_eq!(play.claim("live1", ", '1'").await, "replayed");
        assert_eq!(play.claim(&format!("new {clock}"), "").await, "claimed");
        sweeper.show("commit").await;
        assert_eq!(play.claim("k1", ", '1'").await, after);
    }
}

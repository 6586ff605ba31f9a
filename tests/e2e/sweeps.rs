//! key_tombstone and key_reap: bounded, in the order of time, never an unfinished key, from anywhere.
//!
//! Time is pretended with `once.fake_now`; what a claim answers never depends on whether they have run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test fails"
)]

#[path = "keys/playground.rs"]
mod playground;
mod waiting;

use playground::Playground;
use waiting::{at_once, sessions};

/// Finishes so many keys named `prefix1`, `prefix2`, ... with one step each.
async fn finish(play: &Playground, prefix: &str, count: usize, ttl: &str) {
    let sql = format!(
        "do $$ declare t bigint; begin
            for i in 1 .. {count} loop
                select token into t from once.key_claim('s', '{prefix}' || i, '1', ttl => {ttl});
                perform once.key_step('s', '{prefix}' || i, t, 'pay');
                perform once.key_complete('s', '{prefix}' || i, t, 200, '\"ok\"');
            end loop;
         end $$"
    );
    play.show(&sql).await;
}

async fn tombstone(play: &Playground, max: u32) -> String {
    play.show(&format!(
        "select done, failed, more from once.sweep_key_tombstone({max})"
    ))
    .await
}

async fn reap(play: &Playground, max: u32) -> String {
    play.show(&format!(
        "select done, failed, more from once.sweep_key_reap({max})"
    ))
    .await
}

async fn counts(play: &Playground) -> String {
    play.show("select (select count(*) from once.key), (select count(*) from once.key_step)")
        .await
}

/// Sweeps until nothing is left to do, and says how much was done; fails if it does not end.
async fn drain(play: &Playground, max: u32) -> u64 {
    let mut done = 0;
    for _ in 0..1000 {
        let shown = play
            .show(&format!(
                "select sum(done), bool_or(more) from once.sweep({max})"
            ))
            .await;
        let (now, more) = shown.split_once('|').unwrap();
        done += now.parse::<u64>().unwrap();
        if more == "f" && now == "0" {
            return done;
        }
    }
    panic!("the sweep does not end");
}

#[tokio::test]
async fn each_sweep_is_bounded_by_max_and_says_whether_more_is_waiting() {
    let play = Playground::open().await;
    play.clock("0").await;
    finish(&play, "k", 25, "'1 h'").await;
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
    finish(&play, "old", 5, "'1 h'").await;
    play.clock("26 h").await;
    finish(&play, "new", 5, "'1 h'").await;
    play.clock("28 h").await;
    let shown = play.show("select * from once.sweep(3)").await;
    assert_eq!(shown, "key_reap|3|0|t\nkey_tombstone|3|0|t");
    // Old keys came before new ones in both tasks: two of the old were emptied before they went.
    assert_eq!(drain(&play, 3).await, 2 + 4);
    assert_eq!(counts(&play).await, "5|0");
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
            for hours in [1, 3, 5, 13, 23] {
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
async fn long_lived_keys_at_the_head_do_not_starve_short_ones() {
    let play = Playground::open().await;
    play.clock("0").await;
    finish(&play, "long", 300, "'10 years'").await;
    play.show(
        "select count(*) from generate_series(1, 300) as g,
                lateral once.key_claim('s', 'open' || g, ttl => '1 s')",
    )
    .await;
    finish(&play, "short", 20, "'1 min'").await;
    play.clock("1 day").await;
    assert_eq!(drain(&play, 10).await, 20);
    play.clock("3 days").await;
    assert_eq!(drain(&play, 10).await, 20);
    assert_eq!(counts(&play).await, "600|300");
}

#[tokio::test]
async fn a_reap_alone_gets_past_unfinished_keys_at_the_head() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show(
        "select count(*) from generate_series(1, 100) as g,
                lateral once.key_claim('s', 'open' || g, ttl => '1 s')",
    )
    .await;
    finish(&play, "done", 20, "'1 min'").await;
    play.clock("3 days").await;
    // Whoever schedules the tasks one by one lets both run.
    for _ in 0..30 {
        reap(&play, 10).await;
        tombstone(&play, 10).await;
    }
    assert_eq!(counts(&play).await, "100|0");
}

#[tokio::test]
async fn a_gone_for_that_changes_counts_for_tombstones_too() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show(r#"select once.scope_set('s', '{"gone_for": "10 years"}')"#)
        .await;
    finish(&play, "k", 10, "'1 h'").await;
    play.clock("2 h").await;
    assert_eq!(drain(&play, 100).await, 10);
    assert_eq!(play.claim("k1", ", '1'").await, "gone");
    play.show(r#"select once.scope_set('s', '{"gone_for": "2 h"}')"#)
        .await;
    play.clock("4 h").await;
    assert_eq!(play.claim("k1", ", '1'").await, "claimed");
    assert_eq!(drain(&play, 100).await, 9, "the space comes back");
    assert_eq!(counts(&play).await, "1|0");
}

#[tokio::test]
async fn a_gone_for_that_grows_keeps_tombstones_and_stops_no_others() {
    let play = Playground::open().await;
    play.clock("0").await;
    finish(&play, "k", 30, "'1 h'").await;
    play.show(
        "do $$ declare t bigint; begin
            select token into t from once.key_claim('other', 'k', ttl => '1 h');
            perform once.key_complete('other', 'k', t, 200);
         end $$",
    )
    .await;
    play.clock("2 h").await;
    assert_eq!(drain(&play, 100).await, 31);
    play.show(r#"select once.scope_set('s', '{"gone_for": "10 years"}')"#)
        .await;
    play.clock("3 days").await;
    assert_eq!(drain(&play, 5).await, 1);
    assert_eq!(play.claim("k1", ", '1'").await, "gone");
    play.clock("11 years").await;
    assert_eq!(drain(&play, 5).await, 30);
}

#[tokio::test]
async fn a_row_that_somebody_holds_is_skipped_and_swept_later() {
    let play = Playground::open().await;
    let holder = play.another().await;
    play.show("set lock_timeout = '1ms'").await;
    play.clock("0").await;
    finish(&play, "k", 10, "'1 h'").await;
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

#[tokio::test]
async fn four_sessions_sweep_at_once_and_everything_is_done_once() {
    let play = Playground::open().await;
    let sessions = sessions(&play, 4).await;
    play.clock("0").await;
    finish(&play, "k", 3000, "'1 h'").await;
    play.show("create table done (clock text, done bigint)")
        .await;
    for clock in ["2030-01-01 02:00+00", "2030-01-03 00:00+00"] {
        at_once(&sessions, |_| format!("set once.fake_now = '{clock}'")).await;
        let sweep = format!(
            "do $$ begin
                for i in 1 .. 40 loop
                    insert into done select '{clock}', s.done from once.sweep(100) as s;
                    commit;
                end loop;
             end $$"
        );
        for answer in at_once(&sessions, |_| sweep.clone()).await {
            answer.unwrap();
        }
    }
    assert_eq!(
        play.show("select sum(done) from done group by clock order by clock")
            .await,
        "3000\n3000"
    );
    assert_eq!(counts(&play).await, "0|0");
}

#[tokio::test]
async fn twenty_thousand_keys_that_were_never_swept_go_in_bounded_passes() {
    let play = Playground::open().await;
    play.clock("0").await;
    finish(&play, "k", 20_000, "'1 h'").await;
    play.show("analyze once.key").await;
    play.clock("30 days").await;
    let sql = "
        do $$ declare s record; most bigint := 0; passes int := 0; worst interval := '0'; at timestamptz; begin
            loop
                at := clock_timestamp();
                select sum(done) as done, max(done) as most, bool_or(more) as more into s from once.sweep(1000);
                worst := greatest(worst, clock_timestamp() - at);
                passes := passes + 1; most := greatest(most, s.most);
                exit when not s.more and s.done = 0 or passes > 100;
                commit;
            end loop;
            if most > 1000 or passes > 45 or worst > interval '10 s' then
                raise '% in one pass, % passes, the longest took %', most, passes, worst;
            end if;
        end $$";
    play.show(sql).await;
    assert_eq!(counts(&play).await, "0|0");
}

#[tokio::test]
async fn with_gone_for_0_an_expired_key_is_new_at_once_swept_or_not() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show(r#"select once.scope_set('s', '{"gone_for": "0"}')"#)
        .await;
    finish(&play, "k", 6, "'1 h'").await;
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
    finish(&play, "k", 3, "'1 h'").await;
    finish(&play, "live", 1, "'1 year'").await;
    for (clock, sweep, before, after) in [
        ("2 h", "sweep_key_tombstone", "gone", "gone"),
        ("2 days", "sweep_key_reap", "in_progress", "claimed"),
    ] {
        for session in [&play, &sweeper] {
            session.clock(clock).await;
        }
        sweeper.show("begin").await;
        assert_eq!(
            sweeper
                .show(&format!("select done from once.{sweep}()"))
                .await,
            "3"
        );
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

/// How many rows of keys and steps a sweep reads.
async fn rows_read(play: &Playground, sweep: &str) -> i64 {
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
    // A session that has swept while there was nothing, as a janitor's has.
    for _ in 0..10 {
        play.show("select once.sweep(50)").await;
    }
    finish(&play, "k", 5000, "'1 h'").await;
    for analyzed in [false, true] {
        if analyzed {
            play.show("vacuum analyze once.key").await;
            play.show("vacuum analyze once.key_step").await;
        }
        play.clock("2 h").await;
        let emptied = rows_read(&play, "select once.sweep_key_tombstone(50)").await;
        assert!(
            emptied < 1000,
            "{emptied} rows read to empty 50, analyzed {analyzed}"
        );
        play.clock("2 days").await;
        let reaped = rows_read(&play, "select once.sweep_key_reap(50)").await;
        assert!(
            reaped < 1000,
            "{reaped} rows read to delete 50, analyzed {analyzed}"
        );
    }
}

//! Rows that cannot be swept, a thousand of them at the head: those behind them are not kept waiting.

use crate::playground::Playground;
use crate::serving::expired;
use crate::world::{JOBS, claim, launch, show, until};

#[tokio::test]
async fn a_thousand_rows_that_cannot_be_reverted_keep_the_one_behind_them_waiting_for_a_pass_at_most()
 {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    show(
        &client,
        "insert into job select g from generate_series(101, 1500) as g;
         alter table job add constraint poison check (status <> 'ready' or id not between 1 and 1000) not valid",
    )
    .await;
    show(&client, "begin").await;
    claim(&client, 1, 1000, "1 us").await;
    claim(&client, 1001, 1001, "1 us").await;
    show(&client, "commit").await;
    until(&client, "select status from job where id = 1001", "ready").await;
    until(
        &client,
        "select done, failed >= 1000, last_error ~ 'poison' from once.janitor_status() where machine = 'job'",
        "1|t|t",
    )
    .await;
    // Put off: they come back one by one, and what comes meanwhile is done at once.
    let again = "select count(*) from once.action_lease where state = 'h' and failures > 0 and look_at > clock_timestamp()";
    until(&client, again, "1000").await;
    claim(&client, 1002, 1500, "1 us").await;
    until(
        &client,
        "select count(*) from job where id > 1000 and status = 'ready'",
        "500",
    )
    .await;
    show(&client, "alter table job drop constraint poison").await;
    show(
        &client,
        "update once.action_lease set look_at = clock_timestamp() where state = 'h'",
    )
    .await;
    until(&client, "select distinct status from job", "ready").await;
}

/// Rows of our own tables are refused by a superuser's trigger only, or because they are damaged.
const REFUSE: &str = "
create function refuse() returns trigger language plpgsql as $$ begin raise exception '% is damaged', old.id; end $$;";

/// Messages that are due, the first the longest.
async fn messages(play: &Playground, number: u32) {
    let sql = format!(
        "insert into once.inbox (expires_at, status, id, scope, name)
         select clock_timestamp() - interval '1 day' + g * interval '1 s', 'm', md5(g::text)::uuid, 's', g
           from generate_series(1, {number}) as g"
    );
    play.show(&sql).await;
}

/// Passes of at most 100 rows until the one behind the thousand is gone; what they did and what failed.
async fn reached(play: &Playground, task: &str, least: u32, left: &str) {
    let mut failed = 0;
    for _ in 0..30 {
        let swept = play
            .show(&format!("select done, failed from once.sweep_{task}(100)"))
            .await;
        let (done, now_failed) = swept.split_once('|').unwrap();
        failed += now_failed.parse::<u32>().unwrap();
        if done == "1" {
            assert!(failed >= least, "{task}: {failed}");
            let noted = format!(
                "select done, failed, last_error like '%is damaged' from once.janitor where task = '{task}'"
            );
            assert_eq!(play.show(&noted).await, format!("1|{failed}|t"));
            assert_eq!(play.show(left).await, "1000");
            return;
        }
        assert_eq!(done, "0", "{task}");
    }
    panic!("{task} has not come to the row behind: {failed} failed");
}

#[tokio::test]
async fn a_thousand_rows_of_ours_that_cannot_be_changed_keep_nothing_waiting_behind_them() {
    let play = Playground::open().await;
    play.show(REFUSE).await;
    messages(&play, 1001).await;
    play.show(
        "create trigger refuse before delete on once.inbox for each row when (old.name <> '1001') execute function refuse();
         insert into once.dedupe (topic_id, event_id, until, id)
         select 1, g, clock_timestamp() - interval '1 day' + g * interval '1 s', md5(g::text)::uuid
           from generate_series(1, 1001) as g;
         create trigger refuse before delete on once.dedupe for each row when (old.event_id <> 1001) execute function refuse()",
    )
    .await;
    reached(&play, "inbox_reap", 1000, "select count(*) from once.inbox").await;
    reached(
        &play,
        "dedupe_reap",
        1000,
        "select count(*) from once.dedupe",
    )
    .await;
}

#[tokio::test]
async fn a_thousand_keys_that_cannot_be_changed_keep_nothing_waiting_behind_them() {
    let play = Playground::open().await;
    play.show(REFUSE).await;
    expired(&play.client, 1001).await;
    play.show(
        "update once.key set reap_at = reap_at + key::int * interval '1 s';
         create trigger refuse before update or delete on once.key for each row when (old.key <> '1001')
            execute function refuse()",
    )
    .await;
    let full = "select count(*) from once.key where status = 'c'";
    reached(&play, "key_tombstone", 1000, full).await;
    // What is a tombstone by now comes before those that were never emptied.
    reached(&play, "key_reap", 1, "select count(*) from once.key").await;
}

#[tokio::test]
async fn one_bad_row_among_many_good_ones_costs_it_alone() {
    let play = Playground::open().await;
    play.show(REFUSE).await;
    expired(&play.client, 3000).await;
    play.show(
        "create trigger refuse before update or delete on once.key for each row when (old.key = '700')
            execute function refuse()",
    )
    .await;
    let mut passes = 0;
    while play.show("select count(*) from once.key").await != "1" {
        play.show("select * from once.sweep()").await;
        passes += 1;
        assert!(passes < 60, "it does not come to an end");
    }
    let failed = "select failed > 0 from once.janitor where task = 'key_reap'";
    assert_eq!(play.show(failed).await, "t");
    play.show("drop trigger refuse on once.key").await;
    play.show("select * from once.sweep()").await;
    assert_eq!(play.show("select count(*) from once.key").await, "0");
}

/// Each pass fails and says so, does no more than it may, and comes to the end of its rows in a session of its own, too.
#[tokio::test]
async fn a_pass_that_fails_says_so_and_keeps_its_bound() {
    let play = Playground::open().await;
    play.show(REFUSE).await;
    messages(&play, 300).await;
    play.show(
        "create trigger refuse before delete on once.inbox for each row when (old.name = '1') execute function refuse()",
    )
    .await;
    for _ in 0..100 {
        let session = play.another().await;
        let swept = session
            .show("select done <= 100, failed > 0 from once.sweep_inbox_reap(100)")
            .await;
        assert!(swept.starts_with('t'), "{swept}");
        if play.show("select count(*) from once.inbox").await == "1" {
            break;
        }
    }
    let left = "select name from once.inbox";
    assert_eq!(play.show(left).await, "1");
    for _ in 0..6 {
        let swept = "select done, failed, more from once.sweep_inbox_reap(100)";
        assert_eq!(play.show(swept).await, "0|1|f");
    }
    let noted = "select good_end is null or good_end < last_end from once.janitor where task = 'inbox_reap'";
    assert_eq!(play.show(noted).await, "t");
}

/// Each row takes longer than a pass may: one is tried in each, and none of them again before all were.
#[tokio::test]
async fn rows_that_are_slow_to_fail_keep_nothing_waiting_for_ever() {
    let play = Playground::directly("a session that remembers where it was").await;
    messages(&play, 12).await;
    play.show(
        "create function refuse_slowly() returns trigger language plpgsql as $$
            begin perform pg_sleep(0.3); raise exception '% is damaged', old.id; end $$;
         create trigger refuse before delete on once.inbox for each row when (old.name::int <= 8)
            execute function refuse_slowly()",
    )
    .await;
    let mut passes = 0;
    while play.show("select count(*) from once.inbox").await != "8" {
        let failed = play
            .show("select failed from once.sweep_inbox_reap(1000)")
            .await;
        assert_ne!(failed, "0");
        passes += 1;
        assert!(passes < 25, "it does not come to an end");
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_emptied_keeps_no_bookmark_from_moving() {
    let play = Playground::open().await;
    play.show(REFUSE).await;
    let bookmarks = "select count(*) from once.key_bookmark";
    expired(&play.client, 10).await;
    play.show(
        "create trigger refuse before update or delete on once.key for each row when (old.key = '7')
            execute function refuse()",
    )
    .await;
    for _ in 0..5 {
        play.show("select * from once.sweep_key_tombstone(1000)")
            .await;
    }
    assert_eq!(play.show(bookmarks).await, "1");
}

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

/// The same of all messages but one.
async fn messages_and_one_good(play: &Playground, number: u32) {
    play.show(REFUSE).await;
    messages(play, number).await;
    play.show(&format!(
        "create trigger refuse before delete on once.inbox for each row when (old.name <> '{number}')
            execute function refuse()"
    ))
    .await;
}

/// Messages that became due within a moment, the first the longest ago.
async fn messages(play: &Playground, number: u32) {
    let sql = format!(
        "insert into once.inbox (expires_at, status, id, scope, name)
         select clock_timestamp() - interval '1 day' + g * interval '1 ms', 'm', md5(g::text)::uuid, 's', g
           from generate_series(1, {number}) as g"
    );
    play.show(&sql).await;
}

/// Passes of at most 100 rows, each in a session of its own, until the one behind the thousand is gone; what they did and
/// what failed.
async fn reached(play: &Playground, task: &str, least: u32, left: &str) {
    let mut failed = 0;
    for _ in 0..30 {
        let session = play.another().await;
        let swept = session
            .show(&format!(
                "select more, done, failed from once.sweep_{task}(100)"
            ))
            .await;
        let [more, done, now_failed] = swept.split('|').collect::<Vec<_>>().try_into().unwrap();
        // Nobody is to come back at once for rows that fail; bookmarks are moved all the same.
        assert!(more == "f" || task == "key_tombstone", "{task}: {swept}");
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
    messages_and_one_good(&play, 1001).await;
    play.show(
        "insert into once.dedupe (topic_id, event_id, until, id)
         select 1, g, clock_timestamp() - interval '1 day' + g * interval '1 ms', md5(g::text)::uuid
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
        "update once.key set reap_at = reap_at + key::int * interval '1 ms';
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
    let play = Playground::open().await;
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
        let session = play.another().await;
        let failed = session
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

/// Each call goes on among them for a while, and ends.
#[tokio::test]
async fn sweep_all_passes_by_a_thousand_rows_that_fail() {
    let play = Playground::directly("CALL goes by the settings of its session").await;
    messages_and_one_good(&play, 1001).await;
    for _ in 0..40 {
        play.show("call once.sweep_all()").await;
        if play.show("select count(*) from once.inbox").await == "1000" {
            return;
        }
    }
    panic!("it does not come to the row behind them");
}

/// What is due comes while as much fails as one pass looks at: no pass that mostly fails says that there is more.
#[tokio::test]
async fn rows_that_fail_keep_nobody_coming_back_at_once() {
    let play = Playground::open().await;
    play.show(REFUSE).await;
    messages(&play, 251).await;
    play.show(
        "create trigger refuse before delete on once.inbox for each row when (old.name <> 'good')
            execute function refuse()",
    )
    .await;
    for _ in 0..10 {
        play.show(
            "insert into once.inbox (expires_at, status, id, scope, name)
             select clock_timestamp(), 'm', gen_random_uuid(), 's', 'good' from generate_series(1, 20)",
        )
        .await;
        let swept = play
            .show("select not more or done > failed, failed > 0 from once.sweep_inbox_reap()")
            .await;
        assert_eq!(swept, "t|t");
    }
}

/// A trigger that keeps rows back without a word.
const KEEP: &str = "
create function keep() returns trigger language plpgsql as $$ begin return null; end $$;";

#[tokio::test]
async fn rows_that_are_kept_back_without_a_word_are_told_and_passed_by() {
    let play = Playground::directly("CALL goes by the settings of its session").await;
    play.show(KEEP).await;
    messages(&play, 31).await;
    expired(&play.client, 31).await;
    play.show(
        "update once.key set reap_at = reap_at + key::int * interval '1 ms';
         insert into once.dedupe (topic_id, event_id, until, id)
         select 1, g, clock_timestamp() - interval '1 day' + g * interval '1 ms', md5(g::text)::uuid
           from generate_series(1, 31) as g;
         create trigger keep before delete on once.inbox for each row when (old.name <> '31') execute function keep();
         create trigger keep before delete on once.dedupe for each row when (old.event_id <> 31) execute function keep();
         create trigger keep before update or delete on once.key for each row when (old.key <> '31') execute function keep()",
    )
    .await;
    for (task, table, left) in [
        ("inbox_reap", "inbox", "30"),
        ("dedupe_reap", "dedupe", "30"),
        ("key_tombstone", "key", "31"),
        ("key_reap", "key", "30"),
    ] {
        for _ in 0..5 {
            let swept = format!("select more from once.sweep_{task}(10)");
            let more = play.another().await.show(&swept).await;
            assert!(more == "f" || task == "key_tombstone", "{task}");
        }
        let rows = format!("select count(*) from once.{table}");
        assert_eq!(play.show(&rows).await, left, "{task}");
        let noted = format!(
            "select done, failed >= 30, last_error like 'a trigger or rule % kept back due rows of once.{table}: %'
               from once.janitor where task = '{task}'"
        );
        assert_eq!(play.show(&noted).await, "1|t|t", "{task}");
    }
    play.show("call once.sweep_all(10)").await;
}

/// A new request under the key would be answered by a step that stayed.
#[tokio::test]
async fn a_key_stays_with_steps_that_are_kept_back() {
    let play = Playground::open().await;
    play.show(KEEP).await;
    expired(&play.client, 20).await;
    play.show(
        "insert into once.key_step (key_id, step, version, begun)
         select id, step, 1, 1 from once.key, unnest(array['charge', 'ship']) as step;
         create trigger keep before delete on once.key_step for each row
            when (old.key_id = md5('7')::uuid and old.step = 'charge') execute function keep()",
    )
    .await;
    for (task, full) in [
        (
            "key_tombstone",
            "select count(*) from once.key where status = 'c'",
        ),
        ("key_reap", "select count(*) from once.key"),
    ] {
        for _ in 0..4 {
            let swept = format!("select failed from once.sweep_{task}()");
            assert_eq!(play.show(&swept).await, "1", "{task}");
        }
        assert_eq!(play.show(full).await, "1", "{task}");
        let noted = format!("select done, last_error from once.janitor where task = '{task}'");
        let told = "a trigger or rule that is not pg_once's kept back steps of due keys: 1";
        assert_eq!(play.show(&noted).await, format!("19|{told}"), "{task}");
    }
    // Undone with the key's own failure.
    let left = "select key, (select count(*) from once.key_step) from once.key";
    assert_eq!(play.show(left).await, "7|2");
    play.show("alter table once.key_step disable trigger keep")
        .await;
    play.show("select * from once.sweep(); select * from once.sweep()")
        .await;
    assert_eq!(play.show("select count(*) from once.key").await, "0");
    assert_eq!(play.show("select count(*) from once.key_step").await, "0");
}

/// A constraint of somebody's own that looks only when the transaction ends.
#[tokio::test]
async fn a_deferred_constraint_on_a_table_of_ours_costs_its_row_alone() {
    let play = Playground::directly("CALL goes by the settings of its session").await;
    messages(&play, 100).await;
    play.show(
        "insert into once.dedupe (topic_id, event_id, until, id)
         select 1, g, clock_timestamp() - interval '1 day', md5(g::text)::uuid from generate_series(1, 10) as g;
         create table child (id uuid references once.inbox (id) deferrable initially deferred);
         insert into child select id from once.inbox where name = '7'",
    )
    .await;
    let swept = "select done, failed from once.sweep() where task in ('inbox_reap', 'dedupe_reap')";
    assert_eq!(play.show(swept).await, "99|1\n10|0");
    play.show("call once.sweep_all()").await;
    assert_eq!(play.show("select name from once.inbox").await, "7");
    let noted = "select failed, last_error like '%violates foreign key%' from once.janitor where task = 'inbox_reap'";
    assert_eq!(play.show(noted).await, "2|t");
}

/// What the caller has deferred is run before, with the caller's patience.
#[tokio::test]
async fn what_the_caller_has_deferred_waits_as_long_as_he_would() {
    let play = Playground::directly("a transaction's settings").await;
    play.show(KEEP).await;
    messages(&play, 3).await;
    play.show(
        "create trigger keep before delete on once.inbox for each row when (old.name = '1') execute function keep();
         create table mine (patience text);
         create function note() returns trigger language plpgsql as $$ begin
            update mine set patience = current_setting('lock_timeout'); return null; end $$;
         create constraint trigger note after insert on mine deferrable initially deferred
            for each row execute function note()",
    )
    .await;
    let swept = "select done, failed from once.sweep_inbox_reap()";
    play.show("set lock_timeout = '1h'; begin; insert into mine values ('none')")
        .await;
    assert_eq!(play.show(swept).await, "2|1");
    assert_eq!(play.show("select patience from mine").await, "1h");
    play.show("commit").await;
    // A pass that goes on where one ended does so, too.
    play.show(
        "update once.janitor set reached = '0 0 (0,0)'; begin; insert into mine values ('none')",
    )
    .await;
    assert_eq!(play.show(swept).await, "0|1");
    assert_eq!(play.show("select distinct patience from mine").await, "1h");
    play.show("commit").await;
}

/// Without lock_timeout, too.
#[tokio::test]
async fn a_lock_that_a_trigger_waits_for_ends_its_row_and_not_the_pass() {
    let play = Playground::open().await;
    messages(&play, 100).await;
    play.show(
        "create table child (id uuid references once.inbox (id));
         insert into child select id from once.inbox where name = '7'",
    )
    .await;
    let holder = play.another().await;
    holder
        .show("begin; lock table child in access exclusive mode")
        .await;
    let swept = "select done, failed >= 1 from once.sweep_inbox_reap()";
    assert_eq!(play.show(swept).await, "0|t");
    holder.show("rollback").await;
    assert_eq!(play.show(swept).await, "99|t");
}

/// So many messages that are due, of which some wait for a lock of the second session's.
async fn waiting_for_a_lock(count: u32, some: &str) -> (Playground, Playground) {
    let play = Playground::open().await;
    messages(&play, count).await;
    play.show(&format!(
        "create table busy ();
         create function wait() returns trigger language plpgsql as $$ begin
            lock table public.busy in share mode; return old; end $$;
         create trigger wait before delete on once.inbox for each row when ({some}) execute function wait()"
    ))
    .await;
    let holder = play.another().await;
    holder
        .show("begin; lock table busy in row exclusive mode")
        .await;
    (play, holder)
}

/// Every tenth row's trigger waits for somebody's lock: what is between them is done in a few passes.
#[tokio::test]
async fn rows_between_those_that_wait_for_a_lock_are_done_soon() {
    let (play, holder) = waiting_for_a_lock(200, "old.name like '%0'").await;
    let mut passes = 0;
    while play.show("select count(*) from once.inbox").await != "20" {
        play.show("select * from once.sweep_inbox_reap()").await;
        passes += 1;
        assert!(passes < 30, "it does not come to an end");
    }
    holder.show("rollback").await;
    play.show("select * from once.sweep_inbox_reap()").await;
    play.show("select * from once.sweep_inbox_reap()").await;
    assert_eq!(play.show("select count(*) from once.inbox").await, "0");
}

/// Many rows in a row whose triggers wait: some dozens are passed by in each pass.
#[tokio::test]
async fn many_rows_that_wait_for_a_lock_are_soon_passed_by() {
    let (play, _holder) = waiting_for_a_lock(151, "old.name <> '151'").await;
    let mut passes = 0;
    while play.show("select count(*) from once.inbox").await != "150" {
        play.show("select * from once.sweep_inbox_reap()").await;
        passes += 1;
        assert!(passes < 16, "it does not come to the row behind them");
    }
}

/// The old row instead of the new one: every update is done, and changes nothing.
#[tokio::test]
async fn keys_that_a_trigger_leaves_as_they_are_are_told_and_not_swept_for_ever() {
    let play = Playground::directly("CALL goes by the settings of its session").await;
    expired(&play.client, 30).await;
    play.show(
        "create function leave() returns trigger language plpgsql as $$ begin return old; end $$;
         create trigger leave before update on once.key for each row execute function leave()",
    )
    .await;
    let swept = "select done, failed >= 10, more from once.sweep_key_tombstone(30)";
    let mut passes = 0;
    // Bookmarks are moved, when other transactions let them.
    while play.show(swept).await != "0|t|f" {
        passes += 1;
        assert!(passes < 50, "it does not come to an end");
    }
    let noted =
        "select done, failed > 0, last_error from once.janitor where task = 'key_tombstone'";
    let told = play.show(noted).await;
    assert!(
        told.starts_with("0|t|a trigger or rule that is not pg_once's kept back"),
        "{told}"
    );
    play.show("drop trigger leave on once.key").await;
    play.show("call once.sweep_all(10)").await;
    assert_eq!(play.show("select count(*) from once.key").await, "0");
}

/// Neither does what key_tombstone does besides wait for it.
#[tokio::test]
async fn a_table_that_is_kept_locked_fails_its_tasks_soon_without_lock_timeout() {
    let play = Playground::open().await;
    messages(&play, 10).await;
    let holder = play.another().await;
    holder
        .show("begin; lock table once.key in access exclusive mode")
        .await;
    let failed = "select task from once.sweep() where failed > 0";
    assert_eq!(play.show(failed).await, "key_reap\nkey_tombstone");
    assert_eq!(play.show("select count(*) from once.inbox").await, "0");
    holder.show("rollback").await;
    assert_eq!(play.show(failed).await, "");
}

/// Where a pass ended is not lost with one that could not be made, and what is not understood is the beginning.
#[tokio::test]
async fn the_next_pass_goes_on_where_it_is_noted_and_anything_else_is_the_beginning() {
    let play = Playground::open().await;
    play.show(REFUSE).await;
    messages(&play, 600).await;
    play.show(
        "create trigger refuse before delete on once.inbox for each row execute function refuse()",
    )
    .await;
    let swept = "select failed > 0 from once.sweep_inbox_reap()";
    assert_eq!(play.show(swept).await, "t");
    let reached = "select reached from once.janitor where task = 'inbox_reap'";
    let place = play.show(reached).await;
    assert!(place.starts_with("0 "), "{place}");
    let holder = play.another().await;
    holder
        .show("begin; lock table once.inbox in access exclusive mode")
        .await;
    assert_eq!(play.show(swept).await, "t");
    assert_eq!(play.show(reached).await, place);
    holder.show("rollback").await;
    play.show(swept).await;
    assert_ne!(play.show(reached).await, place);
    play.show("drop trigger refuse on once.inbox; delete from once.inbox")
        .await;
    for odd in [
        "x",
        "7 0 (0,1)",
        "0 99999999999999999999 (0,1)",
        "0 1 (x)",
        "0 1",
        "",
    ] {
        play.show(&format!(
            "update once.janitor set reached = '{odd}' where task = 'inbox_reap'"
        ))
        .await;
        messages(&play, 10).await;
        for _ in 0..3 {
            play.show(swept).await;
        }
        assert_eq!(
            play.show("select count(*) from once.inbox").await,
            "0",
            "{odd}"
        );
    }
}

/// A session remembers where its pass ended while somebody's open transaction has noted a run.
#[tokio::test]
async fn a_place_that_cannot_be_noted_is_remembered() {
    let play = Playground::directly("what a session remembers").await;
    messages_and_one_good(&play, 1001).await;
    let pass = "select failed > 0 from once.sweep_inbox_reap(1000)";
    assert_eq!(play.show(pass).await, "t");
    let holder = play.another().await;
    holder
        .show("begin; update once.janitor set done = done where task = 'inbox_reap'")
        .await;
    let noted = "select reached from once.janitor where task = 'inbox_reap'";
    let place = play.show(noted).await;
    let mut passes = 0;
    while play.show("select count(*) from once.inbox").await != "1000" {
        assert_eq!(play.show(pass).await, "t");
        passes += 1;
        assert!(passes < 30, "it does not come to the row behind them");
    }
    assert_eq!(play.show(noted).await, place);
    // What is noted since is newer.
    holder
        .show("update once.janitor set last_end = clock_timestamp(), reached = null where task = 'inbox_reap'; commit")
        .await;
    play.show("alter table once.inbox disable trigger refuse")
        .await;
    let all = "select done, failed, more from once.sweep_inbox_reap(1001)";
    assert_eq!(play.show(all).await, "1000|0|f");
}

/// While somebody keeps the whole table, too: the pass goes on there once it can be read again.
#[tokio::test]
async fn a_place_is_remembered_past_the_end_of_a_lock_of_once_janitor() {
    let play = Playground::directly("what a session remembers").await;
    messages_and_one_good(&play, 1001).await;
    play.show(
        "create sequence first_tried minvalue 1 maxvalue 2000;
         create or replace function refuse() returns trigger language plpgsql as $$ begin
            perform case when old.name::int < last_value then setval('public.first_tried', old.name::int) end from public.first_tried;
            raise 'not today'; end $$",
    )
    .await;
    let pass = "select failed > 0 from once.sweep_inbox_reap(1000)";
    let holder = play.another().await;
    holder
        .show("begin; lock table once.janitor in access exclusive mode")
        .await;
    let first = "select last_value > 1 from first_tried";
    for tried in ["f", "t"] {
        play.show("alter sequence first_tried restart 2000").await;
        assert_eq!(play.show(pass).await, "t");
        assert_eq!(play.show(first).await, tried);
    }
    holder.show("rollback").await;
    play.show("alter sequence first_tried restart 2000").await;
    assert_eq!(play.show(pass).await, "t");
    assert_eq!(play.show(first).await, "t");
}

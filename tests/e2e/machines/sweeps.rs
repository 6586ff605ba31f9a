//! The sweep task action_release: what is overdue goes back, bounded, from many sessions, past what is locked and
//! what cannot be reverted.

use crate::playground::Playground;
use crate::world::{drain, job, jobs, sweep, token, world};

/// Jobs 1 to `count`, each claimed for a microsecond.
async fn overdue(count: i64) -> Playground {
    let play = world().await;
    claimed(&play, 1, count).await;
    play
}

async fn claimed(play: &Playground, first: i64, last: i64) {
    jobs(play, first, last, "ready").await;
    let shown = play
        .show(&format!(
            "select count(*) filter (where outcome = 'claimed') from generate_series({first}, {last}) as g,
                lateral once.action_claim('job', g::text, 'run', lease => '1 us')"
        ))
        .await;
    assert_eq!(shown, (last - first + 1).to_string());
}

async fn count(play: &Playground, status: &str) -> String {
    play.show(&format!(
        "select count(*) from job where status = '{status}'"
    ))
    .await
}

#[tokio::test]
async fn an_overdue_row_goes_back_once_its_lease_is_over_and_not_before() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    play.clock("0").await;
    token(&play, 1, "run", "").await;
    play.clock("29 s").await;
    assert_eq!(sweep(&play, 10).await, "0|0|f");
    assert_eq!(job(&play, 1).await, "running|1");
    play.clock("31 s").await;
    play.ask("select * from once.sweep(10, 'action_release')")
        .is("action_release|1|0|f")
        .await;
    assert_eq!(job(&play, 1).await, "ready|2");
    assert_eq!(sweep(&play, 10).await, "0|0|f");
}

#[tokio::test]
async fn each_sweep_is_bounded_and_says_whether_more_is_waiting() {
    let play = overdue(25).await;
    assert_eq!(sweep(&play, 10).await, "10|0|t");
    assert_eq!(count(&play, "ready").await, "10");
    assert_eq!(sweep(&play, 10).await, "10|0|t");
    assert_eq!(sweep(&play, 10).await, "5|0|f");
    assert_eq!(count(&play, "ready").await, "25");
    for max in ["0", "-1", "1000001", "null"] {
        let call = format!("select once.sweep({max}, 'action_release')");
        assert_eq!(play.code(&call).await, "22023", "{max}");
    }
}

#[tokio::test]
async fn a_sweep_tells_of_action_release_beside_the_other_tasks() {
    let play = overdue(5).await;
    let shown = play
        .show("select done, failed, more from once.sweep(3) where task = 'action_release'")
        .await;
    assert_eq!(shown, "3|0|t");
    play.ask("select string_agg(task, ' ') from once.sweep(3)")
        .is("action_release key_abandon key_reap key_tombstone outbox_requeue inbox_reap dedupe_reap dead_reap history_reap outbox_retire")
        .await;
    assert_eq!(count(&play, "ready").await, "5");
}

#[tokio::test]
async fn a_sweep_of_one_machine_leaves_the_others_alone() {
    let play = overdue(3).await;
    play.show("create table other (id int primary key, status text not null)")
        .await;
    crate::world::define(
        &play,
        r#"{"machine": "other", "table": "other", "id": "id", "status": "status",
            "status_types": ["a", "w", "b"], "steps": [{"step_key": "s", "status": "a",
            "claim_state": {"*": ["w", "a"]}, "successful_state": {"*": "b"}}]}"#,
    )
    .await;
    play.show("insert into other values (1, 'a'); select once.action_claim('other', '1', 's', lease => '1 us')")
        .await;
    play.ask("select done, failed, more from once.sweep(10, 'action_release', 'other')")
        .is("1|0|f")
        .await;
    assert_eq!(count(&play, "running").await, "3");
    assert_eq!(sweep(&play, 10).await, "3|0|f");
}

#[tokio::test]
async fn one_row_that_cannot_be_reverted_does_not_stop_a_thousand_others() {
    let play = overdue(1001).await;
    play.show(
        "create function poison() returns trigger language plpgsql as $$ begin
            if new.id = 500 and new.status = 'ready' then raise 'never row %', new.id; end if; return new; end $$;
         create trigger poison before update on job for each row execute function poison()",
    )
    .await;
    assert_eq!(drain(&play, 100).await, (1000, 1));
    assert_eq!(count(&play, "ready").await, "1000");
    assert_eq!(job(&play, 500).await, "running|1");
    let noted = play
        .show("select failures, note like '%never row 500%' from once.action_lease where row_id = '500'")
        .await;
    assert_eq!(noted, "1|t");
    play.ask("select failed, last_error like '%never row 500%' from once.janitor where task = 'action_release' and machine = 'job'")
        .is("1|t")
        .await;
    // After the repair it need not wait, and nobody is told of the old failure as if it were today's.
    play.show("drop trigger poison on job").await;
    assert_eq!(sweep(&play, 10).await, "0|0|f");
    let expire = "select once.action_expire('job', 500)";
    assert_eq!(
        [play.show(expire).await, play.show(expire).await],
        ["t", "f"]
    );
    play.clock("3 h").await;
    assert_eq!(sweep(&play, 1000).await, "1|0|f");
    let at = "select last_error_at < last_end from once.janitor_status() where machine = 'job'";
    assert_eq!(play.show(at).await, "t");
    play.clock("4 h").await;
    play.ask(
        "select problem ~ 'not covered', problem ~ 'never row' from once.machine_check('job')",
    )
    .begins("t|f")
    .await;
}

#[tokio::test]
async fn a_row_that_cannot_be_reverted_is_put_off_twice_as_long_each_time_and_then_comes_back() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    play.clock("0").await;
    token(&play, 1, "run", "").await;
    play.show("alter table job add constraint poison check (status <> 'ready') not valid")
        .await;
    let mut last = 0.0;
    let mut minutes = 1.0;
    for failures in 1..=6 {
        play.clock(&format!("{minutes} min")).await;
        assert_eq!(sweep(&play, 10).await, "0|1|f", "{failures}");
        assert_eq!(sweep(&play, 10).await, "0|0|f", "{failures}");
        let shown = play
            .show(
                "select failures, extract(epoch from look_at - current_setting('once.fake_now')::timestamptz) / 60
                   from once.action_lease",
            )
            .await;
        let (count, delay) = shown.split_once('|').unwrap();
        let delay: f64 = delay.parse().unwrap();
        assert_eq!(count, failures.to_string());
        assert!(delay > last, "{delay} min after {last}");
        minutes += delay - 0.001;
        play.clock(&format!("{minutes} min")).await;
        assert_eq!(sweep(&play, 10).await, "0|0|f", "{failures}: too early");
        minutes += 0.002;
        last = delay;
    }
    play.show("alter table job drop constraint poison").await;
    play.clock(&format!("{minutes} min")).await;
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    assert!(job(&play, 1).await.starts_with("ready|"));
    // The next holder begins with a clean slate.
    token(&play, 1, "run", "").await;
    play.ask("select failures from once.action_lease")
        .is("0")
        .await;
}

#[tokio::test]
async fn poison_rows_at_the_head_do_not_starve_the_others() {
    let play = overdue(60).await;
    play.show(
        "alter table job add constraint poison check (status <> 'ready' or id > 30) not valid",
    )
    .await;
    let mut done = 0;
    for _ in 0..20 {
        let shown = sweep(&play, 10).await;
        done += shown.split('|').next().unwrap().parse::<u64>().unwrap();
    }
    assert_eq!(done, 30);
    assert_eq!(count(&play, "ready").await, "30");
}

#[tokio::test]
async fn locked_rows_and_locked_leases_wait_for_the_next_sweep() {
    let play = overdue(6).await;
    let (first, second) = (play.another().await, play.another().await);
    play.show("set lock_timeout = '1ms'").await;
    first
        .show("begin; select from job where id = 2 for no key update; update job set note = 'x' where id = 3")
        .await;
    second
        .show("begin; select from once.action_lease where row_id = '5' for update")
        .await;
    assert_eq!(sweep(&play, 10).await.split_once('|').unwrap().0, "3");
    first.show("commit").await;
    second.show("commit").await;
    // Skipped is not failed: nothing was put off.
    play.ask("select sum(failures) from once.action_lease")
        .is("0")
        .await;
    assert_eq!(drain(&play, 10).await, (3, 0));
    assert_eq!(count(&play, "ready").await, "6");
}

#[tokio::test]
async fn a_row_locked_for_key_share_by_an_item_writer_is_reverted() {
    let play = overdue(1).await;
    let other = play.another().await;
    other.show("begin; select from job for key share").await;
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    other.show("commit").await;
}

#[tokio::test]
async fn deferred_constraints_are_checked_row_by_row() {
    let play = overdue(30).await;
    play.show(
        "create function late() returns trigger language plpgsql as $$ begin
            if new.id % 10 = 5 and new.status = 'ready' then raise 'late row %', new.id; end if; return null; end $$;
         create constraint trigger late after update on job deferrable initially deferred
            for each row execute function late()",
    )
    .await;
    assert_eq!(drain(&play, 7).await, (27, 3));
    assert_eq!(count(&play, "running").await, "3");

    // A deferred foreign key whose row is gone by now.
    let play = world().await;
    play.show(
        "create table state (name text primary key); insert into state select unnest(array['ready', 'running']);
         alter table job add foreign key (status) references state deferrable initially deferred",
    )
    .await;
    claimed(&play, 1, 5).await;
    play.show("delete from state where name = 'ready'").await;
    assert_eq!(sweep(&play, 10).await, "0|5|f");
    assert_eq!(count(&play, "running").await, "5");
}

#[tokio::test]
async fn the_cost_of_a_sweep_follows_the_overdue_leases_and_not_the_table() {
    let play = world().await;
    play.show(
        "insert into job (id, status) select g, 'ready' from generate_series(1000, 30000) as g",
    )
    .await;
    claimed(&play, 1, 20).await;
    play.show("select count(*) from generate_series(1000, 5000) as g, lateral once.action_claim('job', g::text, 'run', lease => '1 h')")
        .await;
    play.show("analyze job; analyze once.action_lease").await;
    play.show("select pg_stat_force_next_flush()").await;
    play.show("begin").await;
    assert_eq!(sweep(&play, 100).await, "20|0|f");
    let rows = play
        .show(
            "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables
              where relname in ('job', 'action_lease')",
        )
        .await;
    play.show("commit").await;
    assert!(
        rows.parse::<u64>().unwrap() < 400,
        "{rows} rows read for 20"
    );
}

#[tokio::test]
async fn overdue_rows_do_not_wait_behind_ended_leases() {
    let play = world().await;
    play.clock("0").await;
    jobs(&play, 1, 3000, "ready").await;
    play.show(
        "select count(*) from job as j, lateral once.action_claim('job', j.id::text, 'run', lease => '1 s') as c,
                lateral once.action_finish('job', j.id::text, c.token)",
    )
    .await;
    jobs(&play, 4001, 4005, "ready").await;
    play.show(
        "select once.action_claim('job', id::text, 'run', lease => '2 s') from job where id > 4000",
    )
    .await;
    play.clock("1 min").await;
    let mut done = 0;
    for _ in 0..6 {
        let shown = sweep(&play, 10).await;
        done += shown.split('|').next().unwrap().parse::<u64>().unwrap();
        if count(&play, "running").await == "0" {
            break;
        }
    }
    assert_eq!(count(&play, "running").await, "0", "{done} done");
}

//! sweep_action_release comes to an end, and to what can be done, whatever part of it cannot: `more` is told only where
//! something was done, so sweep_all and the worker do not go round for ever.

use pg_once_tests::race::{backend_pid, poll_async};

use crate::coverage::with_small;
use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::world::{drain, jobs, sweep, world};
use std::time::{Duration, Instant};

/// Jobs 1 to `count`, each claimed for a microsecond.
async fn overdue(count: i64) -> Playground {
    let play = world().await;
    jobs(&play, 1, count, "ready").await;
    play.show(&format!(
        "select count(*) from generate_series(1, {count}) as g, lateral once.action_claim('job', g::text, 'run', lease => '1 us')"
    ))
    .await;
    play
}

async fn ready(play: &Playground) -> String {
    play.show("select count(*) from job where status = 'ready'")
        .await
}

#[tokio::test]
async fn tables_that_cannot_be_handled_take_no_rows_place_and_a_sweep_of_all_ends() {
    let play = overdue(2).await;
    // Two of them, each with more that is due than one call may do, and looked at before the one that is well.
    for name in ["broken_a", "broken_b"] {
        play.show(&format!(
            "create table {name} (id int primary key, status text not null)"
        ))
        .await;
        crate::world::define(
            &play,
            &format!(
                r#"{{"machine": "{name}", "table": "{name}", "id": "id", "status": "status",
                    "status_types": ["a", "w", "b"], "steps": [{{"step_key": "s", "status": "a",
                    "claim_state": {{"*": ["w", "a"]}}, "successful_state": {{"*": "b"}}}}]}}"#
            ),
        )
        .await;
        play.show(&format!(
            "insert into {name} select g, 'a' from generate_series(1, 3) as g;
             select once.action_claim('{name}', id::text, 's', lease => '1 us') from {name};
             alter table {name} rename status to gone"
        ))
        .await;
    }
    assert_eq!(sweep(&play, 1).await, "1|2|t");
    assert_eq!(sweep(&play, 1).await, "1|2|f");
    assert_eq!(ready(&play).await, "2");
    assert_eq!(sweep(&play, 1).await, "0|2|f");
    let all = tokio::time::timeout(Duration::from_secs(60), play.show("call once.sweep_all(1)"));
    all.await.expect("a sweep that ends");
    for name in ["broken_a", "broken_b"] {
        play.show(&format!("alter table {name} rename gone to status"))
            .await;
    }
    assert_eq!(drain(&play, 1).await, (6, 0));
}

#[tokio::test]
async fn a_locked_row_at_the_head_keeps_the_one_behind_it_waiting_in_no_pass() {
    let play = overdue(3).await;
    let holder = play.another().await;
    holder
        .show("begin; select from job where id = 1 for no key update")
        .await;
    assert_eq!(sweep(&play, 1).await, "1|0|t");
    assert_eq!(sweep(&play, 1).await, "1|0|t");
    assert_eq!(ready(&play).await, "2");
    // Nothing but the locked one is left, and nobody is told to come back at once.
    assert_eq!(sweep(&play, 1).await, "0|0|f");
    holder.show("rollback").await;
    assert_eq!(drain(&play, 1).await, (1, 0));
}

#[tokio::test]
async fn rows_are_reverted_while_somebody_keeps_the_teardowns() {
    let play = overdue(3).await;
    let holder = play.another().await;
    holder
        .show("begin; lock table once.cancel in access exclusive mode")
        .await;
    assert_eq!(sweep(&play, 10).await, "3|0|f");
    assert_eq!(ready(&play).await, "3");
    holder.show("rollback").await;
}

/// A machine of its own with so many rows, each claimed for a microsecond.
async fn small_overdue(play: &Playground, name: &str, count: i32) {
    with_small(play, name).await;
    play.show(&format!(
        "insert into {name} select g, 'a' from generate_series(1, {count}) as g;
         select count(*) from generate_series(1, {count}) as g,
                lateral once.action_claim('{name}', g::text, 's', lease => '1 us')"
    ))
    .await;
}

/// It waits for each of the others' tables while it has the first one's, for moments.
#[tokio::test]
async fn a_migration_of_several_machines_tables_is_no_victim() {
    let play = Playground::open().await;
    for name in ["a_first", "b", "c", "d"] {
        small_overdue(&play, name, 5).await;
    }
    let migration = play.another().await;
    migration
        .show("begin; alter table b add x int; alter table c add x int; alter table d add x int")
        .await;
    let sweeper = play.another().await;
    let call = "select done, failed from once.sweep_action_release()";
    let sweeping = Waiting::begin(&play, sweeper, call).await;
    migration
        .show("alter table a_first add x int; commit")
        .await;
    let (_, answer) = sweeping.end().await;
    assert_eq!(answer.unwrap(), "5|15");
    assert_eq!(drain(&play, 1000).await, (15, 0));
}

/// A row that fails by itself is found, and deferred, whatever the others have waited for.
#[tokio::test]
async fn a_migration_that_has_swept_itself_keeps_no_other_machine_from_its_turn() {
    let play = Playground::open().await;
    small_overdue(&play, "kept", 1).await;
    small_overdue(&play, "well", 8).await;
    play.show(
        "create function refuse() returns trigger language plpgsql as $$ begin
            if new.status = 'a' and new.id = 5 then raise 'not this one'; end if; return new; end $$;
         create trigger refuse before update on well for each row execute function refuse()",
    )
    .await;
    let migration = play.another().await;
    migration
        .show(
            "begin; select once.sweep_action_release(100, 'kept');
             select once.action_claim('kept', '1', 's', lease => '1 us'); alter table kept add x int",
        )
        .await;
    let swept = "select done, failed from once.sweep_action_release()";
    assert_eq!(play.show(swept).await, "7|2");
    let deferred = "select string_agg(row_id, ' ') from once.action_lease where failures > 0";
    assert_eq!(play.show(deferred).await, "5");
    migration.show("rollback").await;
}

#[tokio::test]
async fn behind_many_machines_that_one_migration_keeps_the_others_have_their_turn_in_each_call() {
    let play = Playground::open().await;
    let names: Vec<_> = (0..60).map(|i| format!("kept{i}")).collect();
    for name in &names {
        small_overdue(&play, name, 1).await;
    }
    with_small(&play, "well").await;
    let migration = play.another().await;
    let lock = format!("begin; lock table {} in share mode", names.join(", "));
    migration.show(&lock).await;
    let due = |id: i32| {
        format!(
            "insert into well values ({id}, 'a');
             select once.action_claim('well', '{id}', 's', lease => '1 us')"
        )
    };
    let swept = "select done, failed from once.sweep_action_release()";
    for id in 1..=2 {
        play.show(&due(id)).await;
        assert_eq!(play.show(swept).await, "1|60");
    }
    play.show(&due(3)).await;
    play.show("call once.sweep_all()").await;
    let ready = "select count(*) from well where status = 'a'";
    assert_eq!(play.show(ready).await, "3");
    let covered = "select string_agg(machine, ' ') from once.janitor where machine <> '' and good_end is not null";
    assert_eq!(play.show(covered).await, "well");
    migration.show("rollback").await;
    assert_eq!(drain(&play, 1000).await, (60, 0));
}

/// As many as one call may do have had their turn; that more wait is no failure, and the task's run is a good one.
#[tokio::test]
async fn a_backlog_of_two_machines_leaves_the_tasks_run_a_good_one() {
    let play = Playground::open().await;
    for name in ["one", "two"] {
        small_overdue(&play, name, 25).await;
    }
    let good = "select last_end = good_end from once.janitor where machine = '' and task = 'action_release'";
    for _ in 0..4 {
        assert_eq!(sweep(&play, 10).await, "10|0|t");
        assert_eq!(play.show(good).await, "t");
    }
    assert_eq!(sweep(&play, 10).await, "10|0|f");
}

/// Its rows are as they were, and it is not covered.
#[tokio::test]
async fn a_machine_behind_a_slow_one_is_passed_by_while_somebody_keeps_its_table() {
    let play = Playground::open().await;
    for name in ["a_first", "second"] {
        small_overdue(&play, name, 1).await;
    }
    play.show(
        "create function slow() returns trigger language plpgsql as $$ begin
            if new.status = 'a' then perform pg_sleep(0.6); end if; return new; end $$;
         create trigger slow before update on a_first for each row execute function slow()",
    )
    .await;
    let migration = play.another().await;
    migration
        .show("begin; lock table second in share mode")
        .await;
    assert_eq!(sweep(&play, 10).await, "1|1|f");
    let good = "select machine from once.janitor where machine <> '' and good_end is not null";
    assert_eq!(play.show(good).await, "a_first");
    migration.show("rollback").await;
    assert_eq!(drain(&play, 10).await, (1, 0));
    assert_eq!(play.show("select status from second").await, "a");
}

/// When a session began to wait for what it waits for now; empty: it does not.
async fn waits_since(play: &Playground, pid: i32) -> String {
    play.show(&format!(
        "select waitstart from pg_locks where pid = {pid} and not granted"
    ))
    .await
}

/// What is reverted while the others wait, each for a moment, is not locked for long.
#[tokio::test]
async fn who_has_what_a_rows_trigger_waits_for_may_write_a_row_that_is_reverted() {
    let play = overdue(300).await;
    play.show(
        "create table stats (n int); insert into stats values (0);
         create function counted() returns trigger language plpgsql as $$ begin
            if new.status = 'ready' and new.id > 8 then update public.stats set n = n + 1; end if;
            return new; end $$;
         create trigger counted before update on job for each row execute function counted()",
    )
    .await;
    let writer = play.another().await;
    writer.show("begin; update stats set n = n + 1").await;
    let sweeper = play
        .another_directly("postgres", "its waits are watched from outside")
        .await;
    let pid = backend_pid(&sweeper.client).await.unwrap();
    let call = "select done > 0, failed > 0, more from once.sweep_action_release()";
    let sweeping = Waiting::send(sweeper, call);
    let mut seen = std::collections::BTreeSet::new();
    poll_async("waits of parts", async || {
        seen.insert(waits_since(&play, pid).await);
        Ok((seen.len() > 8).then_some(()))
    })
    .await
    .unwrap();
    writer
        .show("update job set note = 'x' where id = 1; commit")
        .await;
    let (_, answer) = sweeping.end().await;
    assert_eq!(answer.unwrap(), "t|t|t");
}

#[tokio::test]
async fn triggers_that_wait_for_a_lock_keep_a_sweeps_transaction_short() {
    let play = overdue(400).await;
    play.show(
        "create table audit (id bigint);
         create function audited() returns trigger language plpgsql as $$ begin
            if new.status = 'ready' then insert into public.audit values (new.id); end if; return new; end $$;
         create trigger audited before update on job for each row execute function audited()",
    )
    .await;
    // As CREATE INDEX does.
    let holder = play.another().await;
    holder.show("begin; lock table audit in share mode").await;
    let begin = Instant::now();
    let shown = sweep(&play, 1000).await;
    let took = begin.elapsed();
    // Each half by itself would be 799 waits of half a second.
    assert!(took < Duration::from_secs(20), "{took:?}: {shown}");
    // A row was found, and the rest is for the next call.
    let (done, rest) = shown.split_once('|').unwrap();
    let (failed, more) = rest.split_once('|').unwrap();
    assert_eq!((done, more), ("0", "t"), "{shown}");
    assert!(
        (1..400).contains(&failed.parse::<i32>().unwrap()),
        "{shown}"
    );
    let deferred = "select count(*) from once.action_lease where failures > 0";
    assert_eq!(play.show(deferred).await, failed);
    holder.show("rollback").await;
    play.show("update once.action_lease set look_at = clock_timestamp()")
        .await;
    assert_eq!(drain(&play, 1000).await, (400, 0));
    assert_eq!(play.show("select count(*) from audit").await, "400");
}

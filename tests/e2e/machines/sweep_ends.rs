//! The sweep task action_release comes to an end, and to what can be done, whatever part of it cannot: `more` is told only where
//! something was done, so sweep_all and the worker do not go round for ever.

use crate::coverage::with_small;
use crate::playground::Playground;
use crate::world::{drain, jobs, sweep, world};
use std::time::Duration;

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
    let told = "select count(*) from once.janitor
                 where machine ~ '^broken' and last_error is not null and good_end is null";
    assert_eq!(play.show(told).await, "2");
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

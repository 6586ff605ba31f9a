//! What happens around a sweep while it is under way: tables that others keep locked, a cancelled statement, a snapshot
//! from before.

use crate::playground::{Playground, Refusal};
use crate::world::{define, drain, job, jobs, sweep, token, world};
use pg_once_tests::race;
use std::time::Duration;
use tokio::task::JoinHandle;

/// A machine with a claim state over a new table of this name, and `count` of its rows overdue.
async fn overdue_in(play: &Playground, name: &str, id: &str, count: i64) {
    play.show(&format!(
        "create table {name} (id {id} primary key, status text not null)"
    ))
    .await;
    let definition = format!(
        r#"{{"machine": "{name}", "table": "{name}", "id": "id", "status": "status",
            "status_types": ["a", "w", "b"], "steps": [{{"step_key": "s", "status": "a",
            "claim_state": {{"*": ["w", "a"]}}, "successful_state": {{"*": "b"}}}}]}}"#
    );
    define(play, &definition).await;
    play.show(&format!(
        "insert into {name} select g::text::{id}, 'a' from generate_series(1, {count}) as g;
         select once.action_claim('{name}', id::text, 's', lease => '1 us') from {name}"
    ))
    .await;
}

/// Jobs 1 to `count`, each claimed for a microsecond.
async fn overdue(count: i64) -> Playground {
    let play = world().await;
    jobs(&play, 1, count, "ready").await;
    play.show("select count(*) from job, lateral once.action_claim('job', id::text, 'run', lease => '1 us')")
        .await;
    play
}

/// A trigger of job that does this to each row that is reverted.
async fn when_reverted(play: &Playground, when: &str, body: &str) {
    play.show(&format!(
        "create function reverted() returns trigger language plpgsql as $$ begin
            if old.status = 'running' and new.status = 'ready' then {body} end if; return new; end $$;
         create trigger reverted {when} update on job for each row execute function reverted()"
    ))
    .await;
}

/// A statement that has to come to an end, whoever holds what.
async fn ends(play: &Playground, sql: &str) -> String {
    let answer = tokio::time::timeout(Duration::from_secs(30), play.show(sql));
    answer.await.unwrap_or_else(|_| panic!("{sql} waits"))
}

const SWEEP: &str = "select done, failed, more from once.sweep(10, 'action_release')";

#[tokio::test]
async fn a_table_that_somebody_keeps_to_himself_keeps_no_sweep_waiting() {
    let play = overdue(3).await;
    overdue_in(&play, "other", "int", 2).await;
    let holder = play.another().await;
    holder
        .show("begin; lock table other in access exclusive mode")
        .await;
    // Whoever calls sets no lock_timeout, as a scheduler does not.
    assert_eq!(ends(&play, SWEEP).await, "3|2|f");
    // He may go on with the rows of the machines that were swept.
    holder.show("update job set note = 'x'; commit").await;
    assert_eq!(drain(&play, 10).await, (2, 0));
}

#[tokio::test]
async fn a_teardown_in_a_table_that_somebody_keeps_keeps_no_sweep_waiting_and_is_told() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    play.show("select once.cancel_request('job', '1')").await;
    let holder = play.another().await;
    holder
        .show("begin; lock table job in access exclusive mode")
        .await;
    assert_eq!(ends(&play, SWEEP).await, "0|1|f");
    holder.show("rollback").await;
}

#[tokio::test]
async fn a_table_that_is_being_indexed_puts_no_row_off() {
    let play = overdue(5).await;
    let holder = play.another().await;
    // As CREATE INDEX does: its rows may be locked, and none of them written.
    holder.show("begin; lock table job in share mode").await;
    assert_eq!(ends(&play, SWEEP).await, "0|5|f");
    let blamed = "select count(*) from once.action_lease where failures > 0";
    assert_eq!(play.show(blamed).await, "0");
    holder.show("rollback").await;
    assert_eq!(sweep(&play, 10).await, "5|0|f");

    // One of a table's partitions.
    let play = world().await;
    play.show("alter table job rename to plain; create table job (like plain including all) partition by hash (id);
               create table job_0 partition of job for values with (modulus 2, remainder 0);
               create table job_1 partition of job for values with (modulus 2, remainder 1)")
        .await;
    define(&play, crate::world::JOB).await;
    jobs(&play, 1, 9, "ready").await;
    play.show("select count(*) from job, lateral once.action_claim('job', id::text, 'run', lease => '1 us')")
        .await;
    let holder = play.another().await;
    holder.show("begin; lock table job_1 in share mode").await;
    assert_eq!(ends(&play, SWEEP).await, "0|9|f");
    assert_eq!(play.show(blamed).await, "0");
    holder.show("rollback").await;
    assert_eq!(sweep(&play, 10).await, "9|0|f");
}

/// Rows are reverted once there is a row in `gate`.
async fn gate(play: &Playground) {
    play.show("create table gate (open bool)").await;
    when_reverted(
        play,
        "before",
        "while not exists (select from public.gate) loop perform pg_sleep(0.02); end loop;",
    )
    .await;
}

/// Sends a sweep through a session of its own, and returns once it is at the gate.
async fn sweeping(
    play: &Playground,
    sql: &'static str,
) -> (i32, JoinHandle<Result<String, Refusal>>) {
    let sweeper = play
        .another_directly("postgres", "its backend is watched from outside")
        .await;
    let pid = race::backend_pid(&sweeper.client).await.unwrap();
    let swept = tokio::spawn(async move { sweeper.attempt(sql).await });
    let waits = format!(
        "select count(*) from pg_stat_activity where pid = {pid} and wait_event = 'PgSleep'"
    );
    race::poll_async("a trigger that waits", async || {
        Ok((play.show(&waits).await == "1").then_some(()))
    })
    .await
    .unwrap();
    (pid, swept)
}

#[tokio::test]
async fn a_sweep_that_is_cancelled_in_the_middle_has_done_nothing_and_holds_nothing() {
    let play = overdue(50).await;
    gate(&play).await;
    // None of them goes on with the next task.
    for sql in [SWEEP, "select * from once.sweep()", "call once.sweep_all()"] {
        let (pid, swept) = sweeping(&play, sql).await;
        play.show(&format!("select pg_cancel_backend({pid})")).await;
        let answer = swept.await.unwrap();
        assert_eq!(answer.map_err(|r| r.code), Err("57014".to_owned()), "{sql}");
    }
    let told = "select count(*) filter (where failures > 0), count(*) filter (where state = 'h') from once.action_lease";
    assert_eq!(play.show(told).await, "0|50");
    let blamed = "select coalesce(sum(failed), 0) from once.janitor";
    assert_eq!(play.show(blamed).await, "0");
    play.show("insert into gate values (true)").await;
    assert_eq!(drain(&play, 100).await, (50, 0));
}

#[tokio::test]
async fn a_lease_that_was_claimed_anew_since_the_sweep_looked_is_not_the_one_that_was_due() {
    let play = overdue(2).await;
    // Row 1 is deleted: its lease is dead for a snapshot from now.
    play.show("delete from job where id = 1").await;
    let sweeper = play.another().await;
    sweeper
        .show("begin isolation level repeatable read; select 1")
        .await;
    // Made anew and claimed, for as short a time: the sweep sees neither.
    jobs(&play, 1, 1, "ready").await;
    token(&play, 1, "run", ", lease => '1 us'").await;
    sweeper
        .show("select done, failed from once.sweep(10, 'action_release'); commit")
        .await;
    assert!(job(&play, 1).await.starts_with("running|"));
    let held = "select count(*) from once.action_lease where state = 'h' and row_id = '1'";
    assert_eq!(play.show(held).await, "1");
    assert_eq!(drain(&play, 10).await, (1, 0));
    assert!(job(&play, 1).await.starts_with("ready|"));
}

//! The guard comes and goes with machine_guard, with the machine and with the extension, and is carried by
//! a dump.

use crate::world::{JOB, define, jobs, role, sweep};
use crate::{guarded, illegal, with_jobs};

/// Triggers on the tables of the tests that are nobody else's.
const TRIGGERS: &str = "
select count(*) from pg_trigger where not tgisinternal and tgrelid in ('job'::regclass, 'item'::regclass)";

#[tokio::test]
async fn turning_it_off_takes_the_triggers_away_and_on_brings_them_back() {
    let play = guarded().await;
    with_jobs(&play).await;
    let count = play.show(TRIGGERS).await;
    assert_ne!(count, "0");
    // Repeated, it changes nothing.
    play.show("select once.machine_guard('job', true)").await;
    assert_eq!(play.show(TRIGGERS).await, count);
    for _ in 0..2 {
        play.show("select once.machine_guard('job', false)").await;
        assert_eq!(play.show(TRIGGERS).await, "0");
    }
    play.show("update job set status = 'done' where id = 2")
        .await;
    play.show("select once.machine_guard('job', true)").await;
    assert_eq!(play.show(TRIGGERS).await, count);
    illegal(&play, "update job set status = 'new' where id = 2").await;
}

#[tokio::test]
async fn a_guard_that_is_rolled_back_was_never_there() {
    let play = crate::world::world().await;
    jobs(&play, 1, 1, "new").await;
    play.show("begin; select once.machine_guard('job', true); savepoint s")
        .await;
    illegal(&play, "update job set status = 'done'").await;
    play.show("rollback").await;
    assert_eq!(play.show(TRIGGERS).await, "0");
    play.show("update job set status = 'done'").await;
}

#[tokio::test]
async fn a_dropped_machine_leaves_no_guard_behind() {
    let play = guarded().await;
    jobs(&play, 1, 1, "new").await;
    play.show("select once.machine_drop('job')").await;
    assert_eq!(play.show(TRIGGERS).await, "0");
    play.show("update job set status = 'running'").await;
}

#[tokio::test]
async fn a_new_definition_is_what_the_guard_judges_by() {
    let play = guarded().await;
    let other = play.another().await;
    jobs(&play, 1, 2, "ready").await;
    other
        .show("update job set status = 'failed' where id = 1")
        .await;
    illegal(&other, "update job set status = 'done' where id = 2").await;
    let changed = JOB.replace(
        r#"{"from": ["ready"], "to": "failed"}"#,
        r#"{"from": ["ready"], "to": "done"}"#,
    );
    define(&play, &changed).await;
    illegal(&other, "update job set status = 'failed' where id = 2").await;
    other
        .show("update job set status = 'done' where id = 2")
        .await;
    assert_ne!(play.show(TRIGGERS).await, "0");
}

#[tokio::test]
async fn a_definition_over_other_tables_or_columns_takes_its_guard_along() {
    let play = guarded().await;
    play.show(
        "create table task (like job including all); create table part (like item including all)",
    )
    .await;
    let changed = JOB
        .replace(r#""table": "job""#, r#""table": "task""#)
        .replace(r#""items": "item""#, r#""items": "part""#);
    define(&play, &changed).await;
    assert_eq!(play.show(TRIGGERS).await, "0");
    play.show(
        "insert into task (id) values (1); insert into job (id, status) values (1, 'running')",
    )
    .await;
    illegal(&play, "update task set status = 'done'").await;
    illegal(&play, "insert into task (id, status) values (2, 'running')").await;
    play.show("select once.sweep()").await;
    play.ask("select * from once.machine_check('job')")
        .is("")
        .await;
    // Another column of the same table is watched from now on.
    play.show("alter table task add state2 text not null default 'new'")
        .await;
    define(
        &play,
        &changed.replace(r#""status": "status""#, r#""status": "state2""#),
    )
    .await;
    illegal(&play, "update task set state2 = 'done'").await;
    play.show("update task set status = 'done'").await;
}

#[tokio::test]
async fn a_guarded_table_goes_on_under_new_names_of_itself_and_of_other_columns() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show("alter table job rename to task; alter table item rename to part; alter table task rename note to remark; alter table task drop short")
        .await;
    illegal(&play, "update task set status = 'ready' where id = 7").await;
    illegal(&play, "update part set settled = null where id = 71").await;
    play.show("update task set status = 'ready' where id = 1")
        .await;
}

#[tokio::test]
async fn a_renamed_column_fails_closed() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show("alter table job rename status to state").await;
    for sql in [
        "update job set state = 'ready' where id = 7",
        "update job set state = 'done' where id = 2",
        "update job set cancel_requested = false where id = 6",
    ] {
        let refusal = play.refused(sql).await;
        assert!(!refusal.code.starts_with("XX"), "{refusal:?}");
    }
}

#[tokio::test]
async fn only_the_tables_owner_turns_the_guard_on_or_off() {
    let play = crate::world::world().await;
    role(&play, "guard_operator", "operate").await;
    play.show("grant all on job, item, wallet to guard_operator")
        .await;
    let operator = play.another_as("guard_operator").await;
    for enabled in [true, false] {
        let sql = format!("select once.machine_guard('job', {enabled})");
        assert_eq!(operator.code(&sql).await, "42501");
    }
    play.show("alter table job owner to guard_operator").await;
    // The items are somebody else's still.
    operator
        .ask("select once.machine_guard('job', true)")
        .fails("42501")
        .await;
    assert_eq!(play.show(TRIGGERS).await, "0");
    play.show(
        "alter table item owner to guard_operator; alter table wallet owner to guard_operator",
    )
    .await;
    operator
        .show("select once.machine_guard('job', true)")
        .await;
    operator.show("insert into job (id) values (1)").await;
    illegal(&operator, "update job set status = 'done'").await;
    operator
        .show("select once.machine_guard('job', false)")
        .await;
    play.show("alter table job owner to postgres; alter table item owner to postgres; alter table wallet owner to postgres")
        .await;
}

#[tokio::test]
async fn data_loaded_alone_goes_in_with_triggers_disabled_and_is_adopted() {
    let play = guarded().await;
    jobs(&play, 1, 1, "ready").await;
    let load = "insert into job (id, status) values (10, 'running')";
    illegal(&play, load).await;
    play.show("alter table job disable trigger user").await;
    play.show(load).await;
    play.show("alter table job enable trigger user").await;
    assert_eq!(play.show("select once.action_adopt('job')").await, "1");
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    play.ask("select status from job where id = 10")
        .is("ready")
        .await;
}

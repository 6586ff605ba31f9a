//! Open sessions and odd corners in which a guard could judge by what is no longer so: altered columns,
//! partitions, children, names that look alike, generated columns.

use crate::playground::Playground;
use crate::world::{define, jobs};
use crate::{guarded, illegal, with_jobs};

#[tokio::test]
async fn a_when_whose_column_is_altered_is_judged_by_the_new_column_in_open_sessions() {
    let play = guarded().await;
    let other = play.another().await;
    with_jobs(&play).await;
    jobs(&play, 11, 20, "new").await;
    for session in [&play, &other] {
        session
            .show("update job set status = 'ready' where id = 11; update job set status = 'new' where id = 11")
            .await;
        session.show("update item set note = 'x'").await;
    }
    for change in [
        "alter table job alter n type numeric; alter table item alter state type varchar(20)",
        "alter table job drop n; alter table job add n int not null default 5;
         alter table item add tmp text; update item set tmp = state; alter table item drop state;
         alter table item rename tmp to state",
    ] {
        play.show(change).await;
        for session in [&play, &other] {
            session
                .show("update job set status = 'ready' where id = 12; update job set status = 'new' where id = 12")
                .await;
            session.show("update job set n = -1 where id = 13").await;
            illegal(session, "update job set status = 'ready' where id = 13").await;
            session.show("update job set n = 1 where id = 13").await;
            session.show("update item set note = 'y'").await;
            illegal(session, "update item set state = 'failed' where id = 71").await;
        }
    }
}

/// A guarded partitioned table with rows 1 and 101.
async fn partitioned() -> Playground {
    let play = Playground::open().await;
    play.show(
        "create table job (id bigint primary key, status text not null default 'ready') partition by range (id);
         create table job_low partition of job for values from (0) to (100);
         create table job_high partition of job for values from (100) to (200);
         insert into job values (1), (101)",
    )
    .await;
    define(
        &play,
        r#"{"machine": "job", "table": "job", "id": "id", "status": "status",
            "status_types": ["ready", "running", "done"], "terminal": ["done"],
            "steps": [{"step_key": "run", "status": "ready", "claim_state": {"*": ["running", "ready"]},
                       "successful_state": {"*": "done"}}]}"#,
    )
    .await;
    play.show("select once.machine_guard('job', true); select once.sweep()")
        .await;
    play
}

#[tokio::test]
async fn what_a_session_did_to_a_claimed_row_lets_nobody_insert_it_later() {
    let play = partitioned().await;
    let insert = "delete from job where id = 1; insert into job values (1, 'running')";
    // Claimed and rolled back.
    play.show(
        "begin; savepoint s; select once.action_claim('job', '1', 'run'); rollback to s; commit",
    )
    .await;
    illegal(&play, insert).await;
    // Updated by hand while it was claimed, and finished by somebody else.
    let other = play.another().await;
    let token = other
        .show("select token from once.action_claim('job', '1', 'run')")
        .await;
    play.show("update job set id = id where id = 1").await;
    other
        .show(&format!("select once.action_finish('job', '1', {token})"))
        .await;
    illegal(&play, insert).await;
    play.ask("select * from job order by id")
        .is("1|done\n101|ready")
        .await;
}

#[tokio::test]
async fn a_partition_whose_guard_is_disabled_or_followed_by_a_trigger_is_reported() {
    let check = "select count(*) from once.machine_check('job')";
    let play = partitioned().await;
    assert_eq!(play.show(check).await, "0");
    play.show("alter table job_low disable trigger user").await;
    assert_ne!(play.show(check).await, "0");
    play.show("alter table job_low enable trigger user").await;
    assert_eq!(play.show(check).await, "0");
    play.show(
        "create function last() returns trigger language plpgsql as 'begin return new; end';
         create trigger \"~zzz\" before update on job_high for each row execute function last()",
    )
    .await;
    assert_ne!(play.show(check).await, "0");
}

#[tokio::test]
async fn a_child_by_inheritance_is_reported() {
    let play = guarded().await;
    play.show("select once.sweep()").await;
    let check = "select count(*) from once.machine_check('job')";
    assert_eq!(play.show(check).await, "0");
    play.show("create table child () inherits (job); create table grandchild () inherits (child)")
        .await;
    let missing = "select string_agg(problem, '; ' order by problem) from once.machine_check('job') \
                   where problem ~ '^the guard is missing'";
    play.ask(missing)
        .is("the guard is missing on public.child; the guard is missing on public.grandchild")
        .await;
}

#[tokio::test]
async fn after_a_label_is_renamed_the_refusal_says_to_define_the_machine_again() {
    let play = Playground::open().await;
    play.show(
        "create type phase as enum ('open', 'paid'); create table bill (id int primary key, status phase not null);
         insert into bill values (1, 'open'), (2, 'open')",
    )
    .await;
    let define = |open: &str| {
        format!(
            r#"select once.machine_define('{{"machine": "bill", "table": "bill", "id": "id", "status": "status",
                "status_types": ["{open}", "paid"], "transitions": [{{"from": ["{open}"], "to": "paid"}}]}}')"#
        )
    };
    play.show(&define("open")).await;
    play.show("select once.machine_guard('bill', true)").await;
    let old = play.another().await;
    let move_2 = "select moved from once.transition('bill', 2, 'paid')";
    assert_eq!(old.show(move_2).await, "t");
    play.show("alter type phase rename value 'open' to 'fresh'")
        .await;
    let update = "update bill set status = 'paid' where id = 1";
    for session in [&play, &old] {
        for refused in [update, "select once.transition('bill', 1, 'fresh')"] {
            let refusal = session.refused(refused).await;
            assert_eq!(refusal.code, "ON002");
            assert!(
                refusal.hint.contains("define the machine again"),
                "{refusal:?}"
            );
        }
    }
    play.show(&define("fresh")).await;
    play.show(update).await;
}

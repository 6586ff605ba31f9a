//! Partitioned tables: rows are found, leased and swept in whatever partition they stand.

use crate::playground::Playground;
use crate::world::define;

const DEFINITION: &str = r#"{
  "machine": "job", "table": "job", "id": "id", "status": "status", "version": "version",
  "status_types": ["ready", "running", "done", "cancelled"], "terminal": ["done", "cancelled"],
  "transitions": [{"from": ["ready"], "to": "done", "when": "n > 0"}],
  "steps": [{"step_key": "run", "status": "ready", "claim_state": {"*": ["running", "ready"]},
             "successful_state": {"*": "done"}}],
  "cancel": {"flag": "flag", "to": "cancelled"}}"#;

/// Partitions whose columns stand in different orders, two levels deep.
const TABLES: &str = "
create table job (id bigint primary key, status text not null default 'ready', version bigint not null default 0,
    flag boolean not null default false, n int not null default 1, note text) partition by range (id);
create table job_low partition of job for values from (0) to (100);
create table job_mid (note text, gone int, n int not null default 1, flag boolean not null default false,
    version bigint not null default 0, status text not null default 'ready', id bigint not null);
alter table job_mid drop gone;
alter table job attach partition job_mid for values from (100) to (200);
create table job_high partition of job for values from (200) to (400) partition by range (id);
create table job_high_1 partition of job_high for values from (200) to (300);
create table job_high_2 partition of job_high for values from (300) to (400);";

async fn world() -> Playground {
    let play = Playground::open().await;
    play.show(TABLES).await;
    define(&play, DEFINITION).await;
    play
}

#[tokio::test]
async fn rows_of_every_partition_live_alike() {
    for guarded in [false, true] {
        let play = world().await;
        play.show(&format!("select once.machine_guard('job', {guarded})"))
            .await;
        play.show("insert into job (id) values (1), (2), (101), (102), (201), (202), (301), (302)")
            .await;
        for id in [1, 101, 201, 301] {
            let shown = play
                .show(&format!(
                    "select moved, version from once.transition('job', '{id}', 'done', patch => '{{\"note\": \"p\"}}')"
                ))
                .await;
            assert_eq!(shown, "t|1", "{id}");
            let claim = format!(
                "select outcome, token from once.action_claim('job', '{}', 'run')",
                id + 1
            );
            let shown = play.show(&claim).await;
            let token = shown.strip_prefix("claimed|").unwrap();
            assert!(play.show(&claim).await.starts_with("in_progress"));
            let finish = format!(
                "select status from once.action_finish('job', '{}', {token}, '{{\"note\": \"p\"}}')",
                id + 1
            );
            assert_eq!(play.show(&finish).await, "done");
        }
        play.ask("select count(*) from job where status = 'done' and note = 'p'")
            .is("8")
            .await;
    }
}

#[tokio::test]
async fn a_sweep_reverts_rows_in_all_partitions() {
    for guarded in [false, true] {
        let play = world().await;
        play.show(&format!("select once.machine_guard('job', {guarded})"))
            .await;
        play.show("insert into job (id) select g * 13 from generate_series(0, 30) as g")
            .await;
        play.show("select count(*) from job, lateral once.action_claim('job', id::text, 'run', lease => '1 us')")
            .await;
        play.ask("select count(*) from job where status = 'running'")
            .is("31")
            .await;
        play.ask("select done, failed, more from once.sweep(100, 'action_release')")
            .is("31|0|f")
            .await;
        play.ask("select count(*) from job where status = 'ready'")
            .is("31")
            .await;
    }
}

#[tokio::test]
async fn a_partition_that_comes_later_is_covered_and_guarded() {
    let play = world().await;
    play.show("select once.machine_guard('job', true)").await;
    play.show("create table job_late partition of job for values from (400) to (500); insert into job (id) values (401)")
        .await;
    play.ask("update job set status = 'running' where id = 401")
        .fails("ON002")
        .await;
    play.ask("update job_late set status = 'cancelled' where id = 401")
        .fails("ON002")
        .await;
    play.ask("select outcome from once.action_claim('job', '401', 'run')")
        .is("claimed")
        .await;
}

#[tokio::test]
async fn many_ids_of_many_partitions_move_in_one_call() {
    let play = world().await;
    play.show("insert into job (id) select g * 13 from generate_series(0, 30) as g")
        .await;
    play.ask(
        "select count(*) filter (where moved), count(*) from once.transition_many('job',
                (select array_agg(id::text order by id desc) from job), 'done')",
    )
    .is("31|31")
    .await;
}

#[tokio::test]
async fn with_the_guard_on_a_row_in_a_claim_state_or_cancelled_does_not_move_to_another_partition()
{
    let play = world().await;
    play.show("select once.machine_guard('job', true)").await;
    play.show("insert into job (id) values (1), (2), (3)").await;
    play.show("select once.action_claim('job', '1', 'run')")
        .await;
    play.show("select once.cancel_request('job', '2'); select once.cancel_finish('job', '2')")
        .await;
    play.ask("select status from job order by id")
        .is("running\ncancelled\nready")
        .await;
    for id in [1, 2] {
        let sql = format!("update job set id = id + 100 where id = {id}");
        let refusal = play.refused(&sql).await;
        assert_eq!(refusal.code, "ON002", "{id}: {refusal:?}");
        let sql = format!("update job set id = id + 100, status = 'ready' where id = {id}");
        assert_eq!(play.code(&sql).await, "ON002", "{id}");
        let sql =
            format!("update job set id = id + 100, flag = false, status = 'ready' where id = {id}");
        assert_eq!(play.code(&sql).await, "ON002", "{id}");
    }
    // A row that may be inserted as it is may move, but not into a claim state on its way.
    play.ask("update job set id = id + 100, status = 'running' where id = 3")
        .fails("ON002")
        .await;
    play.show("update job set id = id + 100 where id = 3").await;
    play.ask("select outcome from once.action_claim('job', '103', 'run')")
        .is("claimed")
        .await;
}

#[tokio::test]
async fn a_detached_partition_takes_its_rows_out_of_the_machine() {
    let play = world().await;
    play.show("insert into job (id) values (1), (101)").await;
    play.show("select once.action_claim('job', id::text, 'run', lease => '1 us') from job")
        .await;
    play.show("alter table job detach partition job_mid").await;
    let shown = play
        .show("select outcome from once.action_claim('job', '101', 'run')")
        .await;
    assert_eq!(shown, "not_found");
    play.ask("select failed from once.sweep(100, 'action_release')")
        .is("0")
        .await;
    play.ask("select status from job union all select status from job_mid order by 1")
        .is("ready\nrunning")
        .await;
}

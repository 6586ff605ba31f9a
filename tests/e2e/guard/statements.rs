//! Every kind of statement that writes rows meets the guard alike.

use futures_util::SinkExt;
use pg_once_tests::race::sqlstate;
use tokio_postgres::CopyInSink;

use crate::playground::Playground;
use crate::world::{JOB, TABLES, define, jobs};
use crate::{guarded, illegal, rows, with_jobs};

#[tokio::test]
async fn one_illegal_row_of_many_refuses_the_whole_update() {
    let play = guarded().await;
    with_jobs(&play).await;
    jobs(&play, 100, 1100, "new").await;
    play.show("update job set n = -1 where id = 1050").await;
    let before = rows(&play).await;
    let refusal = illegal(&play, "update job set status = 'ready' where id >= 100").await;
    let told = format!("{} {}", refusal.message, refusal.detail);
    assert!(told.contains("1050"), "{refusal:?}");
    illegal(&play, "update job set status = 'done'").await;
    illegal(&play, "update job set cancel_requested = (id = 6)").await;
    assert_eq!(rows(&play).await, before);
    play.show("update job set status = 'ready' where id >= 100 and n >= 0")
        .await;
    play.ask("select count(*) from job where status = 'ready' and id >= 100")
        .is("1000")
        .await;
}

#[tokio::test]
async fn a_row_moved_twice_in_one_transaction_is_judged_each_time() {
    let play = guarded().await;
    jobs(&play, 1, 1, "ready").await;
    play.show(
        "begin; update job set status = 'failed'; update job set status = 'new'; savepoint s",
    )
    .await;
    illegal(&play, "update job set status = 'failed'").await;
    play.show("rollback to s; update job set status = 'ready'; commit")
        .await;
}

#[tokio::test]
async fn on_conflict_is_judged_as_the_update_that_it_becomes() {
    let play = guarded().await;
    with_jobs(&play).await;
    let before = rows(&play).await;
    for sql in [
        "insert into job (id, status) values (7, 'new') on conflict (id) do update set status = excluded.status",
        "insert into job (id) values (6) on conflict (id) do update set cancel_requested = false",
        "insert into job (id) values (3) on conflict (id) do update set status = 'ready'",
        "insert into job (id, status) values (1, 'done') on conflict (id) do update set status = excluded.status",
        "insert into item (id, job_id) values (71, 7) on conflict (id) do update set settled = null",
        "insert into item (id, job_id, points) values (71, 6, 9) on conflict (id) do update set points = excluded.points",
        "insert into item (id, job_id) values (62, 6) on conflict (id) do update set job_id = 7",
    ] {
        illegal(&play, sql).await;
    }
    // What writes nothing breaks no rule.
    play.show("insert into job (id, status) values (3, 'running') on conflict do nothing")
        .await;
    assert_eq!(rows(&play).await, before);
    play.show("insert into job (id, status) values (1, 'ready') on conflict (id) do update set status = excluded.status")
        .await;
    play.show("insert into job (id, status) values (1, 'ready') on conflict do nothing")
        .await;
}

#[tokio::test]
async fn copy_is_judged_as_the_inserts_that_it_makes() {
    let play = guarded().await;
    with_jobs(&play).await;
    let own = play
        .another_directly(
            "postgres",
            "PgBouncer keeps COPY back as tokio-postgres sends it",
        )
        .await;
    let copy = async |sql: &str, data: &'static str| {
        let sink: CopyInSink<&[u8]> = own.client.copy_in(sql).await.unwrap();
        futures_util::pin_mut!(sink);
        sink.send(data.as_bytes()).await.unwrap();
        let ended = sink.finish().await;
        sqlstate(&ended).to_owned()
    };
    let job = "copy job (id, status) from stdin";
    assert_eq!(copy(job, "200\tnew\n201\tdone\n").await, "");
    assert_eq!(copy(job, "202\tnew\n203\trunning\n").await, "ON002");
    assert_eq!(copy(job, "204\tcancelled\n").await, "ON002");
    let item = "copy item (id, job_id) from stdin";
    assert_eq!(copy(item, "300\t6\n301\t2\n").await, "");
    assert_eq!(copy(item, "302\t6\n303\t7\n").await, "ON002");
    play.ask("select string_agg(id::text, ',' order by id) from job where id > 100")
        .is("200,201")
        .await;
}

#[tokio::test]
async fn merge_is_judged_as_what_it_does() {
    let play = guarded().await;
    with_jobs(&play).await;
    let before = rows(&play).await;
    let source = "(values (1, 'done'), (100, 'running')) as v(id, status)";
    for sql in [
        &format!(
            "merge into job using {source} on job.id = v.id when matched then update set status = v.status"
        ),
        &format!(
            "merge into job using {source} on job.id = v.id when not matched then insert (id, status) values (v.id, v.status)"
        ),
        "merge into job using (values (6)) as v(id) on job.id = v.id when matched then update set cancel_requested = false",
        "merge into item using (values (71)) as v(id) on item.id = v.id when matched then update set settled = null",
    ] {
        illegal(&play, sql).await;
    }
    assert_eq!(rows(&play).await, before);
    play.show("select once.cancel_refund('job', '6')").await;
    illegal(
        &play,
        "merge into item using (values (61)) as v(id) on item.id = v.id when matched then delete",
    )
    .await;
    play.show("merge into job using (values (1, 'ready')) as v(id, status) on job.id = v.id when matched then update set status = v.status")
        .await;
}

#[tokio::test]
async fn updates_through_views_functions_prepared_statements_and_ctes_are_judged_alike() {
    let guarded = guarded().await;
    let play = guarded
        .another_directly("postgres", "prepared statements are a session's")
        .await;
    with_jobs(&play).await;
    let before = rows(&play).await;
    play.show(
        "create view open_job as select id, status, cancel_requested from job;
         create function by_function() returns void language sql as $$ update job set status = 'done' where id = 2 $$;
         prepare by_plan(bigint, text) as update job set status = $2 where id = $1;
         create rule by_rule as on insert to wallet do also update job set status = 'ready' where id = 7",
    )
    .await;
    for sql in [
        "update open_job set status = 'running' where id = 2",
        "update open_job set cancel_requested = false where id = 6",
        "insert into open_job values (100, 'running', false)",
        "select by_function()",
        "execute by_plan(7, 'ready')",
        "execute by_plan(2, 'done')",
        "with u as (update job set status = 'done' where id = 2 returning id) select * from u",
        "do $$ begin update job set status = 'done' where id = 2; end $$",
        "insert into wallet values ('x', 0)",
        "update job set status = v.s from (values (2, 'done')) as v(id, s) where job.id = v.id",
    ] {
        illegal(&play, sql).await;
    }
    assert_eq!(rows(&play).await, before);
    for _ in 0..10 {
        play.show("execute by_plan(1, 'ready')").await;
        play.show("execute by_plan(1, 'new')").await;
    }
}

#[tokio::test]
async fn a_row_is_guarded_against_roles_of_every_kind() {
    let play = guarded().await;
    with_jobs(&play).await;
    crate::world::role(&play, "guard_writer", "use").await;
    play.ensure_role("guard_alien login").await;
    play.show("grant all on job, item, wallet to guard_writer, guard_alien")
        .await;
    // No right on the extension is needed to write what is declared.
    for role in ["guard_writer", "guard_alien", "postgres"] {
        let session = play.another_as(role).await;
        illegal(&session, "update job set status = 'done' where id = 2").await;
        illegal(&session, "update job set status = 'ready' where id = 3").await;
        illegal(&session, "update item set settled = null where id = 71").await;
        illegal(&session, "insert into item (id, job_id) values (1000, 7)").await;
        session
            .show("update job set status = 'ready' where id = 1; update job set status = 'new' where id = 1")
            .await;
        session
            .show("insert into item (id, job_id) values (1000, 6); update item set points = 2 where id = 1000; delete from item where id = 1000")
            .await;
    }
}

#[tokio::test]
async fn a_machine_that_is_closed_by_its_owner_is_guarded_for_everybody() {
    let play = Playground::open().await;
    play.show(TABLES).await;
    crate::world::role(&play, "guard_team", "operate").await;
    crate::world::role(&play, "guard_outsider", "use").await;
    let owned = JOB.replacen(
        "\"machine\": \"job\"",
        "\"machine\": \"job\", \"owner\": \"guard_team\"",
        1,
    );
    define(&play, &owned).await;
    play.show("select once.machine_guard('job', true); grant all on job, item to guard_outsider")
        .await;
    jobs(&play, 1, 1, "new").await;
    let outsider = play.another_as("guard_outsider").await;
    illegal(&outsider, "update job set status = 'done'").await;
    outsider.show("update job set status = 'ready'").await;
}

/// The machine of `world` with its guard on, over tables that are partitioned by id.
pub async fn partitioned() -> Playground {
    let play = Playground::open().await;
    play.show(
        "create table wallet (customer text primary key, points bigint not null default 0);
         create table job (id bigint primary key, customer text default 'c', status text not null default 'new',
            version bigint not null default 0, cancel_requested boolean not null default false,
            n int not null default 0, note text) partition by hash (id);
         create table job_0 partition of job for values with (modulus 2, remainder 0);
         create table job_1 partition of job for values with (modulus 2, remainder 1);
         create table item (id bigint primary key, job_id bigint not null, state text not null default 'pending',
            points bigint not null default 1, settled text, note text) partition by range (id);
         create table item_low partition of item for values from (0) to (50);
         create table item_high partition of item for values from (50) to (10000);
         create index on item (job_id, id);
         insert into wallet values ('c', 0)",
    )
    .await;
    define(&play, JOB).await;
    play.show("select once.machine_guard('job', true)").await;
    play
}

#[tokio::test]
async fn a_partitioned_table_is_guarded_through_its_root_and_its_leaves() {
    let play = partitioned().await;
    with_jobs(&play).await;
    play.show("select once.cancel_refund('job', '6')").await;
    let before = rows(&play).await;
    for sql in [
        "update job set status = 'ready' where id = 7",
        "update job set cancel_requested = false where id = 6",
        "update item set settled = null where id = 61",
        "insert into item (id, job_id) values (20, 7)",
        "insert into item_low (id, job_id) values (20, 7)",
        "update item_high set settled = null where id = 71",
        "delete from item_high where id = 61",
        "update item_high set points = 1 where id = 61",
    ] {
        illegal(&play, sql).await;
    }
    for leaf in ["job_0", "job_1"] {
        let one = play
            .show(&format!(
                "select coalesce(min(id), 0) from {leaf} where id in (6, 7)"
            ))
            .await;
        if one != "0" {
            illegal(
                &play,
                &format!("update {leaf} set cancel_requested = false where id = {one}"),
            )
            .await;
        }
    }
    assert_eq!(rows(&play).await, before);
    play.show("update item set id = 30 where id = 71 and false; insert into item (id, job_id) values (20, 6); update item set id = 70 where id = 20")
        .await;
}

#[tokio::test]
async fn a_row_that_an_update_takes_to_another_partition_is_judged_as_any_other() {
    let play = partitioned().await;
    with_jobs(&play).await;
    let before = rows(&play).await;
    for id in 100..110 {
        illegal(
            &play,
            &format!("update job set id = {id}, status = 'done' where id = 1"),
        )
        .await;
        illegal(&play, &format!("update job set id = {id} where id = 3")).await;
    }
    assert_eq!(rows(&play).await, before);
    play.show("update job set id = 100, status = 'ready' where id = 1; update job set id = 101 where id = 100")
        .await;
}

#[tokio::test]
async fn a_guarded_table_that_becomes_a_partition_is_told_and_guarded_anew() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show("select once.sweep()").await;
    let check = "select problem from once.machine_check('job')";
    assert_eq!(play.show(check).await, "");
    play.show(
        "create table every_job (like job including all) partition by range (id);
         create table later_job partition of every_job for values from (100) to (1000);
         alter table every_job attach partition job for values from (0) to (100)",
    )
    .await;
    let told = play.show(check).await;
    assert!(
        told.contains("is a partition whose guard is an AFTER ROW trigger"),
        "{told}"
    );
    // Until then no row goes to another partition; a row that is deleted is told from one that goes.
    for sql in [
        "update every_job set id = 200, status = 'done' where id = 1",
        "update every_job set id = 200 where id = 3",
    ] {
        let refusal = illegal(&play, sql).await;
        assert!(refusal.hint.contains("machine_guard"), "{refusal:?}");
    }
    illegal(&play, "delete from job where id = 6").await;
    illegal(&play, "delete from every_job where id = 6").await;
    play.show("update every_job set note = 'x'; insert into every_job (id) values (50), (51)")
        .await;
    play.show("delete from job where id = 50; delete from every_job where id = 51")
        .await;
    play.show("select once.machine_guard('job', true)").await;
    assert_eq!(play.show(check).await, "");
    for sql in [
        "update every_job set id = 200, status = 'done' where id = 1",
        "update every_job set id = 200 where id = 3",
        "update job set status = 'done' where id = 1",
    ] {
        illegal(&play, sql).await;
    }
    play.show("delete from job where id = 1").await;
}

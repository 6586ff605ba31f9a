//! The sweep acts as the table's owner, whoever runs it, and nothing of the table's makes it act as
//! anybody else.

use crate::playground::Playground;
use crate::world::{JOB, TABLES, define, drain, jobs, role, sweep};

/// A machine over tables of `owner`, who is no superuser, with `count` overdue jobs.
async fn owned_by(owner: &str, count: i64) -> Playground {
    let play = Playground::open().await;
    role(&play, owner, "operate").await;
    play.show(TABLES).await;
    play.show(&format!(
        "alter table job owner to {owner}; alter table item owner to {owner}; alter table wallet owner to {owner};
         grant create on schema public to {owner}"
    ))
    .await;
    let session = play.another_as(owner).await;
    define(&session, JOB).await;
    jobs(&session, 1, count, "ready").await;
    session
        .show("select count(*) from job, lateral once.action_claim('job', id::text, 'run', lease => '1 us')")
        .await;
    play
}

/// A trigger of `owner` on job, before every update, with this body; the table `log` is there for it.
async fn with_trigger(play: &Playground, owner: &str, body: &str) {
    let session = play.another_as(owner).await;
    session
        .show(&format!(
            "create table if not exists log (who name, session name, what text);
             grant insert on log to public;
             create or replace function spy() returns trigger language plpgsql as $$ begin {body} return new; end $$;
             create or replace trigger spy before update on job for each row execute function spy()"
        ))
        .await;
}

#[tokio::test]
async fn whoever_sweeps_the_triggers_run_as_the_tables_owner() {
    let play = owned_by("sweep_owner", 4).await;
    role(&play, "sweep_scheduler", "operate").await;
    with_trigger(
        &play,
        "sweep_owner",
        "insert into public.log values (current_user, session_user, current_setting('search_path'));",
    )
    .await;
    let scheduler = play.another_as("sweep_scheduler").await;
    assert_eq!(scheduler.code("select * from job").await, "42501");
    scheduler
        .ask("select done, failed, more from once.sweep(2, 'action_release')")
        .is("2|0|t")
        .await;
    assert_eq!(drain(&play, 2).await, (2, 0));
    play.ask("select who, count(*), string_agg(distinct session, ',' order by session) from log group by 1")
        .is("sweep_owner|4|postgres,sweep_scheduler")
        .await;
    // Neither's own path, and not the scheduler's either.
    let paths = play.show("select distinct what from log").await;
    assert!(!paths.contains("public"), "{paths}");
    assert_eq!(
        scheduler.show("select current_user").await,
        "sweep_scheduler"
    );
}

#[tokio::test]
async fn a_malicious_trigger_gets_no_more_than_its_owner_has() {
    let play = owned_by("sweep_thief", 1).await;
    play.show("create table secret (x text); insert into secret values ('s')")
        .await;
    for body in [
        "set role postgres; insert into public.log values (current_user, session_user, 'set role');",
        "perform set_config('role', 'postgres', false); insert into public.log select current_user, session_user, x from public.secret;",
        "perform set_config('role', 'none', false); insert into public.log select current_user, session_user, x from public.secret;",
        "set session authorization postgres; insert into public.log values (current_user, session_user, 'authorization');",
        "perform set_config('session_authorization', 'postgres', false); insert into public.log select current_user, session_user, x from public.secret;",
        "reset role; insert into public.log select current_user, session_user, x from public.secret;",
        "alter role sweep_thief superuser;",
        "insert into public.log select current_user, session_user, x from public.secret;",
        "delete from once.action_lease;",
        "create temp table mine (x int);",
        "perform set_config('row_security', 'off', false), set_config('once.fake_now', '2000-01-01', false);",
    ] {
        with_trigger(&play, "sweep_thief", body).await;
        play.show("update once.action_lease set look_at = '2000-01-01'")
            .await;
        assert_eq!(sweep(&play, 10).await, "0|1|f", "{body}");
        play.ask("select current_user, session_user, current_setting('role')")
            .is("postgres|postgres|none")
            .await;
    }
    assert_eq!(
        play.show("select count(*) from log").await,
        "0",
        "something was read or written with other rights"
    );
    play.ask("select rolsuper from pg_roles where rolname = 'sweep_thief'")
        .is("f")
        .await;
    play.show("drop trigger spy on job; update once.action_lease set look_at = '2000-01-01'")
        .await;
    assert_eq!(sweep(&play, 10).await, "1|0|f");
}

#[tokio::test]
async fn a_trigger_that_makes_constraints_deferred_gets_nothing_run_at_the_sweepers_commit() {
    let play = owned_by("sweep_defer", 2).await;
    let owner = play.another_as("sweep_defer").await;
    owner
        .show(
            "create table log (who name);
             create table bait (x int);
             create function later() returns trigger language plpgsql as $$ begin
                insert into public.log values (current_user); return null; end $$;
             create constraint trigger later after insert on bait deferrable initially deferred
                for each row execute function later();
             create function spy() returns trigger language plpgsql as $$ begin
                set constraints all deferred; insert into public.bait values (new.id); return new; end $$;
             create trigger spy before update on job for each row execute function spy()",
        )
        .await;
    play.show("begin").await;
    let told = sweep(&play, 10).await;
    play.show("commit").await;
    let who = play
        .show("select coalesce(string_agg(distinct who, ','), '') from log")
        .await;
    assert_eq!((told.as_str(), who.as_str()), ("0|2|f", ""));
    let said = "select last_error from once.janitor where machine = 'job'";
    let said = play.show(said).await;
    assert!(said.contains("security-restricted operation"), "{said}");
}

#[tokio::test]
async fn a_table_with_forced_row_level_security_is_reported_failed_and_nothing_is_lost() {
    let play = owned_by("sweep_forced", 5).await;
    play.show(
        "alter table job enable row level security; alter table job force row level security;
         create policy visible on job using (id > 2)",
    )
    .await;
    let before = play
        .show("select string_agg(job::text, ';' order by id) from job")
        .await;
    let (done, failed) = drain(&play, 10).await;
    assert_eq!(done, 0);
    assert!(failed > 0);
    assert_eq!(
        play.show("select string_agg(job::text, ';' order by id) from job")
            .await,
        before
    );
    play.ask("select count(*) from once.action_lease where state = 'h'")
        .is("5")
        .await;
    let told = play
        .show("select last_error, failed > 0 from once.janitor where machine = 'job' and task = 'action_release'")
        .await;
    assert!(told.contains("row") && told.ends_with("|t"), "{told}");
    // An owner whom row security does not hold sweeps them.
    play.show("alter role sweep_forced bypassrls").await;
    play.clock("1 year").await;
    assert_eq!(drain(&play, 10).await, (5, 0));
    play.show("alter role sweep_forced nobypassrls").await;
}

#[tokio::test]
async fn row_level_security_that_is_not_forced_does_not_hold_the_owner() {
    let play = owned_by("sweep_plain_rls", 3).await;
    play.show("alter table job enable row level security").await;
    role(&play, "sweep_scheduler_e", "operate").await;
    let scheduler = play.another_as("sweep_scheduler_e").await;
    assert_eq!(sweep(&scheduler, 10).await, "3|0|f");
}

#[tokio::test]
async fn an_owner_without_a_right_on_its_own_table_is_reported() {
    let play = owned_by("sweep_revoked", 3).await;
    play.show("revoke update on job from sweep_revoked").await;
    let (done, failed) = drain(&play, 10).await;
    assert_eq!(done, 0);
    assert!(failed > 0);
    play.show("grant update on job to sweep_revoked").await;
    play.clock("1 year").await;
    assert_eq!(drain(&play, 10).await, (3, 0));
}

#[tokio::test]
async fn a_trigger_that_emits_needs_its_owners_right_and_doctor_says_which() {
    let play = owned_by("sweep_emits", 3).await;
    play.show("select once.topic_set('reverted')").await;
    let emit = "perform once.outbox_emit('reverted', '{}');";
    with_trigger(&play, "sweep_emits", emit).await;
    play.show("select once.revoke_role('sweep_emits', 'operate')")
        .await;
    let (done, failed) = drain(&play, 10).await;
    assert_eq!(done, 0);
    assert!(failed > 0);
    let told = play.show("select hint from once.doctor() where hint like '%grant_role%'");
    assert!(told.await.contains("once.grant_role(owner, 'use')"));
    play.show("select once.grant_role('sweep_emits', 'use')")
        .await;
    play.clock("1 year").await;
    assert_eq!(drain(&play, 10).await, (3, 0));
    play.ask("select count(*) from once.outbox_take('reverted', max => 10)")
        .is("3")
        .await;
}

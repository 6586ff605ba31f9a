//! Triggers, casts and functions of a table's owner that work against the extension: what they may spoil is
//! their own row, never another machine, the caller's session, or a right that is not theirs.

use crate::playground::Playground;
use crate::world::{
    claim, define, drain, finish, job, jobs, release, role, token, transition, world,
};

/// Overdue jobs 1 to 5 of a machine, and 1 to 3 of another one that is nobody's business.
async fn two_machines() -> Playground {
    let play = world().await;
    jobs(&play, 1, 5, "ready").await;
    play.show(
        "create table other (id int primary key, status text not null);
         select once.machine_define('{\"machine\": \"other\", \"table\": \"other\", \"id\": \"id\", \"status\": \"status\",
            \"status_types\": [\"a\", \"w\", \"b\"], \"steps\": [{\"step_key\": \"s\", \"status\": \"a\",
            \"claim_state\": {\"*\": [\"w\", \"a\"]}, \"successful_state\": {\"*\": \"b\"}}]}');
         insert into other select g, 'a' from generate_series(1, 3) as g;
         select once.action_claim('other', id::text, 's', lease => '1 us') from other;
         select once.action_claim('job', id::text, 'run', lease => '1 us') from job",
    )
    .await;
    play
}

/// A BEFORE UPDATE trigger on job with this body.
async fn trigger(play: &Playground, body: &str) {
    play.show(&format!(
        "create or replace function against() returns trigger language plpgsql as $$ begin {body} return new; end $$;
         create or replace trigger against before update on job for each row execute function against()"
    ))
    .await;
}

#[tokio::test]
async fn a_poison_row_stops_no_sweep_whatever_code_it_raises() {
    for code in [
        "40001", "40P01", "57014", "57P01", "25006", "P0001", "XX000", "ON001", "55P03", "53200",
    ] {
        let play = two_machines().await;
        trigger(
            &play,
            &format!(
                "if new.id = 2 and new.status = 'ready' then
                    raise exception using errcode = '{code}', message = 'poison'; end if;"
            ),
        )
        .await;
        assert_eq!(drain(&play, 100).await, (7, 1), "{code}");
        assert!(job(&play, 2).await.starts_with("running|"));
        assert_eq!(
            play.show(
                "select failures from once.action_lease where machine = 'job' and row_id = '2'"
            )
            .await,
            "1",
            "{code}"
        );
    }
}

#[tokio::test]
async fn machine_check_and_sweep_run_no_code_of_an_owner_with_the_callers_rights() {
    let play = Playground::open().await;
    role(&play, "against_caster", "operate").await;
    play.show("grant create on schema public to against_caster")
        .await;
    let owner = play.another_as("against_caster").await;
    owner
        .show(
            "create type st as enum ('a', 'w', 'b');
             create table cast_job (id int primary key, status st not null);
             create table seen (who name); grant insert on seen to public",
        )
        .await;
    define(
        &owner,
        r#"{"machine": "cast_job", "table": "cast_job", "id": "id", "status": "status",
            "status_types": ["a", "w", "b"], "steps": [{"step_key": "s", "status": "a",
            "claim_state": {"*": ["w", "a"]}, "successful_state": {"*": "b"}}]}"#,
    )
    .await;
    owner
        .show(
            "insert into cast_job values (1, 'w'), (2, 'a');
             select once.action_claim('cast_job', '2', 's', lease => '1 us');
             create function note() returns void language sql as 'insert into public.seen values (current_user)';
             create function evil(st) returns text language plpgsql immutable as
                $$ begin perform public.note(); return 'w'; end $$;
             create cast (st as text) with function evil(st)",
        )
        .await;
    for call in [
        "machine_check()",
        "machine_check('cast_job')",
        "machine_assert()",
        "sweep(task => 'action_release')",
        "sweep()",
    ] {
        let _ = play.attempt(&format!("select * from once.{call}")).await;
    }
    play.ask("select count(*) from seen where who <> 'against_caster'")
        .is("0")
        .await;
}

#[tokio::test]
async fn a_trigger_that_keeps_an_update_back_is_told_and_not_taken_for_a_lost_lease() {
    let play = world().await;
    jobs(&play, 1, 3, "ready").await;
    let held = token(&play, 1, "run", "").await;
    for body in [
        "return null;",
        "new.status := old.status; new.version := old.version;",
    ] {
        trigger(&play, body).await;
        for call in [finish(1, held, ""), release(1, held, "")] {
            let refusal = play.refused(&call).await;
            refusal.tells("ON002", &[], &format!("{body}: {call}"));
        }
        play.show("set statement_timeout = '5s'").await;
        for call in [
            transition("2", "failed", ""),
            format!("select outcome from {}", claim(2, "run", "")),
            "select once.cancel_request('job', '2')".to_owned(),
        ] {
            match play.attempt(&call).await {
                Err(refusal) => assert_eq!(refusal.code, "ON002", "{body}: {call}: {refusal:?}"),
                Ok(shown) => assert!(
                    !shown.starts_with('t') && !shown.starts_with("claimed"),
                    "{body}: {call}: {shown}"
                ),
            }
        }
        play.show("reset statement_timeout").await;
    }
    play.show("drop trigger against on job").await;
    assert_eq!(play.show(&finish(1, held, "")).await, "finished|done|2");
    assert_eq!(job(&play, 2).await, "ready|0");
}

#[tokio::test]
async fn a_role_without_update_neither_extends_a_lease_nor_gets_its_token() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    role(&play, "against_reader", "use").await;
    play.show("grant select on job to against_reader").await;
    let held = token(&play, 1, "run", ", holder => 'h', lease => '1 h'").await;
    let reader = play.another_as("against_reader").await;
    for call in [
        format!("select once.action_extend('job', '1', {held}, '1 us')"),
        format!("select token from {}", claim(1, "run", ", holder => 'h'")),
    ] {
        assert_eq!(reader.code(&call).await, "42501", "{call}");
    }
}

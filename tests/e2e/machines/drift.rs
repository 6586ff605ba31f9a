//! Tables that change under a machine: renames, columns that come and go, types, new definitions.

use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::world::{JOB, claim, define, finish, job, jobs, moves, release, token, world};

/// What machine_check says of the machine, apart from sweeps that have not run.
async fn problems(play: &Playground) -> String {
    play.show("select once.sweep(1, 'action_release')").await;
    play.show("select coalesce(string_agg(problem || ' / ' || hint, '; '), '') from once.machine_check('job')")
        .await
}

/// Calls that look for columns by their names, each in a session that has used them before and in a new
/// one; every one is refused.
async fn nothing_works(play: &Playground, id: i64, token: i64, releases: bool) {
    let fresh = play.another().await;
    for session in [play, &fresh] {
        for call in [
            crate::world::transition(&id.to_string(), "failed", ""),
            format!("select * from {}", claim(id, "run", "")),
            finish(id, token, ""),
            release(id, token, ""),
        ]
        .into_iter()
        .take(if releases { 3 } else { 4 })
        {
            let refusal = session.refused(&call).await;
            let code = refusal.code.as_str();
            assert!(code != "XX000" && code != "ON001", "{call}: {refusal:?}");
        }
    }
}

#[tokio::test]
async fn a_table_that_was_swapped_by_two_renames_is_reported_until_the_machine_is_defined_again() {
    let play = world().await;
    jobs(&play, 1, 2, "ready").await;
    play.show(
        "create table next (like job including all);
         alter table job rename to job_old; alter table next rename to job",
    )
    .await;
    let told = problems(&play).await;
    assert!(
        told.contains("public.job belongs to another table now: moves go on in public.job_old"),
        "{told}"
    );
    assert!(told.contains("Define the machine again"), "{told}");
    let doctor =
        "select level from once.doctor() where problem like '%belongs to another table now%'";
    assert_eq!(play.show(doctor).await, "warning");
    play.show("create table more (like item including all); alter table item rename to item_old; alter table more rename to item")
        .await;
    let told = problems(&play).await;
    assert!(
        told.contains("public.item belongs to another table now"),
        "{told}"
    );
    define(&play, JOB).await;
    assert_eq!(problems(&play).await, "");
    jobs(&play, 3, 3, "ready").await;
    assert_eq!(moves(&play, "3", "failed", "").await, "t|failed|1|~");
    // A rename that is defined again is no swap later.
    play.show("alter table job rename to task").await;
    define(
        &play,
        &JOB.replace(r#""table": "job""#, r#""table": "task""#),
    )
    .await;
    play.show("create table job (like task)").await;
    assert_eq!(problems(&play).await, "");
}

/// A defect once: a session that knew the machine wrote to the table that has the name now, or found none.
#[tokio::test]
async fn a_table_in_a_renamed_schema_goes_on_and_the_one_that_takes_its_name_is_left_alone() {
    let play = world().await;
    play.show(
        "create schema live; alter table job set schema live; alter table item set schema live;
         alter table wallet set schema live; alter table live.job add check (id > 0);
         insert into live.job (id, status) select g, 'ready' from generate_series(1, 9) g;
         create schema next; create table next.job (like live.job including all);
         insert into next.job select * from live.job",
    )
    .await;
    let known = play.another().await;
    let before = token(&known, 1, "run", "").await;
    let overdue = claim(2, "run", ", lease => '1 us'");
    known.show(&format!("select from {overdue}")).await;
    assert_eq!(moves(&known, "3", "failed", "").await, "t|failed|1|~");
    let swap = "begin; alter schema live rename to past; alter schema next rename to live; commit";
    play.show(swap).await;
    assert_eq!(moves(&known, "4", "failed", "").await, "t|failed|1|~");
    assert_eq!(known.show(&finish(1, before, "")).await, "finished|done|2");
    token(&known, 5, "run", "").await;
    known
        .show("select done, failed from once.sweep(10, 'action_release')")
        .await;
    known.show("select once.machine_guard('job', true)").await;
    let statuses = "select string_agg(status, ' ' order by id) from past.job where id < 7";
    play.ask(statuses)
        .is("done ready failed failed running ready")
        .await;
    let others = "select distinct status, version from live.job";
    assert_eq!(play.show(others).await, "ready|0");
    play.show("update live.job set status = 'done'").await;
    let by_hand = "update past.job set status = 'done' where id = 6";
    assert_eq!(play.code(by_hand).await, "ON002");
    play.show("drop schema past, live cascade").await;
}

/// A defect once, found before it was released: a call that had the table for reading waited for more of it, and the
/// migration for the call.
#[tokio::test]
async fn a_call_that_waits_for_a_migration_is_not_in_its_way() {
    let play = world().await;
    jobs(&play, 1, 9, "ready").await;
    play.show("alter table job add check (id > 0)").await;
    let held = token(&play, 1, "run", "").await;
    play.show(
        "select once.cancel_request('job', '4'); select once.cancel_refund('job', '4');
         select once.cancel_confirm('job', '4', 1)",
    )
    .await;
    let calls = [
        crate::world::transition("2", "failed", ""),
        finish(1, held, ""),
        "select from once.cancel_request('job', '3')".to_owned(),
        "select status from once.cancel_finish('job', '4')".to_owned(),
        "select moved from once.transition_many('job', '{5,6}', 'failed')".to_owned(),
        format!("select outcome from {}", claim(7, "run", "")),
    ];
    let mut sessions = Vec::new();
    for call in &calls {
        // What it has prepared before it does not lock while it prepares it.
        let known = play.another().await;
        known.show(&format!("begin; {call}; rollback")).await;
        sessions.push(known);
    }
    token(&play, 9, "run", ", lease => '1 us'").await;
    let migration = play.another().await;
    migration
        .show("begin; create index on job (note); set local lock_timeout = '10s'")
        .await;
    let mut waiting = Vec::new();
    for (known, call) in sessions.into_iter().zip(&calls) {
        waiting.push(Waiting::begin(&play, known, call).await);
    }
    let sweep = "select once.sweep(10, 'action_release')";
    let sweeper = Waiting::send(play.another().await, sweep);
    migration
        .show("set local deadlock_timeout = '20ms'; alter table job add added int; commit")
        .await;
    for waiting in waiting.into_iter().chain([sweeper]) {
        waiting.end().await.1.unwrap();
    }
}

/// A service may ask for it at each boot.
#[tokio::test]
async fn a_guard_that_is_there_is_put_on_without_a_wait_and_one_that_was_weakened_anew() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let on = "select once.machine_guard('job', true)";
    play.show(on).await;
    let holder = play.another().await;
    holder
        .show("begin; update job set note = 'x'; insert into item (id, job_id) values (1, 1)")
        .await;
    let triggers =
        "select string_agg(oid::text, ' ' order by oid) from pg_trigger where not tgisinternal";
    let before = play.show(triggers).await;
    let check = "select string_agg(problem, ';' order by problem) from once.machine_check('job')";
    let checked = play.show(check).await;
    let session = play.another().await;
    session.show("set lock_timeout = '50ms'").await;
    session.show(on).await;
    holder.show("commit").await;
    assert_eq!(play.show(triggers).await, before);
    for weaker in [
        "alter table job disable trigger user",
        "alter table item disable trigger user",
        r#"create or replace trigger "!pg_once_job" after update of note on job for each row
           execute function once.machine_guard_row('job')"#,
        r#"create or replace trigger "!pg_once_job" after insert or update or delete on job for each row
           when (pg_trigger_depth() > 5) execute function once.machine_guard_row('job')"#,
        r#"drop trigger "!pg_once_job" on job"#,
    ] {
        play.show(weaker).await;
        play.show(on).await;
        let illegal = "update job set status = 'archived'";
        assert_eq!(play.code(illegal).await, "ON002", "{weaker}");
        assert_eq!(play.show(check).await, checked, "{weaker}");
    }
}

#[tokio::test]
async fn a_renamed_or_dropped_column_is_an_error_and_reported_and_its_return_heals() {
    for column in ["id", "status", "version", "cancel_requested", "customer"] {
        let play = world().await;
        jobs(&play, 1, 2, "ready").await;
        let token = token(&play, 1, "run", "").await;
        assert_eq!(problems(&play).await, "");
        play.show(&format!("alter table job rename {column} to other"))
            .await;
        if column != "customer" {
            // A release has no question about the flag.
            nothing_works(&play, 1, token, column == "cancel_requested").await;
        }
        let told = problems(&play).await;
        assert!(told.contains(column), "{column}: {told}");
        play.show(&format!("alter table job rename other to {column}"))
            .await;
        assert_eq!(problems(&play).await, "", "{column}");
        play.ask(&finish(1, token, "")).begins("finished").await;
        play.show(&format!("alter table job drop {column}")).await;
        let told = problems(&play).await;
        assert!(told.contains(column), "{column}: {told}");
    }
}

#[tokio::test]
async fn a_renamed_column_of_the_items_or_the_wallet_is_reported() {
    for (table, column) in [
        ("item", "settled"),
        ("item", "points"),
        ("item", "job_id"),
        ("item", "state"),
        ("wallet", "points"),
        ("wallet", "customer"),
    ] {
        let play = world().await;
        assert_eq!(problems(&play).await, "");
        play.show(&format!("alter table {table} rename {column} to other"))
            .await;
        let told = problems(&play).await;
        assert!(told.contains(column), "{table}.{column}: {told}");
    }
}

#[tokio::test]
async fn a_dropped_table_is_an_error_and_reported() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let token = token(&play, 1, "run", "").await;
    play.show("drop table job").await;
    nothing_works(&play, 1, token, false).await;
    play.ask("select count(*) > 0 from once.machine_check('job')")
        .is("t")
        .await;
    // The sweep reports it and goes on with the others.
    play.clock("1 year").await;
    play.ask("select done from once.sweep(10, 'action_release')")
        .is("0")
        .await;
    // And the machine can be defined over a new table of that name.
    play.show(
        "create table job (id bigint primary key, customer text not null default 'c',
            status text not null default 'new', version bigint not null default 0,
            cancel_requested boolean not null default false, n int not null default 0)",
    )
    .await;
    define(&play, JOB).await;
    jobs(&play, 1, 1, "new").await;
    assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
    crate::world::token(&play, 1, "run", "").await;
}

#[tokio::test]
async fn columns_that_come_and_go_do_not_disturb_open_sessions() {
    let play = world().await;
    let other = play.another().await;
    jobs(&play, 1, 1, "ready").await;
    let patch = r#", patch => '{"note": "x", "n": 1}'"#;
    for round in 0..6 {
        for session in [&play, &other] {
            for _ in 0..3 {
                let shown = moves(session, "1", "new", patch).await;
                assert!(shown.starts_with("t|new|"), "{round}: {shown}");
                let shown = moves(session, "1", "ready", patch).await;
                assert!(shown.starts_with("t|ready|"), "{round}: {shown}");
                let token = token(session, 1, "run", "").await;
                session.show(&crate::world::extend(1, token)).await;
                session.show(&release(1, token, "")).await;
            }
        }
        let change = match round {
            0 => "alter table job add c1 int default 7",
            1 => "alter table job add c2 text, drop short",
            2 => "alter table job drop c1",
            3 => "create index on job (note); alter table job add short text",
            4 => "vacuum full job",
            _ => "analyze job",
        };
        other.show(change).await;
    }
    assert_eq!(problems(&play).await, "");
}

#[tokio::test]
async fn a_column_whose_type_is_altered_goes_on_or_says_so() {
    for change in [
        "alter status type varchar(20)",
        "alter id type int",
        "alter id type text",
        "alter id type numeric",
        "alter version type int",
        "alter note type varchar",
        "alter n type bigint",
        "alter status drop not null",
        "alter version drop not null",
    ] {
        let play = world().await;
        jobs(&play, 1, 2, "ready").await;
        let token = token(&play, 1, "run", "").await;
        play.show(&format!("alter table job {change}")).await;
        for session in [&play, &play.another().await] {
            for call in [
                crate::world::transition("2", "failed", r#", patch => '{"n": 3, "note": "x"}'"#),
                crate::world::transition("2", "new", ""),
                crate::world::transition("2", "ready", ""),
                finish(1, token, ""),
            ] {
                if let Err(refusal) = session.attempt(&call).await {
                    assert!(
                        !refusal.code.starts_with("XX"),
                        "{change}: {call}: {refusal:?}"
                    );
                    if refusal.code == "ON006" {
                        // The first session has finished it.
                        continue;
                    }
                    let told = problems(&play).await;
                    assert_ne!(told, "", "{change}: {call} was refused: {refusal:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_definition_over_another_table_moves_the_rows_of_that_one() {
    let play = world().await;
    let other = play.another().await;
    jobs(&play, 1, 1, "new").await;
    assert_eq!(moves(&other, "1", "ready", "").await, "t|ready|1|~");
    play.show("create table task (like job including all); insert into task (id) values (1)")
        .await;
    define(
        &play,
        &JOB.replace(r#""table": "job""#, r#""table": "task""#),
    )
    .await;
    assert_eq!(moves(&other, "1", "ready", "").await, "t|ready|1|~");
    assert_eq!(job(&play, 1).await, "ready|1");
    assert_eq!(play.show("select status from task").await, "ready");
}

#[tokio::test]
async fn a_definition_that_is_rolled_back_was_never_there() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    play.show("begin; savepoint s").await;
    define(
        &play,
        &JOB.replace(
            r#"{"from": ["ready"], "to": "failed"}"#,
            r#"{"from": ["ready"], "to": "archived"}"#,
        ),
    )
    .await;
    assert_eq!(moves(&play, "1", "archived", "").await, "t|archived|1|~");
    play.show("rollback to s").await;
    play.ask(&crate::world::transition("1", "archived", ", '{ready}'"))
        .fails("ON002")
        .await;
    play.show("rollback").await;
    assert_eq!(moves(&play, "1", "failed", "").await, "t|failed|1|~");
    // The extension itself may go and come in one session.
    play.show("begin; drop extension pg_once cascade").await;
    play.show("rollback").await;
    assert_eq!(moves(&play, "1", "new", "").await, "t|new|2|~");
}

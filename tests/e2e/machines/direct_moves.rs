//! A move that goes without a statement answers, waits, fails and counts as the statement does.
//!
//! Each test does the same on a plain table, on one with the machine's guard, and on one that is not plain,
//! and expects the same. That a move went without a statement is seen by its locks: the planner locks the
//! table's indexes for writing.

use crate::plain_tables::altered;
use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::world::{define, job, moves, transition};
use pg_once_tests::script::rows;

const GUARD: &str = "select once.machine_guard('job', true)";
/// It never fires.
pub const BY_STATEMENT: &str = "
create function rest() returns trigger language plpgsql as 'begin return null; end';
create trigger rest after update of note on job for each row execute function rest()";

/// The ways that a move may go.
const WAYS: [&str; 3] = ["select 1", GUARD, BY_STATEMENT];

/// Indexes that the transaction has locked for writing.
pub const WRITTEN_INDEXES: &str = "
select count(*) from pg_locks where pid = pg_backend_pid() and mode = 'RowExclusiveLock'
   and relation in (select indexrelid from pg_index where indrelid = 'job'::regclass)";

/// Jobs 1 to 9, ready, with the table altered, for each way.
async fn ways(sql: &str) -> Vec<Playground> {
    let mut plays = Vec::new();
    for way in WAYS {
        plays.push(altered(&format!("{sql}; {way}")).await);
    }
    plays
}

/// The same, asked up to three times: another test may have the server forget all tables meanwhile.
async fn goes_direct(play: &Playground) -> bool {
    for _ in 0..3 {
        if is_direct(play).await {
            return true;
        }
    }
    false
}

/// A move of job 5 goes without a statement. A kept plan would lock no index.
async fn is_direct(play: &Playground) -> bool {
    play.show("discard plans").await;
    play.show("begin").await;
    assert_eq!(moves(play, "5", "new", "").await, "t|new|1|~");
    let locked = play.show(WRITTEN_INDEXES).await;
    play.show("rollback").await;
    locked == "0"
}

/// The status as an enum.
const ENUM: &str = "
create type word as enum ('new', 'ready', 'running', 'done', 'failed', 'retrying', 'archived', 'cancelled');
alter table job alter status drop default, alter status type word using status::word, alter status set default 'new'";

/// Another machine over the same table, by a status of its own.
const OTHER: &str = r#"{"machine": "other", "table": "job", "id": "id", "status": "short",
    "status_types": ["a", "b"], "transitions": [{"from": ["a"], "to": "b"}]}"#;

#[tokio::test]
async fn plain_tables_go_without_a_statement() {
    for sql in [
        "select 1",
        GUARD,
        "select once.machine_guard('job', true); select once.machine_guard('job', false)",
        "alter table job set unlogged",
        "alter table job alter status type varchar",
        "alter table job alter status type varchar(20)",
        ENUM,
        "alter table job add foreign key (customer) references wallet",
        "alter table item add foreign key (job_id) references job",
        "alter table job add extra text not null default 'x', drop at",
        "create publication odd for table job where (id > 0)",
        "create function f() returns trigger language plpgsql as 'begin return new; end';
         create trigger t before insert or delete on job for each row execute function f()",
        "create table parent (id bigint); alter table job inherit parent",
        "alter table job enable row level security, disable row level security",
        "alter table job add check (status <> 'failed' and version >= 0), add check (n <> 7) not valid",
    ] {
        assert!(goes_direct(&altered(sql).await).await, "{sql}");
    }
}

#[tokio::test]
async fn tables_with_something_of_their_own_go_by_statement() {
    let trigger = |when: &str| {
        format!(
            "create function f() returns trigger language plpgsql as 'begin return new; end';
             create trigger t {when} execute function f()"
        )
    };
    let mut cases: Vec<String> = [
        BY_STATEMENT,
        "create table child () inherits (job)",
        "create rule r as on update to job where false do also nothing",
        "alter table job enable row level security",
        "alter table job add loud text generated always as (upper(note)) stored",
        "create domain word as text; alter table job alter status type word",
        "alter table job add unique (status, id)",
        "create table place (a bigint, b text, primary key (a, b)); alter table job add p bigint, add q text,
            add foreign key (p, q) references place match full",
        "alter table job add unique (id, customer) deferrable",
        "alter table job add exclude (id with =) deferrable",
    ]
    .map(str::to_owned)
    .into();
    cases.extend(
        [
            "before update on job for each row",
            "after update of note on job for each row",
            "before update on job for each statement",
            "after update on job for each statement",
        ]
        .map(trigger),
    );
    for sql in cases {
        assert!(!is_direct(&altered(&sql).await).await, "{sql}");
    }
}

#[tokio::test]
async fn what_only_newer_servers_have_goes_by_statement() {
    let play = altered("select 1").await;
    let version = play.show("show server_version_num").await;
    if version.parse::<u32>().unwrap() < 180_000 {
        return;
    }
    for sql in [
        "alter table job add loud text generated always as (upper(note)) virtual",
        "alter table job add constraint filled not null note not valid",
    ] {
        let play = altered(sql).await;
        play.show("begin").await;
        let made = play.attempt(&transition("5", "new", "")).await;
        let expected = match sql.contains("virtual") {
            true => "",
            false => "23502",
        };
        assert_eq!(crate::waiting::code(&made), expected, "{sql}");
    }
}

/// With what the row is to be, and before anybody who has the row is waited for.
#[tokio::test]
async fn checks_are_asked_alike() {
    let checks = "create function few() returns bool stable language sql as 'select count(*) < 10 from job';
        alter table job add constraint low check (status <> 'failed' or version > 5), add check (few()),
            add check (tableoid = 'job'::regclass), add constraint whole check (id <> 4 or 1 / (version - 1) is not null)";
    for play in ways(checks).await {
        let other = play.another().await;
        other
            .show("begin; update job set note = 'x' where id = 3")
            .await;
        play.show("set lock_timeout = '20ms'; begin").await;
        assert_eq!(moves(&play, "1", "new", "").await, "t|new|1|~");
        for id in ["2", "3"] {
            play.show("savepoint s").await;
            let refusal = play.refused(&transition(id, "failed", "")).await;
            assert_eq!(refusal.code, "23514", "{refusal:?}");
            assert_eq!(
                refusal.message,
                "new row for relation \"job\" violates check constraint \"low\""
            );
            let row = format!("Failing row contains ({id}, ");
            assert!(refusal.detail.starts_with(&row), "{refusal:?}");
            play.show("rollback to s").await;
        }
        play.show("savepoint s").await;
        assert_eq!(play.code(&transition("4", "new", "")).await, "22012");
        play.show("rollback to s; commit").await;
        assert_eq!(job(&play, 1).await, "new|1");
        assert_eq!(job(&play, 2).await, "ready|0");
        other.show("commit").await;
    }
}

#[tokio::test]
async fn the_guard_of_another_machine_is_asked() {
    let play = altered("update job set short = 'a'").await;
    define(&play, OTHER).await;
    assert!(goes_direct(&play).await);
    play.show("select once.machine_guard('other', true)").await;
    assert!(!is_direct(&play).await);
    play.show(GUARD).await;
    assert!(!is_direct(&play).await);
    play.show("select once.machine_guard('other', false)").await;
    assert!(goes_direct(&play).await);
}

#[tokio::test]
async fn a_deferred_foreign_key_of_a_row_of_this_transaction_is_checked() {
    let key = "alter table job add foreign key (customer) references wallet deferrable initially deferred";
    for play in ways(key).await {
        for made in [
            "insert into job (id, customer, status) values (1000, 'nobody', 'ready')",
            "savepoint s; insert into job (id, customer, status) values (1000, 'nobody', 'ready'); release s",
            "update job set id = 1000, customer = 'nobody' where id = 1",
        ] {
            play.show(&format!("begin; {made}")).await;
            assert_eq!(moves(&play, "1000", "new", "").await, "t|new|1|~");
            assert_eq!(play.code("commit").await, "23503", "{made}");
        }
    }
}

#[tokio::test]
async fn a_row_of_a_table_that_inherits_is_found() {
    for play in ways("create table child () inherits (job)").await {
        play.show("insert into child (id, status) values (1000, 'ready')")
            .await;
        assert_eq!(moves(&play, "1000", "new", "").await, "t|new|1|~");
        assert_eq!(play.show("select status from child").await, "new");
    }
}

#[tokio::test]
async fn a_move_that_waits_goes_on_from_what_the_other_left() {
    for play in ways("update job set n = 1").await {
        let table = "
            1 | update job set note = 'x' where id = 1 | commit | t|new|1|~
            2 | select once.transition('job', '2', 'new') | commit | f|new|1|status
            3 | select once.transition('job', '3', 'new') | rollback | t|new|1|~
            4 | delete from job where id = 4 | commit | f|~|~|not_found
            5 | update job set id = 50 where id = 5 | commit | f|~|~|not_found
            6 | select from once.cancel_request('job', '6') | commit | f|ready|0|cancelling
            7 | select from job where id = 7 for update | commit | t|new|1|~";
        for [id, other_does, end, answer] in rows(table) {
            let other = play.another().await;
            other.show(&format!("begin; {other_does}")).await;
            let move_it = transition(id, "new", "");
            let waiting = Waiting::begin(&play, play.another().await, &move_it).await;
            other.show(end).await;
            assert_eq!(
                waiting.end().await.1.unwrap(),
                answer,
                "{other_does}, {end}"
            );
        }
    }
}

#[tokio::test]
async fn locks_that_are_no_obstacle_are_not_waited_for() {
    for play in ways("alter table item add foreign key (job_id) references job").await {
        let other = play.another().await;
        other
            .show("begin; insert into item (id, job_id) values (1, 1)")
            .await;
        play.show("set lock_timeout = '5s'").await;
        assert_eq!(moves(&play, "1", "new", "").await, "t|new|1|~");
        play.show("begin; select from job where id = 2 for update")
            .await;
        assert_eq!(moves(&play, "2", "new", "").await, "t|new|1|~");
        play.show("commit").await;
        assert_eq!(job(&play, 2).await, "new|1");
    }
}

#[tokio::test]
async fn a_move_that_waits_while_its_declaration_goes_away_is_refused_by_the_guard() {
    for more in ["select 1", BY_STATEMENT] {
        let play = altered(&format!("{GUARD}; {more}")).await;
        let other = play.another().await;
        other
            .show("begin; update job set note = 'x' where id = 1")
            .await;
        let move_it = transition("1", "failed", "");
        let waiting = Waiting::begin(&play, play.another().await, &move_it).await;
        let without = crate::world::JOB.replace(r#"{"from": ["ready"], "to": "failed"},"#, "");
        define(&play, &without).await;
        other.show("commit").await;
        let answer = waiting.end().await.1;
        assert_eq!(crate::waiting::code(&answer), "ON002", "{more}");
    }
}

#[tokio::test]
async fn races_above_read_committed_are_told_alike() {
    let mut told = Vec::new();
    for play in ways("select 1").await {
        let other = play.another().await;
        for other_does in [
            "update job set note = 'x' where id = 1",
            "delete from job where id = 1",
        ] {
            play.show("begin isolation level repeatable read; select from job")
                .await;
            other.show(other_does).await;
            told.push(play.refused(&transition("1", "new", "")).await);
            play.show("rollback").await;
        }
        // Each has read what the other writes.
        for session in [&play, &other] {
            session
                .show("begin isolation level serializable; select count(*) from job where status = 'ready'")
                .await;
        }
        assert_eq!(moves(&other, "2", "new", "").await, "t|new|1|~");
        other.show("commit").await;
        told.push(play.refused(&transition("3", "new", "")).await);
        play.show("rollback").await;
        assert_eq!(job(&play, 3).await, "ready|0");
    }
    for refusal in &told {
        assert_eq!(refusal.code, "40001", "{refusal:?}");
        assert_eq!(refusal.message, told[0].message);
        assert_eq!(refusal.hint, told[0].hint);
    }
}

/// Rows of job that were updated, and those without a new index entry, as far as this session has to tell.
async fn counts(play: &Playground) -> (u32, u32) {
    let counts =
        "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables where relname = 'job'";
    let shown = play.show(counts).await;
    let (updated, hot) = shown.split_once('|').unwrap();
    (updated.parse().unwrap(), hot.parse().unwrap())
}

#[tokio::test]
async fn moves_are_counted_in_the_servers_statistics() {
    for play in ways("select 1").await {
        play.show("begin").await;
        let (updated, hot) = counts(&play).await;
        for (id, to) in [("1", "new"), ("2", "failed"), ("1", "ready")] {
            moves(&play, id, to, "").await;
        }
        assert_eq!(counts(&play).await, (updated + 3, hot + 3));
        play.show("commit").await;
    }
}

#[tokio::test]
async fn a_publication_that_looks_at_the_status_refuses() {
    let mut told = Vec::new();
    for play in ways("create publication ready for table job where (status = 'ready')").await {
        let refusal = play.refused(&transition("1", "new", "")).await;
        told.push((refusal.code, refusal.message, refusal.detail));
    }
    assert!(told.iter().all(|same| *same == told[0]), "{told:?}");
    assert_eq!(told[0].0, "42P10");
}

#[tokio::test]
async fn one_statement_moves_many_rows_and_one_row_once() {
    for play in ways("select 1").await {
        let all = "select string_agg(moved || ' ' || reason, ',') from (select id from job order by id limit 4) j,
                   lateral once.transition('job', j.id::text, 'new')";
        assert_eq!(play.show(all).await, "~");
        assert_eq!(job(&play, 4).await, "new|1");
        let twice = "select t.moved, t.version, t.reason from generate_series(1, 2),
                     lateral once.transition('job', left('5' || generate_series, 1), 'new') t";
        assert_eq!(play.show(twice).await, "t|1|~\nf|1|status");
    }
}

#[tokio::test]
async fn a_move_needs_usage_of_the_schema() {
    let by_statement = "create function s.rest() returns trigger language plpgsql as 'begin return null; end';
        create trigger rest after insert or update on s.job for each statement execute function s.rest()";
    for way in ["select 1", by_statement] {
        let play = Playground::open().await;
        play.show(&format!(
            r#"drop schema if exists s cascade; create schema s;
               create table s.job(id bigint primary key, status text not null);
               insert into s.job values (1, 'ready'); {way};
               select once.machine_define('{{"machine": "schema_job", "table": "s.job", "id": "id", "status": "status",
                   "status_types": ["ready", "new"], "transitions": [{{"from": ["ready"], "to": "new"}}]}}');
               do $$ begin create role no_usage; exception when others then end $$;
               select once.grant_role('no_usage', 'use'); grant select, update on s.job to no_usage"#
        ))
        .await;
        let call = "select moved from once.transition('schema_job', '1', 'new')";
        play.show("set role no_usage").await;
        assert_eq!(play.code(call).await, "42501", "{way}");
        play.show("reset role; grant usage on schema s to no_usage; set role no_usage")
            .await;
        assert_eq!(play.show(call).await, "t", "{way}");
        play.show("reset role; select once.machine_drop('schema_job'); drop schema s cascade")
            .await;
    }
}

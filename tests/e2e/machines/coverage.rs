//! Claim states that nobody sweeps, and everything else that machine_check tells.

use crate::playground::Playground;
use crate::world::{JOB, define, jobs, outcome, sweep, token, world};
use pg_once_tests::script::rows;

const ASSERT: &str = "select once.machine_assert()";

fn small(machine: &str) -> String {
    format!(
        r#"{{"machine": "{machine}", "table": "{machine}", "id": "id", "status": "status",
            "status_types": ["a", "w1", "w2", "b"], "steps": [
              {{"step_key": "s", "status": "a", "claim_state": {{"*": ["w1", "a"]}}, "successful_state": {{"*": "b"}}}},
              {{"step_key": "t", "status": "b", "claim_state": {{"x": ["w2", "b"]}}, "successful_state": {{"x": "a"}}}}]}}"#
    )
}

pub async fn with_small(play: &Playground, machine: &str) {
    play.show(&format!(
        "create table {machine} (id int primary key, status text not null)"
    ))
    .await;
    define(play, &small(machine)).await;
}

#[tokio::test]
async fn a_service_whose_claim_states_nobody_sweeps_does_not_boot() {
    let play = Playground::open().await;
    play.show(ASSERT).await;
    with_small(&play, "small").await;
    with_small(&play, "other").await;
    let refusal = play.refused(ASSERT).await;
    assert_eq!(refusal.code, "ON004", "{refusal:?}");
    let told = format!("{} {}", refusal.message, refusal.detail);
    for name in ["small", "other", "w1", "w2"] {
        assert!(told.contains(name), "{name}: {refusal:?}");
    }
    assert!(!refusal.hint.is_empty());
    play.show("select once.sweep(10, 'action_release', 'small')")
        .await;
    let refusal = play.refused(ASSERT).await;
    let told = format!("{} {}", refusal.message, refusal.detail);
    assert!(
        told.contains("other") && !told.contains("small"),
        "{refusal:?}"
    );
    play.show("select once.sweep()").await;
    play.show(ASSERT).await;
}

/// It says what it could not look at.
#[tokio::test]
async fn machine_check_is_kept_by_no_migration() {
    let play = world().await;
    let migration = play.another().await;
    play.show("set statement_timeout = '20s'").await;
    let check =
        "select problem || ' ' || hint from once.machine_check('job') where problem ~ 'compared'";
    for tables in ["item, wallet", "job"] {
        let lock = format!("begin; lock table {tables} in access exclusive mode");
        migration.show(&lock).await;
        let told = play.show(check).await;
        assert!(told.contains("lock timeout"), "{told}");
        assert!(told.contains("If a table was locked"), "{told}");
        migration.show("rollback").await;
        assert_eq!(play.show(check).await, "");
    }
}

#[tokio::test]
async fn a_machine_without_claim_states_needs_no_sweep() {
    let play = Playground::open().await;
    play.show("create table plain (id int primary key, status text not null)")
        .await;
    define(
        &play,
        r#"{"machine": "plain", "table": "plain", "id": "id", "status": "status",
            "status_types": ["a", "b"], "transitions": [{"from": ["a"], "to": "b"}]}"#,
    )
    .await;
    play.show(ASSERT).await;
    assert_eq!(play.show("select * from once.machine_check()").await, "");
}

#[tokio::test]
async fn a_sweep_covers_for_the_grace_time_and_no_longer() {
    let play = Playground::open().await;
    with_small(&play, "small").await;
    play.clock("0").await;
    play.show("select once.sweep(task => 'action_release')")
        .await;
    play.clock("9 min 59 s").await;
    play.show(ASSERT).await;
    play.clock("10 min 1 s").await;
    assert_eq!(play.code(ASSERT).await, "ON004");
    play.show("set once.janitor_grace = '1 h'").await;
    play.show(ASSERT).await;
    play.clock("61 min").await;
    assert_eq!(play.code(ASSERT).await, "ON004");
    play.show("select once.sweep()").await;
    play.show(ASSERT).await;
    play.show("set once.janitor_grace = '1 s'").await;
    play.clock("61 min 2 s").await;
    assert_eq!(play.code(ASSERT).await, "ON004");
    for bad in ["0", "-1", "soon"] {
        let set = format!("set once.janitor_grace = '{bad}'");
        assert_eq!(play.code(&set).await, "22023", "{bad}");
    }
}

#[tokio::test]
async fn a_sweep_that_fails_somewhere_does_not_cover() {
    let play = world().await;
    play.clock("0").await;
    jobs(&play, 1, 2, "ready").await;
    token(&play, 1, "run", "").await;
    play.show("alter table job add constraint poison check (status <> 'ready') not valid")
        .await;
    play.clock("1 min").await;
    assert_eq!(sweep(&play, 10).await, "0|1|f");
    assert_eq!(play.code(ASSERT).await, "ON004");
    let check = "select count(*) from once.machine_check('job') where problem ~ 'running'";
    assert_ne!(play.show(check).await, "0");
    play.show("alter table job drop constraint poison").await;
    play.clock("1 year").await;
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    play.show(ASSERT).await;
}

#[tokio::test]
async fn a_sweep_that_is_rolled_back_does_not_cover() {
    let play = world().await;
    play.show("begin; select once.sweep(); rollback").await;
    assert_eq!(play.code(ASSERT).await, "ON004");
}

/// The problems that machine_check tells, each with its hint.
pub(crate) async fn problems(play: &Playground) -> String {
    play.show("select problem || ' / ' || hint from once.machine_check('job')")
        .await
}

/// Asserts that a fault is told in words that contain each of `words`, and that its mending is seen.
async fn told(play: &Playground, fault: &str, words: &[&str], mend: &str) {
    play.show("select once.sweep(task => 'action_release')")
        .await;
    assert_eq!(problems(play).await, "", "before {fault}");
    play.show(fault).await;
    let shown = problems(play).await;
    for word in words {
        assert!(shown.contains(word), "{fault}: {word} is not in: {shown}");
    }
    assert!(!shown.is_empty(), "{fault}");
    for line in shown.lines() {
        assert!(!line.ends_with(" / "), "{fault}: no hint in {line}");
    }
    play.show(mend).await;
    assert_eq!(problems(play).await, "", "after {mend}");
}

#[tokio::test]
async fn every_problem_is_told_and_its_mending_seen() {
    let play = world().await;
    play.show("select once.machine_guard('job', true)").await;
    let index = play
        .show(
            "select conname from pg_constraint where conrelid = 'job'::regclass and contype = 'p'",
        )
        .await;
    let table = r#"
        alter table job rename status to state | status | alter table job rename state to status
        alter table item rename settled to over | settled | alter table item rename over to settled
        alter table job disable trigger user | guard | alter table job enable trigger user
        alter table item disable trigger user | guard, item | alter table item enable trigger user
        set session_replication_role = replica; update job set status = 'x' where false; alter table job disable trigger all
          | guard | set session_replication_role = origin; alter table job enable trigger all
        create function last() returns trigger language plpgsql as 'begin return new; end'; create trigger "~~last" before update on item for each row execute function last()
          | ~~last | drop trigger "~~last" on item; drop function last
        alter table job drop constraint INDEX | index | alter table job add constraint INDEX primary key (id)
        create rule r as on update to item do instead nothing | rule, item | drop rule r on item
        set once.fake_now = '2100-01-01' | running, retrying | reset once.fake_now"#
        .replace("INDEX", &index);
    for [fault, words, mend] in rows(&table) {
        let words: Vec<_> = words.split(", ").collect();
        told(&play, fault, &words, mend).await;
    }
}

#[tokio::test]
async fn a_guard_whose_triggers_are_gone_is_told() {
    let play = world().await;
    play.show("select once.machine_guard('job', true); select once.sweep()")
        .await;
    assert_eq!(problems(&play).await, "");
    play.show(
        "do $$ declare t record; begin
            for t in select tgname from pg_trigger where tgrelid = 'job'::regclass and not tgisinternal loop
                execute format('drop trigger %I on job', t.tgname);
            end loop;
         end $$",
    )
    .await;
    let shown = problems(&play).await;
    assert!(shown.contains("guard"), "{shown}");
    play.show("select once.machine_guard('job', true)").await;
    assert_eq!(problems(&play).await, "");
}

#[tokio::test]
async fn types_and_indexes_that_statements_rely_on_are_told_when_they_are_gone() {
    for fault in [
        "alter table wallet drop constraint wallet_pkey",
        "alter table job drop constraint job_pkey",
        "alter table item drop constraint item_pkey",
        "alter table item alter points type float8",
        "alter table job alter version type numeric",
        "alter table job alter cancel_requested drop not null",
        "alter table job alter id type numeric",
    ] {
        let play = world().await;
        play.show("select once.sweep()").await;
        assert_eq!(problems(&play).await, "");
        play.show(fault).await;
        assert_ne!(problems(&play).await, "", "{fault}");
    }
}

#[tokio::test]
async fn a_dead_lease_keeps_a_machine_until_a_sweep_deletes_it_or_its_table_is_dropped() {
    for (kill, is_swept) in [
        ("delete from job where id = 1", true),
        ("update job set status = 'archived' where id = 1", true),
        ("drop table job", false),
    ] {
        let play = world().await;
        jobs(&play, 1, 1, "ready").await;
        token(&play, 1, "run", ", lease => '1 day'").await;
        assert_eq!(play.code("select once.machine_drop('job')").await, "55006");
        play.show(kill).await;
        if is_swept {
            let refusal = play.refused("select once.machine_drop('job')").await;
            assert_eq!(refusal.code, "55006");
            assert!(refusal.hint.contains("sweep"), "{refusal:?}");
            play.clock("2 days").await;
            play.show("select once.sweep(task => 'action_release')")
                .await;
        }
        play.show("select once.machine_drop('job')").await;
    }
}

#[tokio::test]
async fn a_new_definition_does_not_pull_the_ground_from_a_lease_or_a_teardown() {
    let play = world().await;
    jobs(&play, 1, 2, "ready").await;
    let held = token(&play, 1, "run", "").await;
    play.show("select once.cancel_request('job', '2')").await;
    let refused = async |definition: String| {
        play.code(&format!(
            "select once.machine_define($def${definition}$def$)"
        ))
        .await
    };
    // done becomes terminal by being the cancelled state.
    let to_done = JOB
        .replace(r#""to": "cancelled""#, r#""to": "done""#)
        .replace(
            r#"["archived", "cancelled"]"#,
            r#"["archived", "cancelled", "done"]"#,
        )
        .replace(
            r#""successful_state": {"*": "done", "worker": "done"}"#,
            r#""successful_state": {"*": "failed", "worker": "failed"}"#,
        )
        .replace(
            r#"{"worker": "done", "boss": "archived"}"#,
            r#"{"worker": "new", "boss": "archived"}"#,
        )
        .replace(
            r#"{"from": ["done"], "to": "archived"}"#,
            r#"{"from": ["new"], "to": "archived"}"#,
        );
    assert_eq!(refused(to_done).await, "55006");
    play.show(&crate::world::finish(1, held, "")).await;
    // Without `cancel` the torn down job would run again.
    let begin = JOB.find(r#""cancel":"#).unwrap();
    let without = format!("{}}}", JOB[..begin].trim_end().trim_end_matches(','));
    assert_eq!(refused(without).await, "55006");
    assert_eq!(outcome(&play, 2, "run", "").await, "cancelling|ready");
}

#[tokio::test]
async fn an_enum_label_that_no_status_names_is_reported() {
    let play = Playground::open().await;
    play.show(
        "create type st as enum ('a', 'b'); create table t (id int primary key, status st not null)",
    )
    .await;
    define(
        &play,
        r#"{"machine": "t", "table": "t", "id": "id", "status": "status",
            "status_types": ["a", "b"], "transitions": [{"from": ["a"], "to": "b"}, {"from": ["b"], "to": "a"}]}"#,
    )
    .await;
    let check = "select coalesce(string_agg(machine || ': ' || problem, ';'), '') from once.machine_check('t')";
    assert_eq!(play.show(check).await, "");
    play.show("insert into t values (1, 'a'), (2, 'a')").await;
    play.show("alter type st add value 'brand new' before 'b'")
        .await;
    let told = play.show(check).await;
    assert!(told.contains("brand new"), "{told}");
    // A row that wears it stands nowhere that the machine knows.
    play.show("update t set status = 'brand new' where id = 1")
        .await;
    let shown = play
        .show("select moved, status, reason from once.transition('t', '1', 'b')")
        .await;
    assert_eq!(shown, "f|brand new|status");
    play.ask("select moved from once.transition('t', '2', 'b')")
        .is("t")
        .await;
    // A renamed one that the definition does name is reported too.
    play.show("alter type st rename value 'b' to 'c'").await;
    let told = play.show(check).await;
    assert!(told.contains('b') && told.contains('c'), "{told}");
}

#[tokio::test]
async fn a_running_status_of_a_cancellable_machine_without_claim_states_is_named() {
    let play = Playground::open().await;
    play.show(
        "create table plain (id int primary key, status text not null, stop boolean not null default false)",
    )
    .await;
    let define = |transitions: &str| {
        format!(
            r#"select once.machine_define('{{"machine": "plain", "table": "plain", "id": "id", "status": "status",
            "status_types": ["ready", "running", "done", "cancelled"], "terminal": ["done", "cancelled"],
            "transitions": [{transitions}], "cancel": {{"flag": "stop", "to": "cancelled"}}}}')"#
        )
    };
    let check = "select problem from once.machine_check('plain')";
    let doctor = "select level from once.doctor() where problem like '%has no claim state%'";
    play.show(&define(
        r#"{"from": ["ready"], "to": "running"}, {"from": ["running"], "to": "done"}"#,
    ))
    .await;
    let problem = "it can be cancelled and has no claim state; a cancel in running begins the teardown at once";
    assert_eq!(play.show(check).await, problem);
    assert_eq!(play.show(doctor).await, "info");
    play.show(&define(r#"{"from": ["ready", "running"], "to": "done"}"#))
        .await;
    assert_eq!(play.show(check).await, "");
    assert_eq!(play.show(doctor).await, "");
}

//! A hostile search_path, temporary twins and planted functions: nothing of theirs is run or read by any
//! function on machines, nor by the guard, nor by the sweep.

use crate::playground::Playground;
use crate::world::{JOB, TABLES, define};
use serde_json::json;

/// In schema evil a twin of every operator of pg_catalog, of functions and of types; each raises EVIL0.
const EVIL: &str = include_str!("../keys/evil.sql");

/// Twins of what SQL over the tests' tables names.
const MORE: &str = "
create table evil.job (like job); create table evil.item (like item); create table evil.wallet (like wallet);
create table evil.machine (x int); create table evil.action_lease (x int); create table evil.cancel (x int);
create table evil.refund (x int); create table evil.pg_class (x int); create table evil.pg_attribute (x int);
create domain evil.int8 as pg_catalog.int4; create domain evil.numeric as pg_catalog.int4;
create domain evil.bool as pg_catalog.int4; create domain evil.regclass as pg_catalog.int4;
grant all on all tables in schema evil to public;";

const TEMPORARY: &str = "
create temp table job (x int); create temp table item (x int); create temp table wallet (x int);
create temp table machine (x int); create temp table action_lease (x int); create temp table cancel (x int);
create temp table refund (x int); create temp table pg_class (x int); create temp table pg_trigger (x int);
create domain pg_temp.text as int; create domain pg_temp.json as int; create domain pg_temp.jsonb as int; create domain pg_temp.int8 as int";

/// Makes jobs 1 to 6 and takes them through every function; names no operator itself.
/// Everything once. `sweeps`: a session that may act as the tables' owner; one of an ordinary role with
/// temporary tables may not, because the owner's triggers would see them.
async fn call_everything(play: &Playground, session: &Playground, owner: bool, sweeps: bool) {
    play.show(
        "delete from public.item; delete from public.job; delete from once.action_lease; delete from once.cancel;
         delete from once.refund; update public.wallet set points = 0;
         insert into public.job (id, status) values (1, 'new'), (2, 'ready'), (3, 'ready'), (4, 'ready'), (5, 'new'), (6, 'ready');
         insert into public.item (id, job_id, state, points) values (1, 4, 'succeeded', 5), (2, 4, 'failed', 7), (3, 4, 'pending', 9)",
    )
    .await;
    let all = async |call: String| {
        session
            .show(&format!("select * from once.{call}"))
            .await
            .replace('\n', ";")
    };
    let token = async |id: i32| {
        let claim = format!(
            "select token from once.action_claim('job', '{id}', 'run', 'worker', '1 h', 'h')"
        );
        session.show(&claim).await
    };
    if owner {
        session
            .show("select once.machine_define(once.machine_get('job'))")
            .await;
        session.show("select once.machine_guard('job', true)").await;
    }
    all("machine_get('job')".into()).await;
    all("machine_check('job')".into()).await;
    let patch = r#"'{"note": "x", "n": 3, "doc": {"a": 1}, "at": "2030-01-01", "amount": 1.5, "list": [1]}'"#;
    let shown = all(format!(
        "transition('job', '1', 'ready', '{{new}}', {patch}, 'worker', 0)"
    ))
    .await;
    assert_eq!(shown, "t|ready|1|~");
    let shown = all("transition_many('job', '{1,5,05,77}', 'new')".into()).await;
    assert_eq!(shown.split(';').count(), 3, "{shown}");
    let held = token(2).await;
    all(format!("action_extend('job', '2', {held}, '1 h')")).await;
    let shown = all(format!("action_finish('job', '2', {held}, {patch})")).await;
    assert!(shown.starts_with("finished|done|"), "{shown}");
    let held = token(3).await;
    all(format!("action_release('job', '3', {held}, 'e')")).await;
    let held = token(4).await;
    assert_eq!(
        all("cancel_request('job', '4')".into()).await,
        "accepted|running"
    );
    all(format!("action_release('job', '4', {held})")).await;
    assert!(all("cancel_pending('job')".into()).await.starts_with("4|"));
    let shown = all("cancel_refund('job', '4', 2)".into()).await;
    assert!(shown.starts_with("2|"), "{shown}");
    let pass = session
        .show("select pass from once.cancel_refund('job', '4')")
        .await;
    assert_eq!(
        all("cancel_items('job', '4')".into())
            .await
            .split(';')
            .count(),
        3
    );
    all("cancel_items('job', '4', '2', 10)".into()).await;
    all(format!("cancel_confirm('job', '4', {pass})")).await;
    let shown = all("cancel_finish('job', '4', '{\"note\": \"x\"}')".into()).await;
    assert_eq!(shown, "cancelled|3|5");
    assert_eq!(all("cancel_audit('job')".into()).await, "");
    session
        .show("select once.action_claim('job', '6', 'run', 'worker', '1 us')")
        .await;
    let shown = all("sweep(10, 'action_release', 'job')".into()).await;
    match sweeps {
        true => assert_eq!(shown, "action_release|1|0|f"),
        false => {
            assert_eq!(shown, "action_release|0|1|f");
            let shown = play
                .show("select done, failed from once.sweep(10, 'action_release')")
                .await;
            assert_eq!(shown, "1|0");
        }
    }
    all("sweep(10)".into()).await;
    all("action_adopt('job', 10)".into()).await;
    session.show("select once.machine_assert()").await;
    // What people write by hand, through the guard.
    for refused in [
        "update public.job set status = 'running'",
        "update public.job set cancel_requested = 'true'",
        "insert into public.job (id, status) values (100, 'cancelled')",
        "update public.item set settled = null",
        "insert into public.item (id, job_id) values (100, 4)",
    ] {
        let code = session.code(refused).await;
        assert!(code == "ON002", "{refused}: {code}");
    }
    let values = play.show("select points from public.wallet; ").await;
    assert_eq!(values, "5");
}

#[tokio::test]
async fn a_hostile_search_path_never_runs_anything_of_its_own() {
    let play = Playground::open().await;
    play.show(TABLES).await;
    define(&play, JOB).await;
    play.show("select once.machine_guard('job', true)").await;
    crate::world::role(&play, "hostile_worker", "operate").await;
    play.show("grant all on job, item, wallet to hostile_worker")
        .await;
    play.show(EVIL).await;
    play.show(MORE).await;
    for role in ["postgres", "hostile_worker"] {
        let session = play.another_as(role).await;
        session.show("set search_path = evil, pg_catalog").await;
        for trap in ["1 = 1", "'a'::pg_catalog.text = 'a'", "now()"] {
            assert_eq!(session.code(&format!("select {trap}")).await, "EVIL0");
        }
        call_everything(&play, &session, role == "postgres", true).await;
    }
}

#[tokio::test]
async fn temporary_objects_of_the_same_names_do_not_matter() {
    let play = Playground::directly("temporary objects are a session's").await;
    play.show(TABLES).await;
    define(&play, JOB).await;
    play.show("select once.machine_guard('job', true)").await;
    crate::world::role(&play, "hostile_temporary", "operate").await;
    play.show("grant all on job, item, wallet to hostile_temporary")
        .await;
    for role in ["postgres", "hostile_temporary"] {
        let session = play.another_as(role).await;
        session.show(TEMPORARY).await;
        call_everything(&play, &session, false, role == "postgres").await;
        session
            .show("set search_path = pg_temp, pg_catalog, public")
            .await;
        call_everything(&play, &session, false, role == "postgres").await;
    }
}

#[tokio::test]
async fn a_when_means_what_it_meant_when_it_was_defined() {
    let play = Playground::open().await;
    play.show(TABLES).await;
    play.show(
        "create schema meaning_a; create schema meaning_b;
         create function meaning_a.may(int) returns boolean language sql immutable as 'select true';
         create function meaning_b.may(int) returns boolean language sql immutable as 'select false'",
    )
    .await;
    play.show("set search_path = meaning_a, public").await;
    define(&play, &JOB.replace("n >= 0", "may(n) and n >= 0")).await;
    play.show("reset search_path").await;
    crate::world::jobs(&play, 1, 2, "new").await;
    for session in [&play, &play.another().await] {
        session.show("set search_path = meaning_b, public").await;
        let shown = crate::world::moves(session, "1", "ready", "").await;
        assert!(shown.starts_with("t|"), "{shown}");
        crate::world::moves(session, "1", "new", "").await;
    }
    // And again when what is stored is defined anew, under another path.
    play.show("select once.machine_define(once.machine_get('job'))")
        .await;
    let shown = crate::world::moves(&play, "2", "ready", "").await;
    assert!(shown.starts_with("t|"), "{shown}");
    play.show("drop schema meaning_a cascade; drop schema meaning_b cascade")
        .await;
}

/// Calls with the text in one argument or more. Job 1 is new; nobody has a token 1.
fn calls_with(quoted: &str) -> Vec<String> {
    let object = format!("json_build_object({quoted}, {quoted})");
    let mut calls = vec![
        format!("transition('job', '1', {quoted})"),
        format!("transition('job', '1', 'ready', array[{quoted}])"),
        format!("transition('job', '1', 'ready', patch => {object})"),
        format!("transition('job', '1', 'new', requester => {quoted})"),
        format!("action_claim('job', '1', {quoted})"),
        format!("action_claim('job', '1', 'run', {quoted}, holder => {quoted})"),
        format!("action_finish('job', '1', 1, {object})"),
        format!("action_release('job', '1', 1, {quoted})"),
        format!("cancel_finish('job', '1', {object})"),
        format!("cancel_items('job', '1', {quoted})"),
    ];
    for machine in [
        "machine_get($)",
        "machine_check($)",
        "machine_drop($)",
        "machine_guard($, true)",
        "action_adopt($)",
        "sweep(10, 'action_release', $)",
        "cancel_pending($)",
        "cancel_audit($)",
    ] {
        calls.push(machine.replace('$', quoted));
    }
    for row in [
        "transition($, 'ready')",
        "action_claim($, 'run')",
        "action_extend($, 1)",
        "action_finish($, 1)",
        "action_release($, 1)",
        "cancel_request($)",
        "cancel_refund($)",
        "cancel_items($)",
        "cancel_confirm($, 1)",
        "cancel_finish($)",
        "cancel_audit($)",
    ] {
        calls.push(row.replace('$', &format!("{quoted}, '1'")));
        calls.push(row.replace('$', &format!("'job', {quoted}")));
    }
    calls.push(format!("transition_many({quoted}, '{{1}}', 'ready')"));
    calls.push(format!("transition_many('job', array[{quoted}], 'ready')"));
    calls.push(format!("transition_many('job', '{{1}}', {quoted})"));
    calls
}

/// Tables whose ids take any text.
const STRANGE: &str = "
create table strange (id text primary key, customer text not null, status text not null default 'ready',
    cancelling boolean not null default false, note text);
create table part (id text primary key, job_id text not null, state text not null default 'succeeded',
    points bigint not null default 1, settled text);
create index on part (job_id, id)";

/// A machine over them in which everything that may be named freely is named by the text.
fn strange(text: &str) -> String {
    json!({
        "machine": text, "table": "strange", "id": "id", "status": "status",
        "status_types": ["ready", text, "done", "cancelled"], "terminal": ["cancelled"],
        "transitions": [{"from": ["done"], "to": "ready"}, {"from": ["ready"], "to": "done"}],
        "steps": [{"step_key": text, "status": "ready", "claim_state": {text: [text, "ready"]},
                   "successful_state": {text: "done"}, "action": text}],
        "cancel": {"flag": "cancelling", "to": "cancelled"},
        "refund": {"items": "part", "item_id": "id", "subject": "job_id", "marker": "settled", "marked": text,
                   "when": "state = 'succeeded'", "amount": "points", "wallet": "wallet", "wallet_id": "customer",
                   "account": "customer", "balance": "points"}
    })
    .to_string()
}

/// What a row goes through there, and what comes of it; `$` is the text, `TOKEN` the row's last.
const LIFE: &[(&str, &str)] = &[
    (
        "insert into wallet values ($); insert into strange values ($, $); insert into part values ($, $)",
        "",
    ),
    ("select once.machine_get($) ->> 'machine' = $", "t"),
    (
        "select problem = 'claim states are not covered: ' || $ from once.machine_check($)",
        "t",
    ),
    ("select once.machine_guard($, true)", "~"),
    (
        "select outcome from once.action_claim($, $, $, $, holder => $)",
        "claimed",
    ),
    (
        "select cancelling from once.action_extend($, $, TOKEN)",
        "f",
    ),
    (
        "select status from once.action_release($, $, TOKEN, $)",
        "ready",
    ),
    (
        "select note = $ from once.action_lease where row_id = $",
        "t",
    ),
    (
        "select status = $ from once.action_claim($, $, $, $, holder => $)",
        "t",
    ),
    (
        "select outcome from once.action_finish($, $, TOKEN, json_build_object('note', $))",
        "finished",
    ),
    (
        "select moved from once.transition($, $, 'ready', patch => json_build_object('note', $))",
        "t",
    ),
    (
        "select moved from once.transition_many($, array[$], 'done')",
        "t",
    ),
    ("select outcome from once.cancel_request($, $)", "teardown"),
    ("select id = $ from once.cancel_pending($)", "t"),
    ("select amount, pass from once.cancel_refund($, $)", "1|1"),
    (
        "select item_id = $, item ->> 'settled' = $ from once.cancel_items($, $)",
        "t|t",
    ),
    (
        "select count(*) from once.cancel_items($, $, after_id => $)",
        "0",
    ),
    ("select once.cancel_confirm($, $, 1)", "t"),
    (
        "select status from once.cancel_finish($, $, json_build_object('note', $))",
        "cancelled",
    ),
    ("select count(*) from once.cancel_audit($, $)", "0"),
    (
        "select done, failed from once.sweep(10, 'action_release', $)",
        "0|0",
    ),
    ("select once.action_adopt($)", "0"),
    (
        "select count(*) from strange where id = $ and note = $",
        "1",
    ),
    ("select once.machine_drop($)", "~"),
];

#[tokio::test]
async fn nothing_in_an_argument_is_ever_run() {
    let play = crate::world::world().await;
    crate::world::jobs(&play, 1, 1, "new").await;
    play.show(STRANGE).await;
    play.show("create table witness (x int)").await;
    for text in [
        "'; insert into witness values (1); --",
        "1; insert into witness values (1)",
        "1) or (select count(*) from (insert into witness values (1) returning 1) x) > 0 --",
        "$$; insert into witness values (1); $$",
        "\"; insert into witness values (1); --",
    ] {
        let quoted = format!("'{}'", text.replace('\'', "''"));
        for call in calls_with(&quoted) {
            if let Err(refusal) = play.attempt(&format!("select * from once.{call}")).await {
                // The text was no SQL, and the call is one that there is.
                let code = refusal.code.as_str();
                assert!(!["42601", "42883"].contains(&code), "{call}: {refusal:?}");
            }
        }
        define(&play, &strange(text)).await;
        let token = format!("(select token from once.action_lease where row_id = {quoted})");
        for (sql, told) in LIFE {
            let sql = sql.replace('$', &quoted).replace("TOKEN", &token);
            assert_eq!(play.show(&sql).await, *told, "{sql}");
        }
    }
    assert_eq!(play.show("select count(*) from witness").await, "0");
}

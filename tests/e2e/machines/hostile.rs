//! A hostile search_path: nothing of it is run or read by any function on machines, nor by the guard, nor by the
//! sweep.

use crate::playground::Playground;
use crate::world::{JOB, TABLES, define};

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

/// Makes jobs 1 to 6 and takes them through every function; names no operator itself.
async fn call_everything(play: &Playground, session: &Playground, owner: bool) {
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
    assert_eq!(shown, "cancelled|cancelled|3|5");
    assert_eq!(all("cancel_audit('job')".into()).await, "");
    session
        .show("select once.action_claim('job', '6', 'run', 'worker', '1 us')")
        .await;
    let shown = all("sweep(10, 'action_release', 'job')".into()).await;
    assert_eq!(shown, "action_release|1|0|f");
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
        call_everything(&play, &session, role == "postgres").await;
    }
}

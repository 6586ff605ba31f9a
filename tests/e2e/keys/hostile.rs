//! A hostile search_path: objects with the names of built-in ones, found before them, are never run or
//! read by any function of the extension, whoever calls it.

use crate::playground::Playground;

/// In schema evil a twin of every operator of pg_catalog, of the functions that SQL of the extension
/// could name, and of types and tables. Each function tells who ran it and raises.
const EVIL: &str = include_str!("evil.sql");

const HOSTILE: &str = "set search_path = evil, pg_catalog";

/// Calls that reach every function with something to do for each; they name no operator themselves.
/// `role` is one that may be given rights.
async fn call_everything(session: &Playground, role: &str) {
    let at = |minutes: &str| format!("set once.fake_now = '2030-01-01 {minutes}:00+00'");
    session.show(
        r#"select once.scope_set('s', '{"lease": "1 min", "ttl": "1 hour", "gone_for": "0", "on_expiry": "resume",
            "max_attempts": 30, "max_lease_life": "2 hours", "keep_request": true,
            "recovery_points": ["a", "b"], "owner": null}')"#,
    ).await;
    session.show("select once.scope_get('s')").await;
    let token = session.show("select token from once.key_claim('s', 'k', '{\"a\": [1.0, \"x\"]}', '1 min', '1 h', 'h')").await;
    for call in [
        "key_claim('s', 'k', '{\"a\": [1.0, \"x\"]}', '1 min', '1 h', 'h')",
        "key_claim('s', 'k', '{\"a\": [1, \"x\"]}')",
        "key_claim('s', 'k', '2')",
        "key_claim('s', 'k', fingerprint => '\\x0000000000000000000000000000000000000000000000000000000000000000')",
        "key_advance('s', 'k', $, 'a', '1', '1 min')",
        "key_extend('s', 'k', $, '2 min')",
        "key_step('s', 'k', $, 'pay')",
        "key_rotate('s', 'k', $, 'pay', 1)",
        "key_step_done('s', 'k', $, 'pay', '1')",
        "key_derive('s', 'k', 'pay')",
        "key_get('s', 'k')",
        "key_release('s', 'k', $, 'error')",
        "sweep(task => 'key_abandon')",
        "key_take_abandoned('s', 10, '1 min', 'taker')",
        "key_take_abandoned('s', 10, '1 min', 'taker')",
        "inbox_barrier('s', 'g', 'a', 'action')",
        "inbox_barrier('s', 'g', 'a', 'compensation')",
    ] {
        session
            .show(&format!("select * from once.{}", call.replace('$', &token)))
            .await;
    }
    session
        .show("begin; select * from once.inbox_accept('s', 'm', '1 min'); select * from once.inbox_record('s', 'm', '1'); commit")
        .await;
    session
        .show("select * from once.inbox_accept('s', 'm')")
        .await;
    let token = session
        .show(
            "select token from once.key_claim('s', 'k', '{\"a\": [1, \"x\"]}', holder => 'taker')",
        )
        .await;
    for call in [
        "key_park('s', 'k', $, 'why')",
        "key_resolve('s', 'k', 2, 'complete', 200, '1')",
        "key_claim('s', 'k', '{\"a\": [1, \"x\"]}')",
        "key_get('s', 'k')",
        "sweep(10)",
    ] {
        session
            .show(&format!("select * from once.{}", call.replace('$', &token)))
            .await;
    }
    let token = session
        .show("select token from once.key_claim('s', 'aborted')")
        .await;
    session
        .show(&format!(
            "select once.key_abort('s', 'aborted', {token}, 500)"
        ))
        .await;
    session.show("select once.key_forget('s', 'aborted')").await;
    let token = session
        .show("select token from once.key_claim('other', 'k')")
        .await;
    session
        .show(&format!(
            "select once.key_complete('other', 'k', {token}, 200, '1', '2')"
        ))
        .await;
    if session.attempt(&at("03:00")).await.is_ok() {
        session
            .show("select * from once.sweep(10, 'key_reap')")
            .await;
        session
            .show("select * from once.sweep(10, 'key_tombstone')")
            .await;
        session
            .show("select * from once.sweep(10, 'inbox_reap')")
            .await;
        session.show("select once.key_claim('s', 'k')").await;
        session.show("set once.fake_now = '2031-01-01'").await;
        session.show("select * from once.sweep(10)").await;
        session.show("reset once.fake_now").await;
        session
            .show(&format!("select once.grant_role('{role}', 'observe')"))
            .await;
        session
            .show(&format!("select once.revoke_role('{role}', 'observe')"))
            .await;
        session
            .show(&format!(
                r#"select once.scope_set('s', '{{"owner": "{role}"}}')"#
            ))
            .await;
    }
    for refused in [
        "select once.key_claim('', 'k')",
        "select once.key_complete('s', 'k', 1, 200)",
        r#"select once.scope_set('s', '{"nothing": 1}')"#,
        r#"select once.scope_set('s', '{"lease": "x"}')"#,
    ] {
        assert!(
            matches!(session.code(refused).await.as_str(), "22023" | "ON001"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn a_hostile_search_path_never_runs_anything_of_its_own() {
    let play = Playground::open().await;
    play.show("create role hostile_user login; select once.grant_role('hostile_user', 'operate')")
        .await;
    play.show(EVIL).await;
    for role in ["postgres", "hostile_user"] {
        // A fresh session: its plans are made under the hostile path.
        let session = play.another_as(role).await;
        session.show(HOSTILE).await;
        for trap in [
            "1 = 1",
            "'{}'::pg_catalog.jsonb ->> 'a'",
            "'a'::pg_catalog.text = 'a'",
            "now()",
        ] {
            assert_eq!(
                session.code(&format!("select {trap}")).await,
                "EVIL0",
                "the trap works: {trap}"
            );
        }
        call_everything(&session, "hostile_user").await;
        play.show("delete from once.key; delete from once.key_step; delete from once.scope; delete from once.inbox")
            .await;
    }
}

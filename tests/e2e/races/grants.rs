//! grant_role and revoke_role from several sessions at once: one after the other, never an error.

use crate::playground::Playground;
use crate::waiting::{Waiting, code};

/// The functions that a role may call.
async fn functions(play: &Playground, role: &str) -> i64 {
    let count = format!(
        "select count(distinct proname) from pg_proc where pronamespace = 'once'::regnamespace and proname <> 'shard_of'
            and has_function_privilege('{role}', oid, 'execute')"
    );
    play.show(&count).await.parse().unwrap()
}

async fn remembered(play: &Playground) -> String {
    play.show("select string_agg(role_name || ' ' || kind, ', ' order by role_name, kind) from once.role_grant")
        .await
}

#[tokio::test]
async fn a_grant_waits_for_another_roles_open_grant_and_then_counts() {
    let play = Playground::open().await;
    play.show("create role wait_a; create role wait_b").await;
    let other = play.another().await;
    let mut second = play.another().await;
    for end in ["rollback", "commit"] {
        other
            .show("begin; select once.grant_role('wait_a', 'use')")
            .await;
        let grant = "select once.grant_role('wait_b', 'use')";
        let waiting = Waiting::begin(&play, second, grant).await;
        other.show(end).await;
        let (session, answer) = waiting.end().await;
        assert_eq!(code(&answer), "", "{end}: {answer:?}");
        second = session;
        assert!(functions(&play, "wait_b").await > 0, "{end}");
        assert_eq!(functions(&play, "wait_a").await > 0, end == "commit");
        play.show("select once.revoke_role('wait_b', 'use')").await;
    }
    assert_eq!(remembered(&play).await, "wait_a use");
}

#[tokio::test]
async fn of_a_grant_and_a_revocation_for_one_role_both_count() {
    let play = Playground::open().await;
    play.show("create role of_both; select once.grant_role('of_both', 'operate')")
        .await;
    let other = play.another().await;
    other
        .show("begin; select once.grant_role('of_both', 'use')")
        .await;
    let use_alone = other
        .show("select count(*) from once.role_function where kind = 'use'")
        .await;
    let revoke = "select once.revoke_role('of_both', 'operate')";
    let waiting = Waiting::begin(&play, play.another().await, revoke).await;
    other.show("commit").await;
    let (_, answer) = waiting.end().await;
    assert_eq!(code(&answer), "", "{answer:?}");
    assert_eq!(remembered(&play).await, "of_both use");
    assert_eq!(functions(&play, "of_both").await.to_string(), use_alone);
}

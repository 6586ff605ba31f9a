//! Scopes with an owner: closed to all but its members and superusers, by whatever way they come.
//!
//! Roles belong to the whole cluster, so each test's roles have names of their own.

use crate::playground::Playground;

/// Every function that names a scope of keys; crossing/calls has those of messages and sagas, too.
fn scoped_calls(token: &str) -> Vec<String> {
    let mut calls: Vec<String> = [
        "key_claim('owned', 'new')",
        "key_claim('owned', 'k')",
        "key_claim('owned', 'new', fingerprint => sha256('x'))",
        "key_take_abandoned('owned')",
        "key_derive('owned', 'k', 'pay')",
        "key_get('owned', 'k')",
        "key_get('owned', 'missing')",
        "key_list('owned')",
        "key_resolve('owned', 'k', 1, 'retry')",
        "key_expire('owned', 'k')",
        "key_forget('owned', 'k')",
        "scope_get('owned')",
        "scope_set('owned', '{}')",
        r#"scope_set('owned', '{"lease": "1 s"}')"#,
        r#"scope_set('owned', '{"owner": null}')"#,
    ]
    .map(str::to_owned)
    .to_vec();
    for write in [
        "key_advance('owned', 'k', $, 'p')",
        "key_complete('owned', 'k', $, 200)",
        "key_abort('owned', 'k', $, 500)",
        "key_release('owned', 'k', $)",
        "key_park('owned', 'k', $, 'x')",
        "key_extend('owned', 'k', $)",
        "key_step('owned', 'k', $, 'pay')",
        "key_step_done('owned', 'k', $, 'pay')",
        "key_rotate('owned', 'k', $, 'pay', 1)",
    ] {
        calls.push(write.replace('$', token));
    }
    calls
}

/// A scope with an owner, a key in it, and roles: member, outsider (all may call every function).
async fn owned(play: &Playground, prefix: &str) -> String {
    play.show(&format!(
        "create role {prefix}_owner; create role {prefix}_member login in role {prefix}_owner;
         create role {prefix}_outsider login; create role {prefix}_all;
         grant {prefix}_all to {prefix}_owner, {prefix}_outsider;
         select once.grant_role('{prefix}_all', 'operate');
         select once.scope_set('owned', '{{\"owner\": \"{prefix}_owner\"}}');
         select token from once.key_claim('owned', 'k')"
    ))
    .await
}

async fn refused_everywhere(play: &Playground, session: &Playground, token: &str) {
    let stored = play.stored().await;
    for call in scoped_calls(token) {
        let refused = session.refused(&format!("select * from once.{call}")).await;
        refused.tells("42501", &["scope \"owned\""], &call);
    }
    assert_eq!(play.stored().await, stored);
}

async fn allowed_everywhere(session: &Playground, token: &str) {
    for call in scoped_calls(token) {
        session.show("begin").await;
        let answer = session.attempt(&format!("select * from once.{call}")).await;
        session.show("rollback").await;
        let expected = ["55006"];
        if let Err(refusal) = answer {
            assert!(
                expected.contains(&refusal.code.as_str()),
                "{call}: {refusal:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_scope_with_an_owner_is_closed_to_all_but_its_members_and_superusers() {
    let play = Playground::open().await;
    let token = owned(&play, "own").await;
    let outsider = play.another_as("own_outsider").await;
    refused_everywhere(&play, &outsider, &token).await;
    assert_eq!(
        outsider.claim("k", "").await,
        "claimed",
        "another scope is open to it"
    );
    let member = play.another_as("own_member").await;
    allowed_everywhere(&member, &token).await;
    allowed_everywhere(&play, &token).await;
}

#[tokio::test]
async fn the_caller_is_the_current_user_after_set_role() {
    let play = Playground::open().await;
    let token = owned(&play, "setrole").await;
    play.show("create role setrole_noinherit login noinherit in role setrole_owner")
        .await;
    let session = play.another_as("setrole_noinherit").await;
    session.show("set role setrole_owner").await;
    allowed_everywhere(&session, &token).await;
    let member = play.another_as("setrole_member").await;
    allowed_everywhere(&member, &token).await;
    play.show("set role setrole_outsider").await;
    play.ask("select once.key_claim('owned', 'new')")
        .fails("42501")
        .await;
    play.show("reset role").await;
    play.ask("select outcome from once.key_claim('owned', 'new')")
        .is("claimed")
        .await;
}

#[tokio::test]
async fn setting_and_changing_an_owner_need_membership_in_both() {
    let play = Playground::open().await;
    play.show(
        "create role chg_a; create role chg_b; create role chg_all; grant chg_all to chg_a, chg_b;
         create role chg_only_a login in role chg_a; create role chg_only_b login in role chg_b;
         create role chg_both login in role chg_a, chg_b; create role chg_none login in role chg_all;
         select once.grant_role('chg_all', 'operate')",
    )
    .await;
    let set = |owner: &str| {
        let owner = if owner == "null" {
            owner.to_owned()
        } else {
            format!("\"{owner}\"")
        };
        format!("select once.scope_set('s', '{{\"owner\": {owner}}}') ->> 'owner'")
    };
    let (only_a, only_b) = (
        play.another_as("chg_only_a").await,
        play.another_as("chg_only_b").await,
    );
    let (both, none) = (
        play.another_as("chg_both").await,
        play.another_as("chg_none").await,
    );
    assert_eq!(
        none.code(&set("chg_a")).await,
        "42501",
        "an open scope needs membership in the new one"
    );
    assert_eq!(only_b.code(&set("chg_a")).await, "42501");
    assert_eq!(only_a.show(&set("chg_a")).await, "chg_a");
    assert_eq!(
        only_a.code(&set("chg_b")).await,
        "42501",
        "not in the new one"
    );
    assert_eq!(
        only_b.code(&set("chg_b")).await,
        "42501",
        "not in the present one"
    );
    assert_eq!(none.code(&set("null")).await, "42501");
    assert_eq!(only_b.code(&set("null")).await, "42501");
    assert_eq!(both.show(&set("chg_b")).await, "chg_b");
    assert_eq!(only_a.code(&set("chg_a")).await, "42501");
    assert_eq!(only_b.show(&set("null")).await, "~");
    none.ask("select once.scope_set('s', '{\"lease\": \"1 s\"}') ->> 'owner'")
        .is("~")
        .await;
}

#[tokio::test]
async fn an_owner_that_is_gone_closes_the_scope_to_all_but_superusers_who_may_set_another() {
    let play = Playground::open().await;
    let token = owned(&play, "gone").await;
    play.show(
        "revoke gone_all from gone_owner; drop role gone_owner; grant gone_all to gone_member",
    )
    .await;
    for role in ["gone_member", "gone_outsider"] {
        let session = play.another_as(role).await;
        refused_everywhere(&play, &session, &token).await;
    }
    allowed_everywhere(&play, &token).await;
    play.show("create role gone_owner in role gone_all; grant gone_owner to gone_member")
        .await;
    let member = play.another_as("gone_member").await;
    assert_eq!(
        member.code("select once.key_claim('owned', 'new')").await,
        "42501",
        "a new role of that name"
    );
    play.show("select once.scope_set('owned', '{\"owner\": \"gone_owner\"}')")
        .await;
    member
        .ask("select outcome from once.key_claim('owned', 'new')")
        .is("claimed")
        .await;
    play.show("alter role gone_owner rename to gone_renamed")
        .await;
    member
        .ask("select once.scope_get('owned') ->> 'owner'")
        .is("gone_renamed")
        .await;
}

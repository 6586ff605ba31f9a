//! Who may call what: PUBLIC nothing, a kind of grant exactly its functions, an owned scope its members.
//!
//! Roles belong to the whole cluster, so each test's roles have names of their own.

use crate::playground::Playground;

const USE: &str = "key_abort key_advance key_claim key_claim_hashed key_complete key_derive key_extend key_park \
                   key_release key_rotate key_step key_step_done key_take_abandoned scope_get";
const OPERATE: &str = "key_abort key_advance key_claim key_claim_hashed key_complete key_derive key_extend key_forget \
                       key_get key_park key_release key_resolve key_rotate key_step key_step_done \
                       key_take_abandoned scope_get scope_set sweep sweep_key_reap sweep_key_tombstone";

/// The functions that a role may call, and whether it may do anything else in the schema.
async fn rights(play: &Playground, role: &str) -> (String, String) {
    let functions = play
        .show(&format!(
            "select coalesce(string_agg(proname, ' ' order by proname::text collate \"C\"), '') from pg_proc
              where pronamespace = 'once'::regnamespace and has_function_privilege('{role}', oid, 'execute')"
        ))
        .await;
    let else_than_functions = play
        .show(&format!(
            "select concat_ws(' ', case when has_schema_privilege('{role}', 'once', 'usage') then 'usage' end,
                    case when has_schema_privilege('{role}', 'once', 'create') then 'create' end,
                    (select string_agg(relname, ' ') from pg_class
                      where relnamespace = 'once'::regnamespace and relkind in ('r', 'v', 'm', 'p', 'f')
                        and (has_table_privilege('{role}', oid, 'select, insert, update, delete, truncate, references, trigger')
                             or has_any_column_privilege('{role}', oid, 'select, insert, update, references'))),
                    (select string_agg(relname, ' ') from pg_class
                      where relnamespace = 'once'::regnamespace and case when relkind = 'S'
                            then has_sequence_privilege('{role}', oid, 'usage, select, update') end))"
        ))
        .await;
    (functions, else_than_functions)
}

fn pair(functions: &str, other: &str) -> (String, String) {
    (functions.to_owned(), other.to_owned())
}

#[tokio::test]
async fn public_has_nothing() {
    let play = Playground::open().await;
    play.show("create role pub_stranger login").await;
    assert_eq!(rights(&play, "pub_stranger").await, pair("", ""));
    let stranger = play.another_as("pub_stranger").await;
    assert_eq!(
        stranger.code("select once.key_claim('s', 'k')").await,
        "42501"
    );
    assert_eq!(stranger.code("select * from once.key").await, "42501");
    let definers =
        "select count(*) from pg_proc where pronamespace = 'once'::regnamespace and prosecdef";
    assert_eq!(play.show(definers).await, "0");
}

#[tokio::test]
async fn each_kind_opens_exactly_its_functions_and_no_table() {
    let play = Playground::open().await;
    play.show("create role kind_use; create role kind_operate; create role kind_observe")
        .await;
    for (kind, functions) in [("use", USE), ("operate", OPERATE), ("observe", "")] {
        let role = format!("kind_{kind}");
        play.show(&format!("select once.grant_role('{role}', '{kind}')"))
            .await;
        assert_eq!(
            rights(&play, &role).await,
            pair(functions, "usage"),
            "{kind}"
        );
    }
    let grants =
        "select string_agg(role::text || ' ' || kind, ', ' order by kind) from once.role_grant";
    let remembered = play.show(grants).await;
    assert_eq!(
        remembered,
        "kind_observe observe, kind_operate operate, kind_use use"
    );
    let nobody = "select count(*) from pg_proc where pronamespace = 'once'::regnamespace and proname ~ 'role'
                     and has_function_privilege('kind_operate', oid, 'execute')";
    assert_eq!(play.show(nobody).await, "0");
}

#[tokio::test]
async fn revoking_one_kind_keeps_what_another_opens() {
    let play = Playground::open().await;
    play.show("create role rev").await;
    for kind in ["use", "operate", "observe"] {
        play.show(&format!("select once.grant_role('rev', '{kind}')"))
            .await;
    }
    play.show("select once.revoke_role('rev', 'operate')").await;
    assert_eq!(rights(&play, "rev").await, pair(USE, "usage"));
    play.show("select once.grant_role('rev', 'operate'); select once.revoke_role('rev', 'use')")
        .await;
    assert_eq!(rights(&play, "rev").await, pair(OPERATE, "usage"));
    play.show("select once.revoke_role('rev', 'operate')").await;
    assert_eq!(
        rights(&play, "rev").await,
        pair("", "usage"),
        "observe is left"
    );
    play.show("select once.revoke_role('rev', 'observe')").await;
    assert_eq!(rights(&play, "rev").await, pair("", ""));
    play.show("drop role rev").await;
}

#[tokio::test]
async fn a_role_may_have_any_name_and_must_exist() {
    let play = Playground::open().await;
    play.show(r#"create role "it's ""Odd""; drop table x --" login"#)
        .await;
    play.show(r#"select once.grant_role('"it''s ""Odd""; drop table x --"', 'use')"#)
        .await;
    let odd = play
        .another_as("it's%20%22Odd%22;%20drop%20table%20x%20--")
        .await;
    assert_eq!(odd.claim("k", "").await, "claimed");
    assert_eq!(odd.code("select once.key_get('s', 'k')").await, "42501");
    play.show(r#"select once.revoke_role('"it''s ""Odd""; drop table x --"', 'use')"#)
        .await;
    assert_eq!(odd.code("select once.key_claim('s', 'k')").await, "42501");
    for role in [
        "'nobody there'",
        "'-'",
        "4294967295::oid::regrole",
        "0::oid::regrole",
    ] {
        for function in ["grant_role", "revoke_role"] {
            let refused = play
                .refused(&format!("select once.{function}({role}, 'use')"))
                .await;
            assert!(
                matches!(refused.code.as_str(), "42704" | "42602"),
                "{role}: {refused:?}"
            );
        }
    }
    assert_eq!(play.show("select count(*) from once.role_grant").await, "0");
}

#[tokio::test]
async fn nobody_but_the_extensions_owner_grants() {
    let play = Playground::open().await;
    play.show("create role climber login; select once.grant_role('climber', 'operate')")
        .await;
    let climber = play.another_as("climber").await;
    for call in [
        "grant_role('climber', 'observe')",
        "revoke_role('climber', 'use')",
    ] {
        assert_eq!(climber.code(&format!("select once.{call}")).await, "42501");
    }
    assert_eq!(
        climber
            .code("insert into once.role_grant values ('climber', 'observe')")
            .await,
        "42501"
    );
    assert_eq!(climber.code("update once.key set token = 1").await, "42501");
    assert_eq!(
        climber.code("create table once.mine (id int)").await,
        "42501"
    );
}

#[tokio::test]
async fn a_role_without_rights_on_any_table_can_do_everything_its_kind_opens() {
    let play = Playground::open().await;
    play.show("create role plain_user login; select once.grant_role('plain_user', 'operate')")
        .await;
    let user = play.another_as("plain_user").await;
    user.show(r#"select once.scope_set('s', '{"keep_request": true, "max_attempts": 3}')"#)
        .await;
    let token = user.token("k", ", '1', lease => '1 microsecond'").await;
    user.show(&format!("select once.key_step('s', 'k', {token}, 'pay'); select once.key_rotate('s', 'k', {token}, 'pay', 1);
                        select once.key_step_done('s', 'k', {token}, 'pay', '1')")).await;
    let token = user
        .show("select token from once.key_take_abandoned('s')")
        .await;
    user.show(&format!("select once.key_park('s', 'k', {token}, 'x'); select once.key_resolve('s', 'k', 2, 'abort', 500)")).await;
    assert_eq!(
        user.show("select status, json_array_length(steps) from once.key_get('s', 'k')")
            .await,
        "finished|1"
    );
    assert_eq!(user.show("select count(*) from once.sweep()").await, "2");
    assert_eq!(user.show("select once.key_forget('s', 'k')").await, "t");
    assert_eq!(user.show("select current_user").await, "plain_user");
}

/// Every function that names a scope.
fn scoped_calls(token: &str) -> Vec<String> {
    let mut calls: Vec<String> = [
        "key_claim('owned', 'new')",
        "key_claim('owned', 'k')",
        "key_claim_hashed('owned', 'new', sha256('x'))",
        "key_take_abandoned('owned')",
        "key_derive('owned', 'k', 'pay')",
        "key_get('owned', 'k')",
        "key_get('owned', 'missing')",
        "key_resolve('owned', 'k', 1, 'retry')",
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
        assert_eq!(refused.code, "42501", "{call}: {refused:?}");
        assert!(
            refused.message.contains("scope \"owned\"") && !refused.hint.is_empty(),
            "{refused:?}"
        );
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
    assert_eq!(
        play.code("select once.key_claim('owned', 'new')").await,
        "42501"
    );
    play.show("reset role").await;
    assert_eq!(
        play.show("select outcome from once.key_claim('owned', 'new')")
            .await,
        "claimed"
    );
}

#[tokio::test]
async fn inside_the_callers_security_definer_function_its_owner_is_the_caller() {
    let play = Playground::open().await;
    let token = owned(&play, "definer").await;
    play.show(
        "create function claim_as_owner() returns text language sql security definer
             as $$ select outcome from once.key_claim('owned', 'through the function') $$;
         create function claim_as_outsider() returns text language sql security definer
             as $$ select outcome from once.key_claim('owned', 'through the function') $$;
         alter function claim_as_owner() owner to definer_owner;
         alter function claim_as_outsider() owner to definer_outsider",
    )
    .await;
    let outsider = play.another_as("definer_outsider").await;
    assert_eq!(outsider.show("select claim_as_owner()").await, "claimed");
    assert_eq!(
        outsider
            .code(&format!("select once.key_extend('owned', 'k', {token})"))
            .await,
        "42501"
    );
    let member = play.another_as("definer_member").await;
    assert_eq!(member.code("select claim_as_outsider()").await, "42501");
    assert_eq!(
        play.code("select claim_as_outsider()").await,
        "42501",
        "called by a superuser, too"
    );
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
    assert_eq!(
        none.show("select once.scope_set('s', '{\"lease\": \"1 s\"}') ->> 'owner'")
            .await,
        "~"
    );
}

#[tokio::test]
async fn a_change_of_owner_that_waited_for_another_one_is_checked_against_the_new_owner() {
    let play = Playground::open().await;
    play.show(
        "create role wait_a; create role wait_b; create role wait_all; grant wait_all to wait_a, wait_b;
         create role wait_in_a login in role wait_a; select once.grant_role('wait_all', 'operate');
         select once.scope_set('s', '{\"owner\": \"wait_a\"}')",
    )
    .await;
    let member = play.another_as("wait_in_a").await;
    let admin = play.another().await;
    admin
        .show("begin; select once.scope_set('s', '{\"owner\": \"wait_b\"}')")
        .await;
    let pid = pg_once_tests::race::backend_pid(&member.client)
        .await
        .unwrap();
    let waiting = tokio::spawn(async move {
        member
            .code("select once.scope_set('s', '{\"owner\": null}')")
            .await
    });
    pg_once_tests::race::wait_until_waiting(&play.client, pid)
        .await
        .unwrap();
    admin.show("commit").await;
    assert_eq!(waiting.await.unwrap(), "42501");
    assert_eq!(
        play.show("select once.scope_get('s') ->> 'owner'").await,
        "wait_b"
    );
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
    assert_eq!(
        member
            .show("select outcome from once.key_claim('owned', 'new')")
            .await,
        "claimed"
    );
    play.show("alter role gone_owner rename to gone_renamed")
        .await;
    assert_eq!(
        member
            .show("select once.scope_get('owned') ->> 'owner'")
            .await,
        "gone_renamed"
    );
}

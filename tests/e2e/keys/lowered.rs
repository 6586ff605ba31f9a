//! Who owns the extension and what privileges are given by default: neither opens or breaks anything.
//!
//! Roles belong to the whole cluster, so each test's roles have names of their own.

use crate::playground::{Playground, cluster};

/// Rights that somebody other than the owner has on the extension's objects.
const OPENED: &str = "
    select coalesce(string_agg(o.name || ' ' || a.grantee::regrole || ' ' || a.privilege_type, ', '), '')
      from (select c.oid::regclass::text, c.relacl, c.relowner from pg_class as c
             where c.relnamespace = 'once'::regnamespace
            union all
            select c.oid::regclass || '.' || t.attname, t.attacl, c.relowner
              from pg_class as c join pg_attribute as t on t.attrelid = c.oid
             where c.relnamespace = 'once'::regnamespace
            union all
            select p.oid::regprocedure::text, coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner
              from pg_proc as p where p.pronamespace = 'once'::regnamespace and p.proname <> 'shard_of'
            union all
            select 'the schema', n.nspacl, n.nspowner from pg_namespace as n where n.nspname = 'once')
           as o (name, acl, owner), aclexplode(o.acl) as a
     where a.grantee <> o.owner";

/// Every call of a key's life, for an operator whose scope `s` belongs to its team.
async fn a_day_of_work(op: &Playground) {
    let token = op.token("k", ", '1', holder => 'h'").await;
    for call in [
        "key_step('s', 'k', TOKEN, 'pay')",
        "key_step_done('s', 'k', TOKEN, 'pay', '{\"id\": 1}')",
        "key_step('s', 'k', TOKEN, 'ship')",
        "key_rotate('s', 'k', TOKEN, 'ship', 1)",
        "key_advance('s', 'k', TOKEN, 'paid', '{}')",
        "key_extend('s', 'k', TOKEN)",
    ] {
        op.show(&format!(
            "select once.{}",
            call.replace("TOKEN", &token.to_string())
        ))
        .await;
    }
    op.ask(
        "select string_agg(e ->> 'step' || ' ' || ((e ->> 'derived_key')
                    = once.key_derive('s', 'k', e ->> 'step')), ', ' order by e ->> 'step')
               from once.key_get('s', 'k') as g, json_array_elements(g.steps) as e",
    )
    .is("pay true, ship true")
    .await;
    op.show(&format!("select once.key_release('s', 'k', {token})"))
        .await;
    let token = op
        .show("select token from once.key_take_abandoned('s')")
        .await;
    op.show(&format!(
        "select once.key_park('s', 'k', {token}, 'timed out')"
    ))
    .await;
    op.show("select once.key_resolve('s', 'k', 2, 'complete', 200)")
        .await;
    assert_eq!(op.claim("k", ", '1'").await, "replayed");
    let set = r#"select once.scope_set('s', '{"ttl": "2 h"}') ->> 'ttl'"#;
    assert_eq!(op.show(set).await, "02:00:00");
    assert_eq!(op.show("select count(*) from once.sweep()").await, "10");
    assert_eq!(op.show("select once.key_forget('s', 'k')").await, "t");
}

#[tokio::test]
async fn everything_works_when_the_extensions_owner_is_no_superuser_any_more() {
    let play = Playground::open().await;
    play.show(
        "drop extension pg_once; create role low_dba superuser login;
         create role low_team; create role low_op login in role low_team",
    )
    .await;
    let dba = play.another_as("low_dba").await;
    dba.show(
        r#"create extension pg_once; select once.scope_set('s', '{"owner": "low_team"}');
           select once.grant_role('low_op', 'operate')"#,
    )
    .await;
    play.show("alter role low_dba nosuperuser").await;
    let op = play.another_as("low_op").await;
    a_day_of_work(&op).await;
    // Its own rights are what they were, and it is no member of the team.
    let dba = play.another_as("low_dba").await;
    dba.show("select once.revoke_role('low_op', 'operate'), once.grant_role('low_op', 'use')")
        .await;
    assert_eq!(op.code("select once.key_get('s', 'k')").await, "42501");
    assert_eq!(op.claim("k", "").await, "claimed");
    assert_eq!(dba.code("select once.key_get('s', 'k')").await, "42501");
}

#[tokio::test]
async fn default_privileges_open_nothing_of_the_extension() {
    let admin = cluster().connect("postgres").await.unwrap();
    // Default privileges stay with a database, so nobody else gets this one.
    admin
        .batch_execute("create database by_default")
        .await
        .unwrap();
    let play = Playground::on(cluster(), "by_default").await;
    play.show(
        r#"create role by_default_ro login; create role "By Default; --" login;
           alter default privileges grant all on tables to by_default_ro, "By Default; --", public;
           alter default privileges grant all on sequences to by_default_ro, public;
           alter default privileges grant all on functions to by_default_ro, "By Default; --";
           alter default privileges grant all on schemas to by_default_ro with grant option;
           alter default privileges grant usage on schemas to public;
           create extension pg_once"#,
    )
    .await;
    assert_eq!(play.show(OPENED).await, "");

    play.show("select once.key_claim('s', 'k')").await;
    let reader = play.another_as("by_default_ro").await;
    for refused in [
        "select * from once.key",
        "update once.key set status = 'l'",
        "create table once.mine (id int)",
        "select once.key_claim('s', 'k')",
        "select once.key_forget('s', 'k')",
        "select once.grant_role('by_default_ro', 'operate')",
    ] {
        assert_eq!(reader.code(refused).await, "42501", "{refused}");
    }
    play.show("select once.grant_role('by_default_ro', 'use')")
        .await;
    assert_eq!(reader.claim("k", "").await, "in_progress");
    assert_eq!(reader.code("select * from once.key").await, "42501");
}

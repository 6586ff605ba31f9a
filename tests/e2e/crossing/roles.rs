//! What grant_role remembers: roles that are renamed, dropped, whose objects are reassigned or dropped; and that
//! PUBLIC has nothing at all. (Restored clusters: crash/strangers. Upgrades: upgrade/rights.)

use crate::playground::Playground;

const REMEMBERED: &str = "select coalesce(string_agg(role_name || ' ' || kind, ', ' order by role_name, kind), '') from once.role_grant";

async fn role(play: &Playground, name: &str) {
    play.show(&format!(
        "drop role if exists {name}; create role {name} login"
    ))
    .await;
}

async fn may_claim(play: &Playground, role: &str) -> bool {
    let sql = format!(
        "select has_function_privilege('{role}', 'once.key_extend(text, text, bigint, interval)', 'execute')"
    );
    play.show(&sql).await == "t"
}

#[tokio::test]
async fn a_renamed_role_keeps_its_rights_and_is_remembered_by_its_new_name() {
    let play = Playground::open().await;
    role(&play, "cross_before").await;
    play.show("drop role if exists cross_after; select once.grant_role('cross_before', 'use')")
        .await;
    play.show("alter role cross_before rename to cross_after")
        .await;
    assert!(may_claim(&play, "cross_after").await);
    role(&play, "cross_other").await;
    play.show("select once.grant_role('cross_other', 'observe')")
        .await;
    play.ask(REMEMBERED)
        .is("cross_after use, cross_other observe")
        .await;
    // Somebody else who takes the old name takes nothing else.
    role(&play, "cross_before").await;
    play.show("select once.grant_role('cross_before', 'observe')")
        .await;
    assert!(!may_claim(&play, "cross_before").await);
    play.show("select once.revoke_role('cross_after', 'use')")
        .await;
    assert!(!may_claim(&play, "cross_after").await);
    play.ask(REMEMBERED)
        .is("cross_before observe, cross_other observe")
        .await;
    for name in ["cross_before", "cross_other"] {
        play.show(&format!("select once.revoke_role('{name}', 'observe')"))
            .await;
    }
    play.show("drop role cross_before, cross_after, cross_other")
        .await;
}

#[tokio::test]
async fn a_role_goes_once_its_rights_are_gone_and_is_forgotten() {
    let play = Playground::open().await;
    role(&play, "cross_going").await;
    role(&play, "cross_heir").await;
    play.show("select once.grant_role('cross_going', 'operate')")
        .await;
    assert_eq!(play.code("drop role cross_going").await, "2BP01");
    // Rights are not objects: they go with DROP OWNED, not to the heir.
    play.show("reassign owned by cross_going to cross_heir")
        .await;
    assert!(may_claim(&play, "cross_going").await && !may_claim(&play, "cross_heir").await);
    play.show("drop owned by cross_going").await;
    assert!(!may_claim(&play, "cross_going").await);
    play.show("drop role cross_going").await;
    play.show("select once.grant_role('cross_heir', 'use')")
        .await;
    assert_eq!(play.show(REMEMBERED).await, "cross_heir use");
    // A new role of the same name begins with nothing.
    role(&play, "cross_going").await;
    play.show("select once.grant_role('cross_going', 'observe')")
        .await;
    assert!(!may_claim(&play, "cross_going").await);
    play.show(
        "select once.revoke_role('cross_going', 'observe'), once.revoke_role('cross_heir', 'use')",
    )
    .await;
    play.show("drop role cross_going, cross_heir").await;
}

#[tokio::test]
async fn a_kind_that_is_revoked_takes_nothing_that_somebody_gave_by_hand() {
    let play = Playground::open().await;
    role(&play, "cross_by_hand").await;
    play.show("grant execute on function once.key_get(text, text) to cross_by_hand")
        .await;
    for change in ["grant_role", "revoke_role"] {
        play.show(&format!("select once.{change}('cross_by_hand', 'use')"))
            .await;
        let kept =
            "select has_function_privilege('cross_by_hand', 'once.key_get(text, text)', 'execute')";
        assert_eq!(play.show(kept).await, "t", "{change}");
    }
    play.show("drop owned by cross_by_hand; drop role cross_by_hand")
        .await;
}

/// Whatever of schema once PUBLIC has a right on. (Types of tables open no table.)
const OPEN: &str = "
select string_agg(what, ', ') from (
    select 'schema' from pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
     where n.nspname = 'once' and a.grantee = 0
    union all
    select p.oid::regprocedure::text from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
     where p.pronamespace = 'once'::regnamespace and a.grantee = 0
    union all
    select c.oid::regclass::text
      from pg_class c, aclexplode(coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::\"char\", c.relowner))) a
     where c.relnamespace = 'once'::regnamespace and a.grantee = 0
    union all
    select a.attrelid::regclass || '.' || a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid, aclexplode(a.attacl) x
     where c.relnamespace = 'once'::regnamespace and x.grantee = 0
    union all
    select t.typname from pg_type t left join pg_class c on c.oid = t.typrelid, aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) a
     where t.typnamespace = 'once'::regnamespace and t.typelem = 0 and coalesce(c.relkind, 'c') = 'c' and a.grantee = 0
) as open(what)";

#[tokio::test]
async fn public_has_nothing_on_anything() {
    let play = Playground::open().await;
    assert_eq!(play.show(OPEN).await, "once.shard_of(text,integer)");
    play.show("grant select (token) on once.key to public; grant execute on procedure once.sweep_all to public")
        .await;
    let open = play.show(OPEN).await;
    assert!(
        open.contains("once.key.token") && open.contains("once.sweep_all(integer)"),
        "{open}"
    );
}

#[tokio::test]
async fn no_function_runs_as_its_owner_without_a_pinned_search_path() {
    const LOOSE: &str = "
        select string_agg(oid::regprocedure::text, ', ') from pg_proc
         where pronamespace = 'once'::regnamespace and prosecdef
           and not coalesce('search_path=pg_catalog, pg_temp' = any(proconfig), false)";
    let play = Playground::open().await;
    assert_eq!(play.show(LOOSE).await, "~");
    play.show("alter function once.key_get(text, text) security definer")
        .await;
    assert_ne!(play.show(LOOSE).await, "~", "one is seen");
    play.show("alter function once.key_get(text, text) set search_path = pg_catalog, pg_temp")
        .await;
    assert_eq!(play.show(LOOSE).await, "~", "a pinned one is not");
}

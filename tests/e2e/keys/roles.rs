//! Who may call what: PUBLIC nothing, a kind of grant exactly its functions.
//!
//! Roles belong to the whole cluster, so each test's roles have names of their own.

use crate::playground::Playground;

const USE: &str = "action_claim action_extend action_finish action_release cancel_confirm cancel_finish \
                   cancel_items cancel_pending cancel_refund cancel_request inbox_accept inbox_barrier \
                   inbox_record key_abort key_advance key_claim key_complete key_derive \
                   key_extend key_park key_release key_rotate key_step key_step_done key_take_abandoned \
                   machine_assert machine_get machine_guard outbox_ack outbox_deliveries outbox_emit \
                   outbox_extend outbox_nack outbox_take scope_get subscriber_get topic_get transition \
                   transition_many";
const OPERATE: &str = "action_adopt action_claim action_expire action_extend action_finish \
                       action_get action_list action_release cancel_audit cancel_confirm cancel_finish cancel_items \
                       cancel_pending cancel_refund cancel_request doctor inbox_accept inbox_barrier \
                       inbox_record janitor_status key_abort key_advance key_claim key_complete \
                       key_derive key_expire key_extend key_forget key_get key_list key_park \
                       key_release key_resolve key_rotate key_step key_step_done key_take_abandoned \
                       machine_assert machine_check machine_define machine_diagram machine_drop machine_get \
                       machine_guard machine_history machine_list metrics outbox_ack outbox_dead outbox_deliveries outbox_discard outbox_emit \
                       outbox_extend outbox_nack outbox_peek outbox_redrive outbox_take role_list scope_get scope_list scope_set shard_get shard_set \
                       subscriber_drop subscriber_get subscriber_set sweep sweep_all topic_drop \
                       topic_get topic_list topic_set transition transition_many verify";
const OBSERVE: &str = "action_get action_list cancel_audit doctor janitor_status machine_check \
                       machine_diagram machine_history machine_list metrics role_list scope_list shard_get topic_list verify";

/// The functions that a role may call (apart from shard_of, which is open to everybody), and whether it may do anything else in the schema.
async fn rights(play: &Playground, role: &str) -> (String, String) {
    let functions = play
        .show(&format!(
            "select coalesce(string_agg(name || case when every then '' else ' (not each form)' end, ' '
                                        order by name::text collate \"C\"), '')
               from (select proname, bool_and(may), bool_or(may)
                       from (select proname, has_function_privilege('{role}', oid, 'execute') from pg_proc
                              where pronamespace = 'once'::regnamespace and proname <> 'shard_of') form (proname, may)
                      group by proname) f (name, every, any_form) where any_form"
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
    play.show("create role kind_use; create role kind_operate; create role kind_observe login")
        .await;
    for (kind, functions) in [("use", USE), ("operate", OPERATE), ("observe", OBSERVE)] {
        let role = format!("kind_{kind}");
        play.show(&format!("select once.grant_role('{role}', '{kind}')"))
            .await;
        assert_eq!(
            rights(&play, &role).await,
            pair(functions, "usage"),
            "{kind}"
        );
    }
    let observer = play.another_as("kind_observe").await;
    observer
        .ask("select string_agg(role || ' ' || kind, ', ') from once.role_list()")
        .is("kind_observe observe, kind_operate operate, kind_use use")
        .await;
    let nobody = "select count(*) from pg_proc where pronamespace = 'once'::regnamespace and proname ~ '_role'
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
    // use and observe are left.
    let mut left: Vec<_> = USE
        .split_whitespace()
        .chain(OBSERVE.split_whitespace())
        .collect();
    left.sort_unstable();
    assert_eq!(rights(&play, "rev").await, pair(&left.join(" "), "usage"));
    play.show("select once.grant_role('rev', 'operate'); select once.revoke_role('rev', 'use')")
        .await;
    assert_eq!(rights(&play, "rev").await, pair(OPERATE, "usage"));
    play.show("select once.revoke_role('rev', 'operate')").await;
    assert_eq!(
        rights(&play, "rev").await,
        pair(OBSERVE, "usage"),
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
    climber
        .ask("insert into once.role_grant values (1, 'climber', 1, 'observe')")
        .fails("42501")
        .await;
    assert_eq!(climber.code("update once.key set token = 1").await, "42501");
    assert_eq!(
        climber.code("create table once.mine (id int)").await,
        "42501"
    );
}

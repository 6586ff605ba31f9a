//! Objects of the same name, found first: operators, functions, casts, types, temporary tables and settings that
//! somebody else's session or the extension's own statements might pick up.

use crate::services::{SECRET, Services, attempt};

/// A twin in schema evil of every operator, many functions and types, each of which raises EVIL0.
const EVIL: &str = include_str!("../keys/evil.sql");

/// Calls of Anna's own that do a bit of everything.
const WORK: [&str; 12] = [
    "once.key_get('anna', 'done')",
    "once.key_extend('anna', 'live', $KEY)",
    "once.key_claim('anna', 'done', '{\"r\": 1}')",
    "once.key_take_abandoned('anna', holder => 'anna-2')",
    "once.action_extend('anna.job', '1', $ACTION)",
    "once.transition('anna.job', '4', 'done')",
    "once.cancel_refund('anna.job', '3')",
    "once.outbox_extend('anna', 'default', $BATCH)",
    "once.outbox_emit('anna', '1', 'k')",
    "once.outbox_dead('anna', 'default')",
    "once.inbox_accept('anna', 'message')",
    "once.sweep(10)",
];

#[tokio::test]
async fn a_hostile_search_path_refuses_nobody_and_opens_nothing() {
    let services = Services::open().await;
    services.play.show(EVIL).await;
    let path = "set search_path = evil, bert, pg_catalog";
    services.anna.show(path).await;
    assert_eq!(
        services.anna.code("select 1 = 1").await,
        "EVIL0",
        "the trap works"
    );
    for call in WORK {
        let told = attempt(
            &services.anna,
            &services.fill(&format!("select * from {call}")),
        )
        .await;
        assert!(told.is_ok(), "{call}: {told:?}");
    }
    services.anna.show("reset search_path").await;
    for call in [
        "once.key_get('anna', 'done')",
        "once.outbox_take('anna')",
        "once.action_finish('anna.job', '1', $ACTION)",
        "once.outbox_emit('anna', '1')",
        "once.cancel_refund('anna.job', '3')",
    ] {
        services
            .closed(&format!("{path}; select * from {call}"))
            .await;
    }
}

#[tokio::test]
async fn casts_and_types_of_ones_own_take_along_no_rights_of_others() {
    let services = Services::open().await;
    services.bert.show("set role cross_bert").await;
    services
        .bert
        .show(
            "create type bert.name as (name text);
             create function bert.as_text(bert.name) returns text language plpgsql as $$
             begin
                 return (select response_body::text from once.key_get('anna', 'done'));
             end $$;
             create cast (bert.name as text) with function bert.as_text(bert.name) as implicit",
        )
        .await;
    services.bert.show("reset role").await;
    services
        .closed("select * from once.key_claim('bert', row('x')::bert.name)")
        .await;
    services
        .refused(
            "select * from once.outbox_emit('bert', to_json(bert.as_text(row('x')::bert.name)))",
            "42501",
        )
        .await;
}

#[tokio::test]
async fn temporary_objects_shadow_nothing() {
    let mut services = Services::open().await;
    let own = services
        .play
        .another_directly("cross_bert_app", "temporary objects are a session's");
    services.bert = own.await;
    services
        .bert
        .show(
            "create temp table key (id int); create temp table scope (scope text, owner oid); create temp table topic (topic text);
             create temp table event_0 (x int); create temp table machine (machine text); create temp table role_grant (role oid);
             create temp table pg_roles (rolname name, oid oid); create temp table pg_auth_members (roleid oid, member oid);
             insert into pg_roles values ('cross_anna', 'cross_bert'::regrole)",
        )
        .await;
    for path in [
        "set search_path = pg_temp, pg_catalog",
        "set search_path = pg_temp, bert, pg_catalog",
    ] {
        for call in [
            "once.key_get('anna', 'done')",
            "once.scope_set('anna', '{\"owner\": \"cross_anna\"}')",
            "once.outbox_take('anna')",
            "once.transition('anna.job', '2', 'done')",
            "once.inbox_accept('anna', 'message')",
        ] {
            services
                .closed(&format!("{path}; select * from {call}"))
                .await;
        }
        services.bert.show(path).await;
        services
            .learns_nothing("select * from once.key_claim('bert', gen_random_uuid()::text)")
            .await;
        services.bert.show("reset search_path").await;
    }
}

#[tokio::test]
async fn settings_open_nothing() {
    let services = Services::open().await;
    // The library is loaded, and its settings are known.
    services.bert.show("select once.scope_get('bert')").await;
    for setting in [
        "once.fake_now = '2100-01-01'",
        "session_replication_role = 'replica'",
        "session_preload_libraries = 'x'",
        "allow_system_table_mods = on",
        "dynamic_library_path = '/tmp'",
        "log_statement = 'all'",
        "track_functions = 'all'",
        "zero_damaged_pages = on",
    ] {
        services.closed(&format!("set {setting}")).await;
        services
            .closed(&format!("alter role cross_anna set {setting}"))
            .await;
    }
    // What a session may set for itself does not help.
    for setting in [
        "row_security = off",
        "default_transaction_isolation = 'serializable'",
        "transform_null_equals = on",
        "plan_cache_mode = 'force_custom_plan'",
        "check_function_bodies = off",
        "client_min_messages = 'debug5'",
        "debug_print_plan = on",
        "default_transaction_read_only = on",
        "application_name = 'cross_anna_app'",
        "once.key_lease = '1 d'",
    ] {
        services.bert.show(&format!("set {setting}")).await;
        services
            .closed("select * from once.key_claim('anna', 'done', '{\"r\": 1}')")
            .await;
        services.bert.show("reset all").await;
    }
}

#[tokio::test]
async fn an_error_of_the_others_is_told_by_no_sweep_and_no_number() {
    let services = Services::open().await;
    // Her table refuses the sweep's revert with a word that is nobody's business.
    services.anna.show("set role cross_anna").await;
    services
        .anna
        .show(&format!(
            "create function anna.refuse() returns trigger language plpgsql as $$
             begin raise exception 'no room for {SECRET}'; end $$;
             select once.action_claim('anna.job', '5', 'run', lease => '1 microsecond');
             create trigger refuse before update on anna.job for each row when (old.id = 5) execute function anna.refuse()"
        ))
        .await;
    services.anna.show("reset role").await;
    let failed = services
        .play
        .show("select done, failed from once.sweep(10, 'action_release', 'anna.job')")
        .await;
    assert_eq!(failed, "0|1");
    for call in [
        "once.sweep(10)",
        "once.sweep(10, 'action_release', 'anna.job')",
        "once.metrics()",
    ] {
        services
            .learns_nothing(&format!("select * from {call}"))
            .await;
    }
}

//! Calling the extension's functions with the other's names, tokens, holders and ids, all of them right: what
//! Anna may do with them, Bert may not.

use std::collections::BTreeSet;

use crate::playground::Playground;
use crate::services::{Services, attempt};

/// Reading and replaying.
const READ: [&str; 17] = [
    "once.key_claim('anna', 'done', '{\"r\": 1}')",
    "once.key_claim('anna', 'done', fingerprint => sha256('guess'))",
    "once.key_get('anna', 'done')",
    "once.key_list('anna')",
    "once.key_take_abandoned('anna')",
    "once.key_derive('anna', 'live', 'pay')",
    "once.scope_get('anna')",
    "once.inbox_accept('anna', 'message')",
    "once.outbox_take('anna')",
    "once.outbox_dead('anna', 'default')",
    "once.outbox_peek('anna')",
    "once.outbox_deliveries('anna', 'default', $DEAD)",
    "once.topic_get('anna')",
    "once.subscriber_get('anna', 'default')",
    "once.machine_get('anna.job')",
    "once.cancel_items('anna.job', '3')",
    "once.cancel_pending('anna.job')",
];

/// Going on with the other's work; the tokens are Anna's own.
const ACT: [&str; 27] = [
    // A guessed holder gets a token where it is one's own.
    "once.key_claim('anna', 'live', '{\"r\": \"x\"}', holder => 'anna-1')",
    "once.key_advance('anna', 'live', $KEY, 'stolen')",
    "once.key_extend('anna', 'live', $KEY)",
    "once.key_step('anna', 'live', $KEY, 'again')",
    "once.key_step_done('anna', 'live', $KEY, 'pay', '0')",
    "once.key_rotate('anna', 'live', $KEY, 'again', 1)",
    "once.key_release('anna', 'live', $KEY)",
    "once.key_park('anna', 'live', $KEY, 'stolen')",
    "once.key_complete('anna', 'live', $KEY, 200)",
    "once.key_abort('anna', 'live', $KEY, 500)",
    "once.action_claim('anna.job', '2', 'run')",
    "once.action_claim('anna.job', '1', 'run', holder => 'anna-1')",
    "once.action_extend('anna.job', '1', $ACTION)",
    "once.action_finish('anna.job', '1', $ACTION)",
    "once.action_release('anna.job', '1', $ACTION)",
    "once.transition('anna.job', '2', 'done')",
    "once.cancel_request('anna.job', '2')",
    "once.cancel_refund('anna.job', '3')",
    "once.cancel_confirm('anna.job', '3', 1)",
    "once.outbox_extend('anna', 'default', $BATCH)",
    "once.outbox_nack('anna', 'default', $BATCH)",
    "once.outbox_ack('anna', 'default', $BATCH, array[$EVENT])",
    "once.outbox_emit('anna', '\"forged\"')",
    "once.outbox_emit('anna', '1', dedupe_key => 'guess')",
    "once.inbox_record('anna', 'message', '0')",
    "once.inbox_accept('anna', 'new')",
    "once.inbox_barrier('anna', 'saga', 'pay', 'compensation')",
];

/// What those who run a service do: options, verdicts, definitions.
const RUN: [&str; 18] = [
    "once.scope_set('anna', '{\"owner\": null}')",
    "once.scope_set('anna', '{\"owner\": \"cross_bert\"}')",
    "once.key_resolve('anna', 'parked', 1, 'retry')",
    "once.key_expire('anna', 'held')",
    "once.key_forget('anna', 'done')",
    "once.topic_set('anna', '{\"owner\": null}')",
    "once.subscriber_set('anna', 'spy')",
    "once.topic_drop('anna')",
    "once.subscriber_drop('anna', 'default')",
    "once.outbox_redrive('anna', 'default')",
    "once.outbox_discard('anna', 'default', array[$DEAD])",
    "once.action_expire('anna.job', '2')",
    "once.action_adopt('anna.job')",
    "once.machine_drop('anna.job')",
    "once.machine_guard('anna.job', false)",
    "once.sweep(10, 'action_release', 'anna.job')",
    "once.cancel_finish('anna.job', '3')",
    "once.transition_many('anna.job', array['2', '4'], 'done')",
];

/// Those who observe look past owners, and are shown no payload and no other column.
const OBSERVE: [&str; 6] = [
    "once.action_get('anna.job', '1')",
    "once.action_list('anna.job')",
    "once.cancel_audit('anna.job')",
    "once.machine_check('anna.job')",
    "once.machine_diagram('anna.job')",
    "once.machine_history('anna.job', '1')",
];

/// What no kind opens.
const NOBODYS: [&str; 4] = [
    "once.grant_role('cross_bert', 'operate')",
    "once.revoke_role('cross_anna', 'use')",
    "once.machine_guard_row()",
    "once.machine_guard_item()",
];

/// What takes the name of a scope, a topic or a machine takes the other's, too.
const NAMING: &str = "
select distinct p.proname from pg_proc as p, unnest(p.proargnames, p.proargmodes) as argument(name, mode)
 where p.pronamespace = 'once'::regnamespace and name in ('scope', 'topic', 'machine')
   and coalesce(mode, 'i') in ('i', 'b', 'v')";

#[tokio::test]
async fn every_function_that_names_a_scope_a_topic_or_a_machine_is_tried() {
    let play = Playground::open().await;
    let tried: BTreeSet<&str> = [&READ[..], &ACT, &RUN, &OBSERVE]
        .concat()
        .into_iter()
        .filter_map(|call| call.strip_prefix("once.")?.split('(').next())
        .collect();
    let told = play.show(NAMING).await;
    let naming: BTreeSet<&str> = told.lines().collect();
    let differ: Vec<_> = naming.symmetric_difference(&tried).collect();
    assert!(differ.is_empty(), "say above what these are: {differ:?}");
}

async fn refused_to_bert(services: &Services, calls: &[&str]) {
    for call in calls {
        // A sweep pushes everything forward for everybody, and tells numbers only.
        if call.starts_with("once.sweep") {
            services
                .learns_nothing(&format!("select * from {call}"))
                .await;
            continue;
        }
        services.closed(&format!("select * from {call}")).await;
    }
}

/// The calls do something where the caller may: Anna is not refused for who she is.
async fn open_to_anna(services: &Services, calls: &[&str]) {
    for call in calls {
        // She is not in his role either.
        if call.contains("cross_bert") {
            continue;
        }
        services.anna.show("begin").await;
        let told = attempt(
            &services.anna,
            &services.fill(&format!("select * from {call}")),
        )
        .await;
        services.anna.show("rollback").await;
        if let Err((code, words)) = told {
            assert_ne!(code, "42501", "{call}: {words}");
        }
    }
}

#[tokio::test]
async fn no_response_payload_state_or_option_of_the_others_is_read() {
    let services = Services::open().await;
    refused_to_bert(&services, &READ).await;
    open_to_anna(&services, &READ).await;
}

#[tokio::test]
async fn nothing_of_the_others_is_taken_moved_finished_or_emitted() {
    let services = Services::open().await;
    refused_to_bert(&services, &ACT).await;
    open_to_anna(&services, &ACT).await;
}

#[tokio::test]
async fn nobody_but_the_owner_runs_the_service() {
    let services = Services::open().await;
    refused_to_bert(&services, &RUN).await;
    open_to_anna(&services, &RUN).await;
    for call in NOBODYS {
        services.closed(&format!("select {call}")).await;
    }
}

#[tokio::test]
async fn the_same_names_in_ones_own_namespace_are_somebody_elses() {
    let services = Services::open().await;
    let bert = &services.bert;
    let claim = "select outcome from once.key_claim('bert', 'done', '{\"r\": 1}')";
    assert_eq!(bert.show(claim).await, "claimed");
    let accept = "select accepted from once.inbox_accept('bert', 'message')";
    assert_eq!(bert.show(accept).await, "t");
    bert.show("select once.topic_set('bert', '{}')").await;
    services
        .learns_nothing("select * from once.outbox_take('bert')")
        .await;
    // An event of Anna's is not to be had under a topic of one's own, whatever the token says.
    for call in [
        "outbox_ack('bert', 'default', $BATCH)",
        "outbox_nack('bert', 'default', $BATCH)",
        "outbox_extend('bert', 'default', $BATCH)",
        "key_complete('bert', 'done', $KEY, 200)",
    ] {
        services
            .refused(&format!("select once.{call}"), "ON001")
            .await;
    }
    services
        .learns_nothing("select * from once.outbox_deliveries('bert', 'default', $DEAD)")
        .await;
}

const DEFINITION: &str = r#"'{"machine": "NAME", "table": "TABLE", "id": "id", "status": "status",
    "status_types": ["ready", "running", "done", "cancelled"], "terminal": ["done"],
    "transitions": [{"from": ["ready"], "to": "done"}]}'"#;

fn definition(name: &str, table: &str) -> String {
    DEFINITION.replace("NAME", name).replace("TABLE", table)
}

#[tokio::test]
async fn no_machine_is_put_over_the_others_table_nor_in_place_of_its_own() {
    let services = Services::open().await;
    let own = "create table bert.job (id bigint primary key, status text not null default 'ready')";
    services.bert.show("set role cross_bert").await;
    services.bert.show(own).await;
    services.bert.show("reset role").await;
    for (name, table) in [
        ("bert.job", "anna.job"),
        ("anna.job", "bert.job"),
        ("anna.job", "anna.job"),
    ] {
        let define = format!("select once.machine_define({})", definition(name, table));
        services.closed(&define).await;
    }
    let define = format!(
        "select once.machine_define({})",
        definition("bert.job", "bert.job")
    );
    services.learns_nothing(&define).await;
}

#[tokio::test]
async fn a_machine_without_an_owner_is_as_closed_as_its_table() {
    let services = Services::open().await;
    let anna: &Playground = &services.anna;
    anna.show("set role cross_anna").await;
    anna.show("create table anna.open (id bigint primary key, status text not null); insert into anna.open values (1, 'ready')")
        .await;
    anna.show(&format!(
        "select once.machine_define({})",
        definition("open", "anna.open")
    ))
    .await;
    anna.show("reset role").await;
    services
        .closed("select once.transition('open', '1', 'done')")
        .await;
    let redefine = format!(
        "select once.machine_define({})",
        definition("open", "anna.open")
    );
    services.closed(&redefine).await;
    services.closed("select once.machine_drop('open')").await;
}

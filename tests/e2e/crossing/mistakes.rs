//! What a newcomer gets wrong in the first hour. Each message names the argument or the member, and tells the way out.

use crate::playground::{Playground, cluster};

const TABLE: &str =
    "create table orders (id int primary key, status text not null, n int not null default 0)";

const DEFINITION: &str = r#"{"machine": "order", "table": "orders", "id": "id", "status": "status",
    "status_types": ["open", "closing", "closed"], "terminal": ["closed"],
    "transitions": [{"from": ["open"], "to": "closed", "when": "n > 0"}],
    "steps": [{"step_key": "close", "status": "open", "claim_state": {"*": ["closing", "open"]},
               "successful_state": {"*": "closed"}}]}"#;

/// The call, the code, what the message or the detail names, and what the hint says.
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    (
        "select once.scope_set('pay', '{\"leese\": \"5 s\"}')",
        "22023",
        "option \"leese\"",
        "Options: lease, ttl",
    ),
    (
        "select once.scope_set('pay', '{\"lease\": 5}')",
        "22023",
        "option \"lease\" must be an interval",
        "Options:",
    ),
    (
        "select once.scope_set('pay', '{\"owner\": \"billling\"}')",
        "22023",
        "does not exist: \"billling\"",
        "CREATE ROLE first",
    ),
    (
        "select once.scope_set('pay', '[]')",
        "22023",
        "\"options\" must be a JSON object",
        "Options:",
    ),
    (
        "select once.key_claim('pay', '')",
        "22023",
        "\"key\" must not be empty",
        "1 to 255 characters",
    ),
    (
        "select once.key_claim('pay', null)",
        "22023",
        "\"key\" must not be null",
        "1 to 255 characters",
    ),
    (
        "select once.key_claim('pay', repeat('k', 256))",
        "22023",
        "\"key\" is longer",
        "hash",
    ),
    (
        "select once.key_claim('pay', 'k', lease => '-1 s')",
        "22023",
        "\"lease\" must be positive",
        "interval such as",
    ),
    (
        "select once.key_complete('pay', 'never', 1, 200)",
        "ON001",
        "never claimed",
        "Claim the key again",
    ),
    (
        "select once.outbox_emit('mial', '{}')",
        "42704",
        "topic \"mial\"",
        "once.topic_set",
    ),
    (
        "select once.outbox_emit('mail', null)",
        "22023",
        "\"payload\" must not be null",
        "'null'::json",
    ),
    (
        "select once.outbox_emit('mail', '{}', order_key => 'a', delay => '1 s')",
        "22023",
        "\"delay\"",
        "without order_key",
    ),
    (
        "select once.outbox_take('mail', 'mailer')",
        "42704",
        "no subscriber \"mailer\"",
        "once.subscriber_set",
    ),
    (
        "select once.outbox_take('mail', max => 0)",
        "22023",
        "\"max\" must be between 1 and",
        "Call again for more",
    ),
    (
        "select once.topic_set('mail', '{\"subscriber\": [\"a\"]}')",
        "22023",
        "option \"subscriber\"",
        "subscribers",
    ),
    (
        "select once.machine_define('{\"machine\": \"m\", \"transitons\": []}')",
        "ON003",
        "unknown member \"transitons\"; known: machine, table",
        "Each line of the detail",
    ),
    (
        "select once.machine_define('{\"machine\": \"m\", \"table\": \"order\", \"id\": \"id\", \"status\": \"status\", \"status_types\": [\"a\"]}')",
        "ON003",
        "table: there is no table \"order\"",
        "Nothing was changed",
    ),
    (
        "select once.transition('ordre', '1', 'closed')",
        "42704",
        "machine \"ordre\"",
        "once.machine_define",
    ),
    (
        "select once.transition('order', '1', 'close')",
        "ON002",
        "no move to \"close\"",
        "moves are declared to \"closed\"",
    ),
    (
        "select once.transition('order', '1', 'closing')",
        "ON002",
        "no move to \"closing\"",
        "Only action_claim enters a claim state",
    ),
    (
        "select once.transition('order', 'one', 'closed')",
        "22023",
        "\"id\" is not an integer: \"one\"",
        "id of a row",
    ),
    (
        "select once.transition('order', '1', 'closed', patch => '{\"m\": 1}')",
        "22023",
        "\"patch\" names \"m\"",
        "columns of the row",
    ),
    (
        "select once.transition('order', '1', 'closed', version => 1)",
        "22023",
        "declares no version column",
        "add the member \"version\"",
    ),
    (
        "select once.action_claim('order', '1', 'closes')",
        "22023",
        "\"closes\" is no step",
        "Steps: close",
    ),
    (
        "select once.action_finish('order', '1', 1)",
        "ON001",
        "never claimed",
        "delete what it made outside",
    ),
    (
        "select once.cancel_request('order', '1')",
        "22023",
        "declares no \"cancel\"",
        "Add the member \"cancel\"",
    ),
    (
        "select once.sweep(10, 'key_rap')",
        "22023",
        "\"key_rap\" is no task",
        "The tasks are action_release",
    ),
    (
        "begin; call once.sweep_all()",
        "2D000",
        "cannot run inside a transaction",
        "outside BEGIN",
    ),
    (
        "select once.grant_role('postgres', 'read')",
        "22023",
        "\"kind\"",
        "Kinds: use, operate, observe",
    ),
];

#[tokio::test]
async fn a_newcomers_mistakes_are_told_with_the_way_out() {
    let play = Playground::directly("CALL once.sweep_all").await;
    play.show(TABLE).await;
    play.show(&format!(
        "select once.machine_define($d${DEFINITION}$d$), once.topic_set('mail');
         insert into orders values (1, 'open')"
    ))
    .await;
    for (sql, code, names, way_out) in MISTAKES {
        let refusal = play.refused(sql).await;
        let told = format!("{}\n{}", refusal.message, refusal.detail);
        assert_eq!(refusal.code, *code, "{sql}: {told}");
        assert!(told.contains(names), "{sql}: {told}");
        assert!(refusal.hint.contains(way_out), "{sql}: {}", refusal.hint);
        play.show("rollback").await;
    }
    // A missing commit: the step begins and ends in one transaction. No error, since the call has been made.
    let token = play.token("k", "").await;
    let step = format!("('s', 'k', {token}, 'pay uncommitted')");
    play.show(&format!(
        "begin; select once.key_step{step}; select once.key_step_done{step}; commit"
    ))
    .await;
    let log = std::fs::read_to_string(cluster().directory().join("server.log")).unwrap();
    let (_, warned) = log
        .split_once("WARNING:  step \"pay uncommitted\"")
        .unwrap();
    let hint = "HINT:  Commit after key_step, before the foreign call.";
    assert!(warned.lines().nth(1).unwrap().ends_with(hint), "{warned}");
    // A move whose condition is false: the definition tells it.
    play.ask("select reason from once.transition('order', '1', 'closed')")
        .is("guard")
        .await;
    play.ask("select once.machine_get('order') #>> '{transitions,0,when}'")
        .is("(n OPERATOR(pg_catalog.>) 0)")
        .await;
}

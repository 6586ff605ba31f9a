//! Rights: nothing without a grant, nothing but the functions with one. (Topics with an owner: outbox_options.)

use crate::playground::Playground;

const CALLS: [&str; 5] = [
    "outbox_emit('t', '1')",
    "outbox_take('t')",
    "outbox_ack('t', 'default', 1)",
    "outbox_nack('t', 'default', 1)",
    "outbox_extend('t', 'default', 1)",
];

#[tokio::test]
async fn without_a_grant_nothing_and_with_use_the_functions_and_no_table() {
    let play = Playground::open().await;
    play.show(
        "create role outbox_nobody login; create role outbox_worker login;
         create role outbox_watcher login;
         select once.grant_role('outbox_worker', 'use'), once.grant_role('outbox_watcher', 'observe');
         select once.topic_set('t', '{}')",
    )
    .await;
    for role in ["outbox_nobody", "outbox_watcher"] {
        let session = play.another_as(role).await;
        for call in CALLS {
            let sql = format!("select * from once.{call}");
            assert_eq!(session.code(&sql).await, "42501", "{role}: {sql}");
        }
    }
    let worker = play.another_as("outbox_worker").await;
    worker
        .show(
            "select once.outbox_emit('t', '1', 'key', 'dedupe', '{}'), once.outbox_emit('t', '2')",
        )
        .await;
    let rows = worker.show("select token from once.outbox_take('t')").await;
    assert_eq!(rows.lines().count(), 2);
    let token = rows.lines().next().unwrap();
    for call in ["extend", "ack", "ack"] {
        worker
            .show(&format!(
                "select once.outbox_{call}('t', 'default', {token})"
            ))
            .await;
    }
    let tables = play
        .show("select relname from pg_class where relnamespace = 'once'::regnamespace and relkind in ('r', 'S')")
        .await;
    for table in tables.lines() {
        let sql = format!("select * from once.{table}");
        assert_eq!(worker.code(&sql).await, "42501", "{sql}");
    }
}

//! What is refused, with which code, and that it changes nothing.

use crate::stage::Stage;
use pg_once_tests::script;

/// SQLSTATE, the word that the message has, statement.
const BAD_ARGUMENTS: &str = "
22023 kind select * from once.outbox_nack('t', 'default', TOKEN, kind => 'expired')
22023 kind select * from once.outbox_nack('t', 'default', TOKEN, kind => '')
22023 kind select * from once.outbox_nack('t', 'default', TOKEN, kind => null)
22023 kind select * from once.outbox_nack('t', 'default', TOKEN, kind => repeat('x', 101))
22023 retry_after select * from once.outbox_nack('t', 'default', TOKEN, retry_after => '0')
22023 retry_after select * from once.outbox_nack('t', 'default', TOKEN, retry_after => '-1 s')
22023 retry_after select * from once.outbox_nack('t', 'default', TOKEN, retry_after => '1020 years')
22023 event_ids select * from once.outbox_nack('t', 'default', TOKEN, array[1, null]::bigint[])
22023 token select * from once.outbox_nack('t', 'default', null)
42704 topic select * from once.outbox_nack('u', 'default', 1)
42704 subscriber select * from once.outbox_nack('t', 'other', 1)
22023 subscriber select * from once.outbox_nack('t', '', 1)
42704 topic select * from once.outbox_dead('u', 'default')
42704 subscriber select * from once.outbox_dead('t', 'other')
22023 max select * from once.outbox_dead('t', 'default', 0)
22023 max select * from once.outbox_dead('t', 'default', 10001)
42704 topic select once.outbox_redrive('u', 'default')
42704 subscriber select once.outbox_redrive('t', 'other')
22023 max select once.outbox_redrive('t', 'default', 0)
22023 event_ids select once.outbox_redrive('t', 'default', 1, array[null]::bigint[])
42704 subscriber select * from once.outbox_deliveries('t', 'other', 1)
22023 event_id select * from once.outbox_deliveries('t', 'default', null)
22023 max select once.sweep(0, 'outbox_requeue')
";

#[tokio::test]
async fn bad_arguments_are_told_by_name() {
    let stage = Stage::open("{}").await;
    stage.emit("a").await;
    let token = stage.take(1).await.token;
    for line in script::lines(BAD_ARGUMENTS) {
        let mut words = line.splitn(3, ' ');
        let mut next = || words.next().unwrap();
        let (code, word) = (next(), next());
        let sql = next().replace("TOKEN", &token.to_string());
        let refusal = stage.play.refused(&sql).await;
        refusal.tells(code, &[word], &sql);
    }
    assert_eq!(stage.ack(token, "").await, "1");
}

#[tokio::test]
async fn one_event_that_is_not_held_refuses_the_whole_nack() {
    let stage = Stage::open("{}").await;
    stage.emit("a b c d").await;
    let token = stage.take(3).await.token;
    stage.ack(token, "b").await;
    let before = stage.stored().await;
    for (names, code) in [("a b", "ON006"), ("a d", "ON001"), ("c a d b", "ON006")] {
        let refusal = stage.play.refused(&stage.nack_sql(token, names, "")).await;
        refusal.tells(code, &["default"], names);
    }
    let missing = format!(
        "select * from once.outbox_nack('t', 'default', {})",
        token + 1
    );
    assert_eq!(stage.play.code(&missing).await, "ON001");
    assert_eq!(stage.stored().await, before);
    let none = format!("select * from once.outbox_nack('t', 'default', {token}, '{{}}')");
    assert_eq!(stage.play.show(&none).await, "");
    assert_eq!(stage.stored().await, before);
}

#[tokio::test]
async fn workers_fail_operators_redrive_and_a_topic_with_an_owner_is_closed() {
    let stage = Stage::open("{}").await;
    stage
        .play
        .show(
            "do $$ begin
                if not exists (select from pg_roles where rolname = 'retry_worker') then
                    create role retry_worker login;
                    create role retry_operator login;
                    create role retry_owner;
                end if;
             end $$;
             select once.grant_role('retry_worker', 'use'), once.grant_role('retry_operator', 'operate')",
        )
        .await;
    stage.emit("a b").await;
    let token = stage.take(2).await.token;
    let worker = stage.play.another_as("retry_worker").await;
    let operator = stage.play.another_as("retry_operator").await;
    let nack = format!(
        "select dead from once.outbox_nack('t', 'default', {token}, {}, kind => 'never')",
        stage.ids("a")
    );
    assert_eq!(worker.show(&nack).await, "t");
    let dead = "select count(*) from once.outbox_dead('t', 'default')";
    let redrive = "select once.outbox_redrive('t', 'default')";
    let sweep = "select done from once.sweep(task => 'outbox_requeue')";
    for sql in [dead, redrive, sweep] {
        assert_eq!(worker.code(sql).await, "42501", "{sql}");
    }
    assert_eq!(operator.show(dead).await, "1");
    assert_eq!(operator.show(redrive).await, "1");
    stage
        .play
        .show("select once.topic_set('t', '{\"owner\": \"retry_owner\"}')")
        .await;
    let deliveries = format!(
        "select count(*) from once.outbox_deliveries('t', 'default', {})",
        stage.id("a")
    );
    for sql in [dead, redrive, &deliveries, &nack] {
        assert_eq!(operator.code(sql).await, "42501", "{sql}");
    }
    // A sweep serves everybody.
    assert_eq!(operator.show(sweep).await, "0");
    stage.play.show("grant retry_owner to retry_operator").await;
    assert_eq!(operator.show(&deliveries).await, "1");
    stage
        .play
        .show("revoke retry_owner from retry_operator")
        .await;
}

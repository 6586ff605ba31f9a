//! verify finds damage, and nothing where there is none.

use crate::playground::Playground;

const FOUND: &str =
    "select string_agg(distinct invariant, ', ' order by invariant) from once.verify()";

#[tokio::test]
async fn each_invariant_that_is_broken_by_hand_is_found() {
    let play = Playground::open().await;
    play.expect_damage();
    play.show(
        r#"create table job (id int primary key, status text not null);
           insert into job values (1, 'ready');
           select once.machine_define('{"machine": "job", "table": "job", "id": "id", "status": "status",
               "status_types": ["ready", "running", "done"], "transitions": [],
               "steps": [{"step_key": "run", "status": "ready", "claim_state": ["running", "ready"], "successful_state": "done"}]}');
           select once.topic_set('t');
           select once.outbox_emit('t', '1', 'k'), once.outbox_emit('t', '2', 'k');
           select once.action_claim('job', 1, 'run')"#,
    )
    .await;
    let token = play.token("k", "").await;
    play.show(&format!(
        "select once.key_step('s', 'k', {token}, 'pay'); select count(*) from once.outbox_take('t')"
    ))
    .await;
    assert_eq!(play.show(FOUND).await, "~");
    for (damage, invariant) in [
        (
            "update once.key set finished_at = now()",
            "a finished key has its answer, and no other key has one",
        ),
        ("delete from once.key", "a step belongs to a key"),
        (
            "delete from once.machine",
            "a lease belongs to a machine and is held until it ends",
        ),
        (
            "update once.topic set subscribers = 7",
            "a topic counts its subscribers",
        ),
        (
            "delete from once.event_0",
            "an event in a batch or in once.retry is stored",
        ),
    ] {
        play.show(&format!("begin; {damage}")).await;
        assert_eq!(play.show(FOUND).await, invariant, "{damage}");
        play.show("rollback").await;
    }
    play.show(
        "select count(*) from once.outbox_nack('t', 'default', (select max(token) from once.batch), retry_after => '1 h')",
    )
    .await;
    assert_eq!(play.show(FOUND).await, "~");
    play.show("update once.retry set due_at = 'infinity'").await;
    play.ask(FOUND)
        .is("the first retried event of an order_key does not wait for another event")
        .await;
    assert_eq!(play.code("select once.verify(0)").await, "22023");
}

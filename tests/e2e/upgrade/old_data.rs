//! What 0.1.0 had stored goes on after the update: leases, tokens, parked keys, half-done teardowns, batches that
//! are out, delayed, deduped and dead events, options, owners and grants.

use crate::playground::Playground;
use crate::released::{old, update};
use crate::world::{self, JOB, TABLES};

async fn is(play: &Playground, sql: &str, expected: &str) {
    assert_eq!(play.show(sql).await, expected, "{sql}");
}

#[tokio::test]
async fn keys_go_on_where_they_were() {
    let play = old().await;
    play.show(r#"select once.scope_set('s', '{"keep_request": true, "max_attempts": 9, "gone_for": "3 days"}')"#)
        .await;
    let options = play.show("select once.scope_get('s')").await;
    let held = play.token("held", ", '{\"n\": 1}', holder => 'h'").await;
    play.show(&format!(
        "select once.key_step('s', 'held', {held}, 'pay'); select once.key_advance('s', 'held', {held}, 'paying', '{{\"at\":  1}}')"
    ))
    .await;
    let derived = "select once.key_derive('s', 'held', 'pay')";
    let derived_before = play.show(derived).await;
    let parked = play.token("parked", "").await;
    play.show(&format!(
        "select once.key_park('s', 'parked', {parked}, 'timed out')"
    ))
    .await;
    let released = play.token("released", "").await;
    play.show(&format!(
        "select once.key_release('s', 'released', {released}, 'no')"
    ))
    .await;
    play.token("expired", ", lease => '1 microsecond'").await;
    let done = play.token("done", ", '{\"n\": 2}'").await;
    play.show(&format!(
        "select once.key_complete('s', 'done', {done}, 201, '{{\"b\":   2}}')"
    ))
    .await;
    play.show(
        "select once.inbox_accept('s', 'm'); select once.inbox_record('s', 'm', '{\"v\":  1}')",
    )
    .await;
    play.show("select once.inbox_barrier('s', 'saga', 'pay', 'action')")
        .await;
    let get = "select k, g.status, g.attempt, g.holder, g.recovery_point, g.state, g.response_body, g.request, g.last_error, g.created_at
                 from unnest(array['done', 'expired', 'held', 'parked', 'released']) k, once.key_get('s', k) g order by k";
    let before = play.show(get).await;

    update(&play).await;
    let play = play.another().await;
    is(&play, get, &before).await;
    is(&play, derived, &derived_before).await;
    is(&play, "select once.scope_get('s')", &options).await;
    is(
        &play,
        "select outcome, token from once.key_claim('s', 'held', '{\"n\": 1}', holder => 'h')",
        &format!("resumed|{held}"),
    )
    .await;
    is(
        &play,
        "select outcome from once.key_claim('s', 'held', '{\"n\": 1}')",
        "in_progress",
    )
    .await;
    is(
        &play,
        "select outcome from once.key_claim('s', 'held', '{\"n\": 3}')",
        "mismatched",
    )
    .await;
    is(
        &play,
        &format!("select recorded from once.key_step_done('s', 'held', {held}, 'pay', '1')"),
        "t",
    )
    .await;
    play.show(&format!(
        "select once.key_complete('s', 'held', {held}, 200)"
    ))
    .await;
    is(
        &play,
        "select outcome, response_body from once.key_claim('s', 'done', '{\"n\": 2}')",
        "replayed|{\"b\":   2}",
    )
    .await;
    is(
        &play,
        "select outcome from once.key_claim('s', 'parked')",
        "parked",
    )
    .await;
    play.show("select once.key_resolve('s', 'parked', 1, 'retry')")
        .await;
    is(
        &play,
        "select outcome, attempt from once.key_claim('s', 'parked')",
        "resumed|2",
    )
    .await;
    is(
        &play,
        "select key, attempt from once.key_take_abandoned('s') order by key",
        "expired|2\nreleased|2",
    )
    .await;
    is(
        &play,
        "select accepted, verdict from once.inbox_accept('s', 'm')",
        "f|{\"v\":  1}",
    )
    .await;
    is(
        &play,
        "select once.inbox_barrier('s', 'saga', 'pay', 'action')",
        "duplicate",
    )
    .await;
    // What is over is swept.
    play.show("set once.fake_now = '2100-01-01'").await;
    is(&play, "select sum(failed) from once.sweep()", "0").await;
    is(
        &play,
        "select count(*) from once.key where status in ('c', 'g')",
        "0",
    )
    .await;
}

#[tokio::test]
async fn rows_under_an_action_and_teardowns_half_way_go_on() {
    let play = old().await;
    play.show(TABLES).await;
    world::define(&play, JOB).await;
    play.show("select once.machine_guard('job', true)").await;
    let definition = play.show("select once.machine_get('job')").await;
    world::jobs(&play, 1, 4, "ready").await;
    let live = world::token(&play, 1, "run", "").await;
    world::token(&play, 2, "run", ", lease => '1 microsecond'").await;
    play.show(
        "insert into item (id, job_id, state, points) select g, 3, 'succeeded', 10 from generate_series(1, 4) g;
         select once.cancel_request('job', '3'); select once.refund('job', '3')",
    )
    .await;
    // Of job 4 only two items are marked.
    play.show(
        "insert into item (id, job_id, state, points) select g, 4, 'succeeded', 10 from generate_series(5, 8) g;
         select once.cancel_request('job', '4'); select once.refund('job', '4', 2)",
    )
    .await;
    let pending = "select * from once.cancel_pending('job')";
    let before = play.show(pending).await;
    is(&play, "select points from wallet", "60").await;

    // As 0.1.0 put it on: sessions may be open that have its library.
    let guards =
        "select string_agg(tgname, ' ' order by tgname) from pg_trigger where tgname ~ 'pg_once'";
    is(&play, guards, "~pg_once_job ~pg_once_job").await;
    update(&play).await;
    let play = play.another().await;
    is(&play, guards, "~pg_once_job ~pg_once_job").await;
    is(&play, "select once.machine_get('job')", &definition).await;
    is(&play, pending, &before).await;
    let by_hand = play
        .code("update job set status = 'done' where id = 1")
        .await;
    assert_eq!(by_hand, "ON002", "the guard is on");
    play.show("select once.machine_guard('job', true)").await;
    is(&play, guards, "!pg_once_job ~pg_once_job").await;
    let by_hand = play
        .code("update job set status = 'done' where id = 1")
        .await;
    assert_eq!(by_hand, "ON002", "the guard is on");
    is(&play, &world::finish(1, live, ""), "finished|done|2").await;
    is(
        &play,
        "select done, failed from once.sweep_action_release()",
        "1|0",
    )
    .await;
    assert_eq!(world::job(&play, 2).await, "ready|2");
    is(
        &play,
        "select items, amount, items_total, pass from once.refund('job', '3')",
        "0|0|4|1",
    )
    .await;
    is(
        &play,
        "select items, amount, items_total, remaining, pass from once.refund('job', '4')",
        "2|20|4|f|2",
    )
    .await;
    is(&play, "select points from wallet", "80").await;
    assert_eq!(
        play.code("select once.cancel_finish('job', '4')").await,
        "ON005"
    );
    is(
        &play,
        "select once.cleanup_confirm('job', '4', 1), once.cleanup_confirm('job', '4', 2), once.cleanup_confirm('job', '3', 1)",
        "f|t|t",
    )
    .await;
    for id in [3, 4] {
        is(
            &play,
            &format!(
                "select status, items_total, amount_total from once.cancel_finish('job', '{id}')"
            ),
            "cancelled|4|40",
        )
        .await;
    }
    is(&play, "select count(*) from once.refund_audit('job')", "0").await;
    // A refund's answer of before is told again.
    is(
        &play,
        "select items, items_total, pass from once.refund('job', '3')",
        "0|4|1",
    )
    .await;
}

/// `event_id` of an event.
async fn emit(play: &Playground, payload: &str, more: &str) -> String {
    let sql = format!("select event_id from once.outbox_emit('t', '\"{payload}\"'{more})");
    play.show(&sql).await
}

async fn take(play: &Playground, subscriber: &str) -> Vec<(String, String, String)> {
    let sql = format!(
        "select token, event_id, payload #>> '{{}}' from once.outbox_take('t', '{subscriber}', 100) order by event_id"
    );
    let rows = play.show(&sql).await;
    let rows = rows.lines().map(|row| {
        let mut parts = row.split('|').map(str::to_owned);
        let mut next = || parts.next().unwrap();
        (next(), next(), next())
    });
    rows.collect()
}

fn names(taken: &[(String, String, String)]) -> String {
    let mut names: Vec<_> = taken.iter().map(|row| row.2.as_str()).collect();
    names.sort_unstable();
    names.join(" ")
}

#[tokio::test]
async fn events_go_on_where_they_were() {
    let play = old().await;
    play.show(r#"select once.topic_set('t', '{"lanes": 4, "dedupe_for": "3 days", "subscribers": ["default", "slow"]}')"#)
        .await;
    play.show(
        r#"select once.subscriber_set('t', 'default', '{"max_attempts": 1, "lease": "1 hour"}')"#,
    )
    .await;
    let options = "select once.topic_get('t'), once.subscriber_get('t', 'default')";
    let before = play.show(options).await;
    let first = emit(&play, "a", ", dedupe_key => 'd'").await;
    emit(&play, "b", ", order_key => 'k'").await;
    emit(&play, "c", ", order_key => 'k'").await;
    let dead = emit(&play, "dies", "").await;
    emit(&play, "later", ", delay => '2 hours'").await;
    let out = take(&play, "default").await;
    assert_eq!(names(&out), "a b c dies");
    let token = &out[0].0;
    play.show(&format!(
        "select once.outbox_nack('t', 'default', {token}, array[{dead}], 'no such shop')"
    ))
    .await;
    play.show(&format!(
        "select once.outbox_ack('t', 'default', {token}, array[{first}])"
    ))
    .await;
    emit(&play, "not taken", "").await;
    // An open transaction of before commits after the update.
    let emitter = play.another().await;
    emitter
        .show("begin; select once.outbox_emit('t', '\"open\"', order_key => 'k')")
        .await;

    let session = play.another().await;
    session.show("begin").await;
    session.show(crate::released::UPDATE).await;
    session.show("commit; select 1").await;
    emitter.show("commit").await;
    let play = play.another().await;
    is(&play, options, &before).await;
    is(
        &play,
        "select event_id, emitted from once.outbox_emit('t', '\"a\"', dedupe_key => 'd')",
        &format!("{first}|f"),
    )
    .await;
    is(
        &play,
        &format!("select once.outbox_extend('t', 'default', {token}) > interval '30 min'"),
        "t",
    )
    .await;
    is(
        &play,
        &format!("select once.outbox_ack('t', 'default', {token}, array[{first}])"),
        "1",
    )
    .await;
    is(
        &play,
        &format!("select once.outbox_ack('t', 'default', {token})"),
        "3",
    )
    .await;
    is(
        &play,
        "select event_id, attempts, error, payload from once.outbox_dead('t', 'default')",
        &format!("{dead}|1|no such shop|\"dies\""),
    )
    .await;
    is(&play, "select once.outbox_redrive('t', 'default')", "1").await;
    let rest = take(&play, "default").await;
    assert_eq!(names(&rest), "dies not taken open");
    play.show(&format!(
        "select once.outbox_ack('t', 'default', {})",
        rest[0].0
    ))
    .await;
    // A subscriber that had taken nothing gets everything, and the delayed one when it is due.
    let slow = take(&play, "slow").await;
    assert_eq!(names(&slow), "a b c dies not taken open");
    play.show(&format!(
        "select once.outbox_ack('t', 'slow', {})",
        slow[0].0
    ))
    .await;
    play.show(
        "select set_config('once.fake_now', (clock_timestamp() + interval '3 hours')::text, false)",
    )
    .await;
    for subscriber in ["default", "slow"] {
        assert_eq!(
            names(&take(&play, subscriber).await),
            "later",
            "{subscriber}"
        );
    }
    is(&play, "select sum(failed) from once.sweep()", "0").await;
}

#[tokio::test]
async fn what_is_owned_stays_closed_and_what_was_granted_stays_open() {
    let play = old().await;
    play.show(
        "create role upgrade_owner; create role upgrade_member login in role upgrade_owner;
         create role upgrade_outsider login; create role upgrade_all;
         grant upgrade_all to upgrade_owner, upgrade_outsider;
         select once.grant_role('upgrade_all', 'operate');
         select once.scope_set('owned', '{\"owner\": \"upgrade_owner\"}');
         select once.topic_set('owned', '{\"owner\": \"upgrade_owner\"}');
         select once.key_claim('owned', 'k'); select once.outbox_emit('owned', '1')",
    )
    .await;
    let before = play.another_as("upgrade_outsider").await;
    assert_eq!(
        before.code("select once.key_get('owned', 'k')").await,
        "42501"
    );
    update(&play).await;
    for outsider in [before, play.another_as("upgrade_outsider").await] {
        for call in [
            "key_get('owned', 'k')",
            "outbox_take('owned')",
            "key_claim('owned', 'k')",
        ] {
            let refused = outsider.refused(&format!("select once.{call}")).await;
            assert_eq!(refused.code, "42501", "{call}");
            assert!(refused.message.contains("\"owned\""), "{refused:?}");
        }
        is(
            &outsider,
            "select outcome from once.key_claim('mine', gen_random_uuid()::text)",
            "claimed",
        )
        .await;
    }
    let member = play.another_as("upgrade_member").await;
    is(
        &member,
        "select status from once.key_get('owned', 'k')",
        "running",
    )
    .await;
    is(
        &member,
        "select payload from once.outbox_take('owned')",
        "1",
    )
    .await;
}

//! Hot standbys and READ ONLY transactions: what need not write answers, the rest says that it cannot.

use pg_once_tests::Cluster;

use crate::playground::Playground;
use crate::world::{JOB, TABLES, define, jobs, token};

/// Calls that only look, and what they answer on the rows of `prepare`.
const LOOKS: [(&str, &str); 8] = [
    ("select once.machine_get('job') ->> 'machine'", "job"),
    ("select count(*) from once.machine_check('job')", ""),
    ("select count(*) from once.machine_check()", ""),
    (
        "select id, status from once.cancel_pending('job')",
        "3|ready",
    ),
    (
        "select string_agg(item_id, ',') from once.cleanup_items('job', '3')",
        "1,2",
    ),
    (
        "select count(*) from once.cleanup_items('job', '3', '1', 10)",
        "1",
    ),
    ("select count(*) from once.refund_audit('job')", "0"),
    ("select count(*) from once.refund_audit('job', '3')", "0"),
];

/// Calls that have something to write.
fn writes(token: i64) -> Vec<String> {
    [
        "transition('job', '1', 'failed')",
        "transition_many('job', '{1}', 'failed')",
        "action_claim('job', '1', 'run')",
        &format!("action_extend('job', '2', {token})"),
        &format!("action_finish('job', '2', {token})"),
        &format!("action_release('job', '2', {token})"),
        "action_adopt('job')",
        "cancel_request('job', '1')",
        "refund('job', '3')",
        "cleanup_confirm('job', '3', 1)",
        "cancel_finish('job', '3')",
        "sweep_action_release()",
        "sweep()",
        "machine_drop('job')",
        "machine_guard('job', false)",
        &format!("machine_define($def${JOB}$def$)"),
    ]
    .iter()
    .map(|call| format!("select * from once.{call}"))
    .collect()
}

/// Job 1 free, 2 held, 3 flagged with a marked item and one that is decided otherwise, 4 without a lease.
async fn prepare(play: &Playground) -> i64 {
    play.show(TABLES).await;
    define(play, JOB).await;
    play.show("select once.machine_guard('job', true)").await;
    jobs(play, 1, 3, "ready").await;
    play.show("insert into item (id, job_id, state, points) values (1, 3, 'succeeded', 5), (2, 3, 'failed', 5)")
        .await;
    play.show("select once.cancel_request('job', '3'); select once.refund('job', '3')")
        .await;
    play.show("select once.sweep()").await;
    token(play, 2, "run", ", lease => '10 h'").await
}

/// Asserts what every call does where nothing can be written.
async fn only_looks(session: &Playground, token: i64) {
    for (call, expected) in LOOKS {
        match session.attempt(call).await {
            Ok(shown) if !expected.is_empty() => assert_eq!(shown, expected, "{call}"),
            Ok(_) => {}
            Err(refusal) => {
                assert_eq!(refusal.code, "25006", "{call}: {refusal:?}");
                assert!(!refusal.hint.is_empty(), "{call}: {refusal:?}");
                session.show("rollback; begin read only").await;
            }
        }
    }
    for call in writes(token) {
        let refusal = session.refused(&call).await;
        assert_eq!(refusal.code, "25006", "{call}: {refusal:?}");
        session.show("rollback; begin read only").await;
    }
    session.show("rollback").await;
}

#[tokio::test]
async fn in_a_read_only_transaction_what_need_not_write_answers() {
    let play = Playground::open().await;
    let token = prepare(&play).await;
    let session = play.another().await;
    session.show("begin read only").await;
    only_looks(&session, token).await;
    for level in ["repeatable read", "serializable"] {
        session
            .show(&format!("begin isolation level {level} read only"))
            .await;
        only_looks(&session, token).await;
    }
    // Nothing was written by anybody.
    let shown = play
        .show("select string_agg(status, ',' order by id) from job")
        .await;
    assert_eq!(shown, "ready,running,ready");
}

#[tokio::test]
async fn looking_calls_need_no_transaction_id() {
    let play = Playground::open().await;
    prepare(&play).await;
    play.show("begin").await;
    for (call, _) in LOOKS {
        play.show(call).await;
    }
    assert_eq!(
        play.show("select pg_current_xact_id_if_assigned() is null")
            .await,
        "t"
    );
    play.show("rollback").await;
}

#[tokio::test]
async fn a_standby_answers_and_after_its_promotion_the_machine_goes_on() {
    let cluster = Cluster::launch().unwrap();
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    let play = Playground::on(&cluster, "shop").await;
    let token = prepare(&play).await;
    let standby = cluster.standby().unwrap();
    standby.wait_caught_up(&cluster).await.unwrap();
    let there = Playground::on(&standby, "shop").await;
    for level in ["read committed", "repeatable read"] {
        there
            .show(&format!("begin isolation level {level} read only"))
            .await;
        only_looks(&there, token).await;
    }
    // The same session after the failover: what it knew as a standby must not stick.
    drop(play);
    drop(cluster);
    standby.promote().await.unwrap();
    let one = async |sql: &str| there.show(sql).await;
    assert_eq!(
        one(&format!(
            "select outcome, status from once.action_finish('job', '2', {token})"
        ))
        .await,
        "finished|done"
    );
    assert_eq!(
        one("select moved from once.transition('job', '1', 'failed')").await,
        "t"
    );
    let shown = one("select pass, remaining from once.refund('job', '3')").await;
    assert_eq!(shown, "1|f");
    assert_eq!(one("select once.cleanup_confirm('job', '3', 1)").await, "t");
    assert_eq!(
        one("select * from once.cancel_finish('job', '3')").await,
        "cancelled|2|5"
    );
    assert_eq!(one("select points from wallet").await, "5");
    assert_eq!(
        there
            .code("update job set status = 'ready' where id = 3")
            .await,
        "ON002"
    );
    one("select once.sweep(); select once.machine_assert()").await;
}

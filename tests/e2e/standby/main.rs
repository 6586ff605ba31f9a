//! A hot standby answers what is known, refuses what has to be written, and goes on after a failover.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod functions;

use pg_once_tests::{Cluster, playground};
use playground::Playground;

async fn on(cluster: &Cluster) -> Playground {
    Playground::on(cluster, "shop").await
}

async fn primary() -> (Cluster, Playground) {
    let cluster = Cluster::launch().unwrap();
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    let play = on(&cluster).await;
    (cluster, play)
}

/// A guarded machine with job 1 at work, 2 half torn down and 3 waiting; the token of the first.
async fn machine(play: &Playground) -> String {
    play.show(functions::JOBS).await;
    let definition = functions::MACHINE;
    play.show(&format!(
        "select once.machine_define($m${definition}$m$), once.machine_guard('batch_job', true);
         insert into wallet values ('c', 1000);
         insert into batch_job (customer) select 'c' from generate_series(1, 3);
         insert into batch_item (job_id, input, state, points, artifact) values (2, 'i', 'succeeded', 3, 'a');
         select once.cancel_request('batch_job', '2');
         select once.cancel_refund('batch_job', '2');
         select once.sweep()"
    ))
    .await;
    play.show("select token from once.action_claim('batch_job', '1', 'run', 'worker', '10 hours')")
        .await
}

#[tokio::test]
async fn a_standby_answers_and_after_its_promotion_keys_and_machines_go_on() {
    let (cluster, play) = primary().await;
    play.show(r#"select once.scope_set('s', '{"keep_request": true}')"#)
        .await;
    let done = play.token("done", ", '{\"a\": 1}'").await;
    play.show(&format!("select once.key_step('s', 'done', {done}, 'pay')"))
        .await;
    play.show(&format!(
        "select once.key_complete('s', 'done', {done}, 201, '{{\"id\":  7}}')"
    ))
    .await;
    let held = play.token("held", "").await;
    play.token("lost", ", lease => '1 microsecond'").await;
    let rotated = play.token("rotated", "").await;
    play.show(&format!(
        "select once.key_rotate('s', 'rotated', {rotated}, 'pay', 1)"
    ))
    .await;
    let derived = play
        .show("select once.key_derive('s', 'rotated', 'pay')")
        .await;
    let parked = play.token("parked", "").await;
    play.show(&format!(
        "select once.key_park('s', 'parked', {parked}, 'unknown')"
    ))
    .await;
    let run = machine(&play).await;
    let standby = cluster.standby().unwrap();
    standby.wait_caught_up(&cluster).await.unwrap();

    let there = on(&standby).await;
    for level in ["read committed", "repeatable read"] {
        there.show(&format!("begin isolation level {level}")).await;
        there.ask("select outcome, response_code, response_body from once.key_claim('s', 'done', '{\"a\": 1.0}')")
            .is("replayed|201|{\"id\":  7}")
            .await;
        assert_eq!(there.claim("done", ", '2'").await, "mismatched");
        assert_eq!(there.claim("held", "").await, "in_progress");
        assert_eq!(there.claim("parked", "").await, "parked");
        there
            .ask("select status, steps -> 0 ->> 'step' from once.key_get('s', 'done')")
            .is("finished|pay")
            .await;
        assert_eq!(
            there
                .show("select once.key_derive('s', 'rotated', 'pay')")
                .await,
            derived
        );
        there
            .ask("select once.scope_get('s') ->> 'keep_request'")
            .is("true")
            .await;
        there
            .ask("select outcome from once.action_claim('batch_job', '1', 'run', 'worker')")
            .is("in_progress")
            .await;
        there.show("commit").await;
    }
    for call in [
        "key_claim('s', 'new')",
        "transition('batch_job', '3', 'failed')",
    ] {
        assert_eq!(there.code(&format!("select once.{call}")).await, "25006");
    }

    drop(play);
    drop(cluster);
    standby.promote().await.unwrap();
    // The same session: what it knew as a standby must not stick.
    there
        .show(&format!(
            "select once.key_complete('s', 'held', {held}, 200)"
        ))
        .await;
    assert_eq!(there.claim("held", "").await, "replayed");
    assert_eq!(there.claim("new", "").await, "claimed");
    there.ask("select once.sweep(task => 'key_abandon'); select key from once.key_take_abandoned('s')")
        .is("lost")
        .await;
    assert_eq!(there.show("select once.key_forget('s', 'done')").await, "t");
    for (call, answer) in [
        (
            format!("outcome, status from once.action_finish('batch_job', '1', {run})"),
            "finished|done",
        ),
        (
            "moved from once.transition('batch_job', '3', 'failed')".to_owned(),
            "t",
        ),
        (
            "pass, remaining from once.cancel_refund('batch_job', '2')".to_owned(),
            "1|f",
        ),
        ("once.cancel_confirm('batch_job', '2', 1)".to_owned(), "t"),
        (
            "* from once.cancel_finish('batch_job', '2')".to_owned(),
            "cancelled|cancelled|1|3",
        ),
        ("points from wallet".to_owned(), "1003"),
    ] {
        assert_eq!(
            there.show(&format!("select {call}")).await,
            answer,
            "{call}"
        );
    }
    let back = "update batch_job set status = 'queued' where id = 2";
    assert_eq!(there.code(back).await, "ON002");
    there
        .show("select once.sweep(); select once.machine_assert()")
        .await;
}

#[tokio::test]
async fn a_claim_that_an_asynchronous_failover_lost_runs_again_with_a_new_token_and_the_same_derived_keys()
 {
    let (cluster, play) = primary().await;
    let standby = cluster.standby().unwrap();
    standby.wait_caught_up(&cluster).await.unwrap();
    // From here on the standby hears nothing.
    let there = on(&standby).await;
    there.show("alter system set primary_conninfo = ''").await;
    there.show("select pg_reload_conf()").await;
    pg_once_tests::race::poll_async("the receiver to end", async || {
        Ok((there
            .show("select count(*) from pg_stat_wal_receiver")
            .await
            == "0")
            .then_some(()))
    })
    .await
    .unwrap();
    let lost = play.token("k", "").await;
    let derived = play
        .show(&format!(
            "select derived_key from once.key_step('s', 'k', {lost}, 'pay')"
        ))
        .await;
    drop(play);
    drop(cluster);
    standby.promote().await.unwrap();
    let token = there.token("k", "").await;
    assert!(token > lost);
    let step =
        format!("select derived_key, attempted from once.key_step('s', 'k', {token}, 'pay')");
    assert_eq!(there.show(&step).await, format!("{derived}|0"));
    let late = format!("select once.key_complete('s', 'k', {lost}, 200)");
    assert_eq!(there.code(&late).await, "ON001");
}

//! Claims are counted by outcome, once for each call, by all backends together; only where the server has loaded the
//! library from the beginning.

use super::{counted, preloaded, value};
use crate::playground::Playground;
use pg_once_tests::{Cluster, StopMode};

const SESSIONS: usize = 8;
const ROUNDS: usize = 50;

async fn claims(play: &Playground) -> String {
    play.show(
        "select coalesce(string_agg(labels ->> 'outcome' || ' ' || value, ', '), '') from once.metrics()
          where name = 'pg_once_claims_total' and value > 0",
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_sessions_count_together_and_lose_nothing() {
    let play = counted("together").await;
    assert_eq!(claims(&play).await, "");
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|session| {
            tokio::spawn(async move {
                let client = preloaded().enter("together").await.unwrap();
                for round in 0..ROUNDS {
                    let key = format!("{session} {round}");
                    client
                        .batch_execute(&format!(
                            "do $$ declare t bigint; begin
                                select token into t from once.key_claim('s', '{key}', '1');
                                perform once.key_claim('s', '{key}', '1');
                                perform once.key_claim('s', '{key}', '2');
                                perform once.key_release('s', '{key}', t);
                                select token into t from once.key_claim('s', '{key}', '1');
                                perform once.key_complete('s', '{key}', t, 200);
                                perform once.key_claim('s', '{key} h', fingerprint => sha256('1'));
                                perform once.key_claim('s', '{key}', '1'), once.key_claim('s', '{key}', '1');
                             end $$"
                        ))
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for session in sessions {
        session.await.unwrap();
    }
    let n = SESSIONS * ROUNDS;
    assert_eq!(
        claims(&play).await,
        format!(
            "claimed {}, resumed {n}, replayed {}, in_progress {n}, mismatched {n}",
            2 * n,
            2 * n
        )
    );
    // 7 claims a round, 2 of them replayed, 1 in progress, 1 mismatched.
    let rate = |name: &str| {
        format!("select round(value::numeric, 4) from once.metrics() where name = '{name}'")
    };
    assert_eq!(play.show(&rate("idempotency_reuse_rate")).await, "0.2857");
    assert_eq!(play.show(&rate("idempotency_409_rate")).await, "0.1429");
    let in_progress = rate("idempotency_in_progress_rate");
    assert_eq!(play.show(&in_progress).await, "0.1429");
}

#[tokio::test]
async fn the_409_rate_is_the_share_of_mismatches_and_in_progress_has_its_own() {
    let play = counted("collisions").await;
    for (arguments, outcome) in [
        ("", "claimed"),
        ("", "in_progress"),
        (", '1'", "mismatched"),
        (", '2'", "mismatched"),
        (", '3'", "mismatched"),
    ] {
        assert_eq!(play.claim("k", arguments).await, outcome);
    }
    assert_eq!(value(&play, "idempotency_409_rate", "{}").await, "0.6");
    let in_progress = value(&play, "idempotency_in_progress_rate", "{}").await;
    assert_eq!(in_progress, "0.2");
}

#[tokio::test]
async fn gone_and_parked_are_counted_and_a_rolled_back_claim_stays_counted() {
    let play = counted("others").await;
    play.show("begin; select outcome from once.key_claim('s', 'a'); rollback")
        .await;
    let token = play.token("a", "").await;
    play.show(&format!("select once.key_park('s', 'a', {token}, 'why')"))
        .await;
    assert_eq!(play.claim("a", "").await, "parked");
    let token = play.token("b", ", ttl => '1 s'").await;
    play.show(&format!("select once.key_complete('s', 'b', {token}, 200)"))
        .await;
    play.show("select set_config('once.fake_now', (now() + '1 min')::text, false)")
        .await;
    assert_eq!(play.claim("b", "").await, "gone");
    assert_eq!(claims(&play).await, "claimed 3, gone 1, parked 1");
}

#[tokio::test]
async fn another_database_counts_apart() {
    let one = counted("one").await;
    let two = counted("two").await;
    one.token("a", "").await;
    two.token("a", "").await;
    two.token("b", "").await;
    assert_eq!(claims(&one).await, "claimed 1");
    assert_eq!(claims(&two).await, "claimed 2");
}

#[tokio::test]
async fn without_preloading_the_rows_are_absent_and_doctor_says_why() {
    let play = Playground::open().await;
    play.token("a", "").await;
    let names = "select count(*) from once.metrics() where name ~ 'claims_total|^idempotency_'";
    assert_eq!(play.show(names).await, "0");
    let told = "select level, hint from once.doctor() where problem = 'claims of this database are not counted'";
    let told = play.show(told).await;
    assert!(
        told.starts_with("info|Add pg_once to shared_preload_libraries"),
        "{told}"
    );
    let preloaded = counted("quiet").await;
    assert!(
        !preloaded
            .show("select * from once.doctor()")
            .await
            .contains("not counted")
    );
}

#[tokio::test]
async fn a_restart_and_a_crash_begin_at_zero() {
    let mut cluster = Cluster::builder()
        .setting("shared_preload_libraries", "pg_once")
        .launch()
        .unwrap();
    drop(
        cluster
            .create_database_with_extension("shop")
            .await
            .unwrap(),
    );
    for again in 0..2 {
        let play = Playground::on(&cluster, "shop").await;
        assert_eq!(claims(&play).await, "");
        play.token(&format!("a{again}"), "").await;
        assert_eq!(claims(&play).await, "claimed 1");
        drop(play);
        match again {
            0 => cluster.stop(StopMode::Fast).unwrap(),
            _ => cluster.kill_9().unwrap(),
        }
        cluster.start().unwrap();
    }
    let play = Playground::on(&cluster, "shop").await;
    assert_eq!(claims(&play).await, "");
}

/// More databases than are counted: the first go on, the others have no rows, and nothing fails.
#[tokio::test]
async fn databases_beyond_the_last_slot_are_not_counted_and_doctor_says_so() {
    let cluster = Cluster::builder()
        .setting("shared_preload_libraries", "pg_once")
        .launch()
        .unwrap();
    drop(
        cluster
            .create_database_with_extension("model_once")
            .await
            .unwrap(),
    );
    let admin = cluster.connect("postgres").await.unwrap();
    let mut last = None;
    for n in 1..=64 {
        let name = format!("d{n}");
        admin
            .batch_execute(&format!(
                "create database {name} template model_once strategy file_copy"
            ))
            .await
            .unwrap();
        let play = Playground::on(&cluster, &name).await;
        play.token("a", "").await;
        last = Some(play);
    }
    let first = Playground::on(&cluster, "d1").await;
    assert_eq!(claims(&first).await, "claimed 1");
    let last = last.unwrap();
    assert_eq!(claims(&last).await, "claimed 1");
    // The 65th.
    let model = Playground::on(&cluster, "model_once").await;
    model.token("a", "").await;
    assert_eq!(value(&model, "idempotency_409_rate", "{}").await, "");
    let told =
        "select level from once.doctor() where problem = 'claims of this database are not counted'";
    assert_eq!(model.show(told).await, "info");
    assert_eq!(first.show(told).await, "");
}

#[tokio::test]
async fn a_step_that_ends_in_the_transaction_that_began_it_is_warned_of_counted_and_told() {
    let play = counted("uncommitted").await;
    let token = play.token("k", "").await;
    let step = |step: &str| format!("select once.key_step('s', 'k', {token}, '{step}')");
    let done = |step: &str| format!("select once.key_step_done('s', 'k', {token}, '{step}')");
    let total = async || value(&play, "pg_once_uncommitted_steps_total", "{}").await;
    let warned = || {
        let log = std::fs::read_to_string(preloaded().directory().join("server.log")).unwrap();
        let warning =
            "WARNING:  step \"ship\" of key \"k\" of scope \"s\" began in this transaction";
        log.matches(warning).count()
    };
    let told = async || {
        let told = "select level from once.doctor() where problem = 'steps begin and end in one transaction'";
        play.show(told).await
    };
    // Committed between: nothing is said.
    play.show(&step("charge")).await;
    play.show(&done("charge")).await;
    // Begun before, and ended beside another write of this transaction.
    play.show(&step("mail")).await;
    play.show(&format!(
        "begin; select once.key_extend('s', 'k', {token}); {}; commit",
        done("mail")
    ))
    .await;
    assert_eq!(
        (total().await, told().await),
        ("0".to_owned(), String::new())
    );
    play.show(&format!(
        "begin; {}; savepoint s; {}; commit",
        step("ship"),
        done("ship")
    ))
    .await;
    assert_eq!(
        (total().await, told().await),
        ("1".to_owned(), "warning".to_owned())
    );
    assert_eq!(warned(), 1);
    // The same end again is no second one.
    assert_eq!(play.code(&done("ship")).await, "ON006");
    assert_eq!(total().await, "1");
}

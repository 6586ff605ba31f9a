//! Answers that the network loses after the server has run the call.

use std::sync::atomic::{AtomicU32, Ordering};

use pg_once::{Done, Failure, KeyStatus, Outcome, Response};

use crate::proxy::Proxy;
use crate::support::{QUICK, fresh_key, pool, pool_to};

/// Runs one request, and loses the answer to the call that contains `text`. Returns the outcome, how often the work
/// ran, and the key.
async fn run_losing(
    text: &'static str,
    end: fn(Response) -> Result<Done, Failure>,
) -> (Outcome, u32, pg_once::Key) {
    let proxy = Proxy::start().await;
    let (pool, key) = (pool_to(proxy.config()), fresh_key());
    let runs = AtomicU32::new(0);
    proxy.lose_answer_to(text);
    let run = key.clone().run(&pool).backoff(QUICK).run(|_| {
        runs.fetch_add(1, Ordering::SeqCst);
        async move { end(Response::new(201)) }
    });
    let outcome = run.await.unwrap();
    assert_eq!(proxy.lost(), 1);
    (outcome, runs.into_inner(), key)
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_repeated_and_still_the_first_attempt() {
    let (outcome, runs, key) = run_losing("key_claim", |answer| Ok(answer.into())).await;
    assert!(matches!(outcome, Outcome::Ran(_)));
    assert_eq!(
        (runs, key.get(&pool()).await.unwrap().unwrap().attempt),
        (1, 1)
    );
}

#[tokio::test]
async fn a_complete_whose_answer_is_lost_is_repeated_and_the_work_is_not() {
    let (outcome, runs, _) = run_losing("key_complete", |answer| Ok(answer.into())).await;
    assert!(matches!(outcome, Outcome::Ran(answer) if answer.code == 201));
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn an_abort_whose_answer_is_lost_is_repeated() {
    let (outcome, runs, _) = run_losing("key_abort", |answer| Err(Failure::Abort(answer))).await;
    assert!(matches!(outcome, Outcome::Aborted(_)));
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn a_release_whose_answer_is_lost_is_repeated() {
    let (outcome, runs, key) = run_losing("key_release", |_| Err(Failure::retry("later"))).await;
    assert!(matches!(outcome, Outcome::Released { .. }));
    assert_eq!(runs, 1);
    assert_eq!(
        key.get(&pool()).await.unwrap().unwrap().status,
        KeyStatus::Released
    );
}

#[tokio::test]
async fn a_park_whose_answer_is_lost_is_repeated() {
    let (outcome, runs, _) = run_losing("key_park", |_| Err(Failure::unknown("?"))).await;
    assert!(matches!(outcome, Outcome::Parked { attempt: 1 }));
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn a_commit_of_the_answer_that_is_lost_is_found_out_and_the_work_is_not_repeated() {
    let proxy = Proxy::start().await;
    let (pool, key) = (pool_to(proxy.config()), fresh_key());
    let runs = AtomicU32::new(0);
    let run = key.clone().run(&pool).backoff(QUICK).run(|lease| {
        let (pool, answer) = (pool.clone(), Response::new(201));
        runs.fetch_add(1, Ordering::SeqCst);
        let proxy = &proxy;
        async move {
            let mut client = pool.get().await?;
            let transaction = client.transaction().await?;
            lease.complete(&transaction, &answer).await?;
            proxy.lose_answer_to("COMMIT");
            transaction.commit().await?;
            Ok(Done::Stored(answer))
        }
    });
    assert!(matches!(run.await.unwrap(), Outcome::Ran(answer) if answer.code == 201));
    assert_eq!((proxy.lost(), runs.into_inner()), (1, 1));
}

/// The work repeats a phase's transaction when the answer to its COMMIT is lost.
#[tokio::test]
async fn a_phase_whose_transaction_is_sent_twice_commits_once_and_the_work_goes_on_behind_it() {
    let proxy = Proxy::start().await;
    let (through, key) = (pool_to(proxy.config()), fresh_key());
    let table = format!("\"twice {}\"", uuid::Uuid::new_v4());
    let create = format!("CREATE TABLE {table} (id uuid PRIMARY KEY)");
    let client = pool().get().await.unwrap();
    client.batch_execute(&create).await.unwrap();
    let runs = AtomicU32::new(0);
    let run = key.clone().run(&through).backoff(QUICK).run(|lease| {
        runs.fetch_add(1, Ordering::SeqCst);
        let (proxy, through, table) = (&proxy, &through, &table);
        async move {
            if lease.recovery_point() == "started" {
                proxy.lose_answer_to("COMMIT");
                let phase = || async {
                    let mut client = through.get().await?;
                    let transaction = client.transaction().await?;
                    // Each run inserts another id, so no constraint refuses a second row.
                    let insert = format!("INSERT INTO {table} VALUES ($1)");
                    transaction
                        .execute(&insert, &[&uuid::Uuid::new_v4()])
                        .await?;
                    lease.advance(&transaction, "ordered", None, None).await?;
                    transaction.commit().await?;
                    Ok(())
                };
                QUICK.retry(phase).await?;
            }
            Ok(Response::new(201).into())
        }
    });
    assert!(matches!(run.await.unwrap(), Outcome::Ran(answer) if answer.code == 201));
    assert_eq!((proxy.lost(), runs.into_inner()), (1, 2));
    let count = format!("SELECT count(*) FROM {table}");
    let rows = client.query_typed(&count, &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, i64>(0), 1);
    client
        .batch_execute(&format!("DROP TABLE {table}"))
        .await
        .unwrap();
}

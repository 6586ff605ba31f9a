//! Errors of a real server, and how the client classifies them.

use std::time::Duration;

use pg_once::{ClaimOptions, Error, Failure, Kind, Response, Sqlx, Undelivered, Verdict};

use crate::support::{
    backend_pid, claimed, connect, connect_to, directly, fresh_key, pool, sqlx_pool_to, take_over,
    terminate,
};

fn refused<T>(result: Result<T, Error>) -> (String, Kind, bool) {
    match result {
        Ok(_) => panic!("this is to be refused"),
        Err(error) => (
            error.code().unwrap_or_default().to_owned(),
            error.kind(),
            error.is_retryable(),
        ),
    }
}

fn lost<T>(result: Result<T, Error>) {
    assert_eq!(
        refused(result),
        ("ON001".to_owned(), Kind::LeaseLost, false)
    );
}

#[tokio::test]
async fn every_write_of_a_superseded_holder_is_a_lost_lease() {
    let (pool, key) = (pool(), fresh_key());
    let old = claimed(&key, &pool).await;
    old.step(&pool, "charge").await.unwrap();
    take_over(&key, &ClaimOptions::new()).await;

    lost(old.advance(&pool, "on", None, None).await);
    lost(old.complete(&pool, &Response::new(200)).await);
    lost(old.abort(&pool, &Response::new(500)).await);
    lost(old.release(&pool, None, None).await);
    lost(old.park(&pool, "?").await);
    lost(old.extend(&pool, None).await);
    lost(old.step(&pool, "charge").await);
    lost(old.step_done(&pool, "charge", None).await);
    lost(old.rotate(&pool, "charge", 1).await);
}

#[tokio::test]
async fn an_answer_after_the_end_is_already_done() {
    let (pool, key) = (pool(), fresh_key());
    let lease = claimed(&key, &pool).await;
    lease.complete(&pool, &Response::new(200)).await.unwrap();
    for code in [200, 201] {
        let again = lease.complete(&pool, &Response::new(code)).await;
        assert_eq!(
            refused(again),
            ("ON006".to_owned(), Kind::AlreadyDone, false)
        );
    }
}

#[tokio::test]
async fn a_key_in_use_and_a_key_that_is_not_parked_say_so() {
    let (pool, key) = (pool(), fresh_key());
    claimed(&key, &pool).await;
    let in_use = ("55006".to_owned(), Kind::InUse, false);
    assert_eq!(refused(key.forget(&pool).await), in_use);
    assert_eq!(
        refused(key.resolve(&pool, 1, &Verdict::Retry).await),
        in_use
    );
}

#[tokio::test]
async fn a_lease_of_no_length_and_one_beyond_all_measure_are_bad_arguments() {
    let pool = pool();
    for length in [Duration::ZERO, Duration::MAX] {
        let (code, kind, retryable) = refused(
            fresh_key()
                .claim(&pool, &ClaimOptions::new().lease(length))
                .await,
        );
        assert_eq!((kind, retryable), (Kind::InvalidArgument, false), "{code}");
    }
}

#[tokio::test]
async fn a_claim_where_nothing_may_be_written_is_read_only_and_a_replay_there_is_not() {
    let (pool, done) = (pool(), fresh_key());
    claimed(&done, &pool)
        .await
        .complete(&pool, &Response::new(200))
        .await
        .unwrap();

    let mut client = connect().await;
    let reader = client
        .build_transaction()
        .read_only(true)
        .start()
        .await
        .unwrap();
    done.claim(&reader, &ClaimOptions::new()).await.unwrap();
    let refusal = refused(fresh_key().claim(&reader, &ClaimOptions::new()).await);
    assert_eq!(refusal, ("25006".to_owned(), Kind::ReadOnly, false));
}

#[tokio::test]
async fn a_terminated_backend_is_worth_a_retry() {
    let victim = connect_to(directly("a pooler would take another backend")).await;
    terminate(backend_pid(&victim).await).await;
    let error = fresh_key()
        .claim(&victim, &ClaimOptions::new())
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.is_retryable()),
        (Kind::Unavailable, true)
    );

    let pool = sqlx_pool_to(&directly("a pooler would take another backend"));
    let mut victim = pool.acquire().await.unwrap();
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()");
    terminate(pid.fetch_one(&mut *victim).await.unwrap()).await;
    for _ in 0..2 {
        let exec = Sqlx::on(&mut victim);
        let error = fresh_key().claim(&exec, &ClaimOptions::new()).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    }
}

#[test]
fn a_failed_foreign_call_ends_an_event() {
    let after = Duration::from_secs(3);
    let retry = || Failure::retry_after("503", after);
    let (unknown, refused) = (
        || Failure::unknown("silence"),
        || Failure::Abort(Response::new(402)),
    );
    let error = || Failure::from(Error::TimedOut);

    let again = Undelivered::retry_after("error", "503", after);
    assert_eq!(Undelivered::from(retry()), again);
    let never = Undelivered::never("outcome unknown: silence");
    assert_eq!(Undelivered::from(unknown()), never);
    let never = Undelivered::never("refused: 402");
    assert_eq!(Undelivered::from(refused()), never);
    let again = Undelivered::from(Error::TimedOut);
    assert_eq!(Undelivered::from(error()), again);
}

#[tokio::test]
async fn an_error_of_the_callers_own_is_judged_by_the_refusal_that_it_wraps() {
    let client = connect().await;
    let raised = async |state: &str| {
        let raise = format!("DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$");
        client.batch_execute(&raise).await.unwrap_err()
    };
    for (state, kind) in [("ON001", Kind::LeaseLost), ("40001", Kind::Conflict)] {
        let plain = anyhow::Error::from(raised(state).await);
        let told = anyhow::Error::from(raised(state).await).context("the ledger");
        let own = anyhow::Error::from(Error::from(raised(state).await));
        for error in [plain, told, own] {
            let error = Error::other(error);
            assert_eq!((error.code(), error.kind()), (Some(state), kind));
        }
    }
    let disk = || Error::other(std::io::Error::other("the disk is full"));
    assert_eq!((disk().kind(), disk().is_retryable()), (Kind::Other, false));
    assert_eq!(disk().to_string(), "the disk is full");
    assert!(matches!(Failure::from(disk()), Failure::Error(_)));
    let event = Undelivered::from(disk());
    assert_eq!(event, Undelivered::retry("error", "the disk is full"));
}

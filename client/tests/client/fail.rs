//! Without a database a request fails closed by default, or open if the caller chose that.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pg_once::{Backoff, Failure, Kind, Outcome, Response, Scope};
use tokio::net::TcpSocket;
use tokio_postgres::Config;

use crate::support::{QUICK, fresh_key, pool, pool_to};

/// sqlx's pool retries a refused connection; a short `call_timeout` ends that.
const HASTY: Backoff = Backoff {
    call_timeout: Duration::from_secs(1),
    ..QUICK
};

/// An address on which nothing listens. The socket, which does not listen, keeps the port from others.
fn nobody_there() -> (TcpSocket, Config) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let mut config = Config::new();
    config
        .host("127.0.0.1")
        .port(socket.local_addr().unwrap().port())
        .user("nobody");
    (socket, config)
}

#[tokio::test]
async fn without_a_database_a_request_fails_closed() {
    let (_socket, config) = nobody_there();
    let pool = pool_to(config);
    let run = fresh_key()
        .run(&pool)
        .backoff(HASTY)
        .run(|_| async { panic!("not to run") });
    let error = run.await.unwrap_err();
    assert_eq!(
        (error.kind(), error.is_retryable()),
        (Kind::Unavailable, true)
    );
}

#[tokio::test]
async fn without_a_database_a_request_fails_open_where_that_was_chosen_and_each_time_is_told() {
    let (_socket, config) = nobody_there();
    let pool = pool_to(config);
    let told = AtomicU32::new(0);
    let runner = || {
        fresh_key().run(&pool).backoff(HASTY).fail_open(|error| {
            assert_eq!(error.kind(), Kind::Unavailable);
            told.fetch_add(1, Ordering::SeqCst);
        })
    };
    for times in 1..=2 {
        let run = runner().run(|lease| async move {
            assert!(lease.is_none());
            Ok(Response::new(200).into())
        });
        assert!(matches!(run.await.unwrap(), Outcome::Unkeyed(Ok(_))));
        assert_eq!(told.load(Ordering::SeqCst), times);
    }
    let failed = runner()
        .run(|_| async { Err(Failure::unknown("?")) })
        .await
        .unwrap();
    assert!(matches!(
        failed,
        Outcome::Unkeyed(Err(Failure::Unknown { .. }))
    ));
}

#[tokio::test]
async fn a_refusal_does_not_fail_open() {
    let pool = pool();
    let told = AtomicU32::new(0);
    let run = Scope::new("client.tests")
        .key("")
        .run(&pool)
        .fail_open(|_| {
            told.fetch_add(1, Ordering::SeqCst);
        });
    let error = run
        .run(|_| async { panic!("not to run") })
        .await
        .unwrap_err();
    assert_eq!((error.code(), told.into_inner()), (Some("22023"), 0));
}

#[tokio::test]
async fn with_a_database_failing_open_changes_nothing() {
    let (pool, key) = (pool(), fresh_key());
    for first in [true, false] {
        let runner = key
            .clone()
            .run(&pool)
            .fail_open(|_| panic!("the database is there"));
        let run = runner.run(|lease| async move {
            assert!(lease.is_some());
            Ok(Response::new(200).into())
        });
        match run.await.unwrap() {
            Outcome::Ran(_) => assert!(first),
            Outcome::Replayed(_) => assert!(!first),
            other => panic!("{other:?}"),
        }
    }
}

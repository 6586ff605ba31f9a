//! A server that is overloaded, read-only or silent for a while.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use deadpool_postgres::Manager;
use pg_once::{
    Args, Autocommit, Backoff, Begin, EmitOptions, Error, Event, Executor, Failure, Json,
    KeyStatus, Kind, Outcome, Response, Row, Topic, TopicOptions, Undelivered,
};
use sqlx::postgres::PgPoolOptions;
use tokio::time::timeout;
use tokio_postgres::NoTls;

use crate::proxy::Proxy;
use crate::support::{
    Jobs, Pool, QUICK, config, connect_to, directly, fresh_key, pool, pool_to, sqlx_options,
};

/// The server cancels a call at its `statement_timeout`.
const GIVES_UP: [&str; 2] = [
    "SET LOCAL statement_timeout = '10ms'",
    "SELECT pg_sleep(60)",
];
/// The server is read-only, as a standby is.
const TAKES_NO_WRITES: [&str; 2] = ["SET TRANSACTION READ ONLY", "CREATE TABLE nowhere ()"];

/// What a `transaction_timeout` raises; PostgreSQL 15 and 16 do not have the setting.
const ENDS_THE_TRANSACTION: [&str; 2] = ["SELECT", "DO $$ BEGIN RAISE SQLSTATE '25P04'; END $$"];

/// The pooler does not know the database, for example during its move.
const NO_DATABASE: [&str; 2] = ["SELECT", "DO $$ BEGIN RAISE invalid_catalog_name; END $$"];

/// An executor on which some of the calls that contain `text` fail.
struct Troubled {
    pool: Pool,
    text: &'static str,
    trouble: [&'static str; 2],
    calls: AtomicU32,
    which: Range<u32>,
}

impl Troubled {
    fn new(pool: &Pool, text: &'static str, trouble: [&'static str; 2], which: Range<u32>) -> Self {
        Self {
            pool: pool.clone(),
            text,
            trouble,
            calls: AtomicU32::new(0),
            which,
        }
    }

    /// Asserts that a call was made after the last call that had to fail.
    fn assert_met(&self) {
        assert!(self.calls.load(Ordering::SeqCst) > self.which.end);
    }
}

impl Executor for Troubled {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        if sql.contains(self.text) {
            let call = self.calls.fetch_add(1, Ordering::SeqCst);
            if self.which.contains(&call) {
                let mut client = self.pool.get().await?;
                let transaction = client.transaction().await?;
                for statement in self.trouble {
                    transaction.batch_execute(statement).await?;
                }
            }
        }
        Executor::query(&self.pool, sql, args).await
    }
}

impl Autocommit for Troubled {}

#[tokio::test]
async fn a_call_that_the_server_gives_up_is_not_repeated_by_itself() {
    let troubled = Troubled::new(&pool(), "key_derive", GIVES_UP, 0..1);
    let key = fresh_key();
    let call = || key.derive(&troubled, "charge");
    let error = QUICK.retry(call).await.unwrap_err();
    assert_eq!(
        (error.code(), error.kind(), error.is_retryable()),
        (Some("57014"), Kind::Overloaded, false)
    );
    call().await.unwrap();
}

#[tokio::test]
async fn a_worker_outlives_what_passes() {
    for (trouble, which) in [
        (GIVES_UP, 0..2),        // from the beginning
        (GIVES_UP, 1..3),        // and later
        (TAKES_NO_WRITES, 1..3), // a failover
        (NO_DATABASE, 0..2),     // a move
    ] {
        let jobs = Jobs::guarded().await;
        let troubled = Troubled::new(&jobs.pool, "cancel_pending", trouble, which);
        let worker = jobs.machine.teardown_worker(&troubled).backoff(QUICK);
        let worker = worker.poll_every(Duration::from_millis(20));
        let done = async {
            while troubled.calls.load(Ordering::SeqCst) < 4 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            jobs.job.cancel().request(&jobs.pool).await.unwrap();
            while jobs.status().await != "cancelled" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let clean = |_, _| async { Ok::<(), std::io::Error>(()) };
        let run = tokio::time::timeout(Duration::from_secs(30), worker.run(done, clean));
        assert_eq!(run.await.unwrap().unwrap().cancelled, 1);
        troubled.assert_met();
    }
}

#[tokio::test]
async fn a_worker_that_is_refused_from_the_beginning_says_so() {
    let jobs = Jobs::guarded().await;
    let troubled = Troubled::new(&jobs.pool, "cancel_pending", TAKES_NO_WRITES, 0..9);
    let worker = jobs.machine.teardown_worker(&troubled).backoff(QUICK);
    let clean = |_, _| async { Ok::<(), std::io::Error>(()) };
    let error = worker.run(std::future::pending(), clean).await.unwrap_err();
    assert_eq!(error.kind(), Kind::ReadOnly);
}

#[tokio::test]
async fn a_database_that_stays_away_is_tried_a_bounded_number_of_times() {
    let troubled = Troubled::new(&pool(), "key_derive", NO_DATABASE, 0..100);
    let key = fresh_key();
    let error = QUICK.retry(|| key.derive(&troubled, "charge")).await;
    let error = error.unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), (Some("3D000"), true));
    assert_eq!(troubled.calls.load(Ordering::SeqCst), QUICK.tries);
    let jobs = Jobs::guarded().await;
    let troubled = Troubled::new(&jobs.pool, "cancel_pending", NO_DATABASE, 0..100);
    let worker = jobs.machine.teardown_worker(&troubled).backoff(QUICK);
    let clean = |_, _| async { Ok::<(), std::io::Error>(()) };
    let error = worker.run(std::future::pending(), clean).await.unwrap_err();
    assert_eq!(error.code(), Some("3D000"));
    assert_eq!(troubled.calls.load(Ordering::SeqCst), QUICK.tries);
}

#[tokio::test]
async fn a_heartbeat_that_the_server_gives_up_is_tried_again_while_the_lease_lives() {
    for trouble in [GIVES_UP, TAKES_NO_WRITES] {
        let troubled = Troubled::new(&pool(), "key_extend", trouble, 0..2);
        let lease = Duration::from_secs(3);
        let run = fresh_key().run(&troubled).lease(lease).backoff(QUICK);
        let run = run.run(|_| async {
            tokio::time::sleep(lease + lease / 3).await;
            Ok(Response::new(200).into())
        });
        let outcome = run.await.unwrap();
        assert!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
        troubled.assert_met();
    }
}

#[tokio::test]
async fn the_end_of_an_attempt_is_written_although_the_database_fails_for_longer_than_the_tries() {
    for (trouble, text, status) in [
        (GIVES_UP, "key_complete", KeyStatus::Finished),
        (TAKES_NO_WRITES, "key_abort", KeyStatus::Finished),
        (NO_DATABASE, "key_park", KeyStatus::Parked),
        (ENDS_THE_TRANSACTION, "key_release", KeyStatus::Released),
    ] {
        let troubled = Troubled::new(&pool(), text, trouble, 0..2 * QUICK.tries);
        let key = fresh_key();
        let run = key.clone().run(&troubled).backoff(QUICK);
        let run = run.run(|_| async move {
            match text {
                "key_abort" => Err(Failure::Abort(Response::new(402))),
                "key_park" => Err(Failure::unknown("no answer")),
                "key_release" => Err(Failure::retry("503")),
                _ => Ok(Response::new(200).into()),
            }
        });
        run.await.unwrap();
        let record = key.get(&troubled).await.unwrap().unwrap();
        assert_eq!((record.status, record.attempt), (status, 1), "{text}");
        troubled.assert_met();
    }
}

#[tokio::test]
async fn the_end_of_an_attempt_is_given_up_when_the_lease_has_ended() {
    let (key, short) = (fresh_key(), Duration::from_millis(300));
    let troubled = Troubled::new(&pool(), "key_park", NO_DATABASE, 0..u32::MAX);
    let backoff = Backoff {
        call_timeout: short,
        ..QUICK
    };
    let run = key.run(&troubled).lease(short).backoff(backoff);
    let run = run.run(|_| async { Err(Failure::unknown("no answer")) });
    let began = Instant::now();
    let error = timeout(Duration::from_secs(30), run).await.unwrap();
    assert_eq!(error.unwrap_err().code(), Some("3D000"));
    assert!(began.elapsed() >= short, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_server_that_is_gone_without_a_word_costs_a_timeout_for_each_connection_and_no_more() {
    let proxy = Proxy::start().await;
    let manager = Manager::new(proxy.config(), NoTls);
    let pool = deadpool_postgres::Pool::builder(manager)
        .max_size(3)
        .build()
        .unwrap();
    let open = tokio::try_join!(pool.get(), pool.get(), pool.get()).unwrap();
    drop(open);
    assert_eq!(pool.status().available, 3);
    runs_though_open_connections_fall_silent(&proxy, &pool).await;
    assert_eq!(pool.status().size, 1, "those that led nowhere are closed");
}

#[tokio::test]
async fn a_transaction_whose_call_has_no_answer_takes_its_connection_out_of_the_pool() {
    let (proxy, soon) = (Proxy::start().await, Duration::from_millis(200));
    let pool = pool_to(proxy.config());
    let open = pool.begin().await.unwrap();
    proxy.fall_silent_on_open_connections();
    let asked = timeout(soon, Executor::query(&open, "SELECT 1", &[])).await;
    assert!(asked.is_err());
    drop(open);
    assert_eq!(pool.status().size, 0);

    drop(pool.begin().await.unwrap());
    assert_eq!((pool.status().size, pool.status().available), (1, 1));
    proxy.fall_silent_on_open_connections();
    assert!(timeout(soon, pool.begin()).await.is_err());
    assert_eq!(pool.status().size, 0);
}

#[tokio::test]
async fn the_pool_of_sqlx_closes_a_connection_to_a_server_that_is_gone_without_a_word() {
    let proxy = Proxy::start().await;
    let options = PgPoolOptions::new().max_connections(1);
    let options = options.test_before_acquire(false);
    let pool = options.connect_with(sqlx_options(&proxy.config()));
    let pool = pool.await.unwrap();
    runs_though_open_connections_fall_silent(&proxy, &pool).await;
}

async fn runs_though_open_connections_fall_silent<E: Autocommit>(proxy: &Proxy, pool: &E) {
    proxy.fall_silent_on_open_connections();
    let patient = Backoff {
        call_timeout: Duration::from_millis(1200),
        ..QUICK
    };
    let run = fresh_key().run(pool).backoff(patient);
    let outcome = run.run(|_| async { Ok(Response::new(200).into()) }).await;
    assert!(matches!(outcome, Ok(Outcome::Ran(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_transaction_with_a_clone_left_or_with_an_error_is_not_committed() {
    let pool = pool();
    let open = pool.begin().await.unwrap();
    let clone = open.clone();
    let refused = open.commit().await.unwrap_err();
    assert!(matches!(refused, Error::Argument(_)), "{refused}");
    assert!(clone.batch_execute("SELECT 1 / 0").await.is_err());
    let refused = clone.commit().await.unwrap_err();
    assert_eq!(refused.code(), Some("25P02"), "{refused}");
}

#[tokio::test]
async fn a_reason_that_the_database_cannot_spell_is_kept_in_ascii() {
    let admin = connect_to(directly("it makes a database")).await;
    let name = format!("latin_{}", uuid::Uuid::new_v4().simple());
    let latin1 = "TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'";
    let create = format!("CREATE DATABASE {name} {latin1}");
    admin.batch_execute(&create).await.unwrap();
    let latin = &pool_to(config().dbname(&name).clone());
    let extension = "CREATE EXTENSION pg_once";
    let client = latin.get().await.unwrap();
    client.batch_execute(extension).await.unwrap();
    drop(client);

    let key = fresh_key();
    for (failure, kept) in [
        (Failure::retry("naïve"), "naïve"),
        (Failure::retry("naïve: it can’t"), "na?ve: it can?t"),
        (Failure::unknown("it can’t"), "it can?t"),
    ] {
        let mut failure = Some(failure);
        let run = key.clone().run(latin).backoff(QUICK);
        let run = run.run(|_| std::future::ready(Err(failure.take().unwrap())));
        let outcome = run.await.unwrap();
        let parked = matches!(outcome, Outcome::Parked { attempt: 3 });
        assert!(parked || matches!(outcome, Outcome::Released { .. }));
        let record = key.get(latin).await.unwrap().unwrap();
        assert_eq!(record.last_error.as_deref(), Some(kept), "{outcome:?}");
    }

    let (topic, payload) = (Topic::new("events"), Json::from_text("1"));
    topic.set(latin, &TopicOptions::new()).await.unwrap();
    let options = EmitOptions::new();
    topic.emit(latin, &payload, &options).await.unwrap();
    let subscriber = topic.default_subscriber();
    let died = async {
        while subscriber.dead(latin, 1).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let handler = |_: Event| async { Err::<(), _>(Undelivered::never("it can’t")) };
    let worker = subscriber.worker(latin).backoff(QUICK);
    let run = timeout(Duration::from_secs(30), worker.run(died, handler));
    assert_eq!(run.await.unwrap().unwrap().dead, 1);
    let dead = subscriber.dead(latin, 1).await.unwrap();
    assert_eq!(dead[0].error.as_deref(), Some("it can?t"));

    latin.close();
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    admin.batch_execute(&drop).await.unwrap();
}

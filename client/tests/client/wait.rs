//! Twelve equal requests in parallel: a duplicate is refused at once, or waits for the first request's answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pg_once::http::{Answer, IDEMPOTENT_REPLAYED, RETRY_AFTER};
use pg_once::{Args, Autocommit, Error, Executor, Key, Kind, Outcome, Response, Row};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support::{Pool, QUICK, claimed, fresh_key, pool, until};

const LONG: Duration = Duration::from_secs(60);

/// An executor that answers the first call only.
struct AwaySoon {
    pool: Pool,
    calls: AtomicU32,
}

impl Executor for AwaySoon {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        match self.calls.fetch_add(1, Ordering::SeqCst) {
            0 => self.pool.query(sql, args).await,
            _ => Err(Error::TimedOut),
        }
    }
}

impl Autocommit for AwaySoon {}

/// Work that counts its runs; each run ends when it gets a permit.
struct Work {
    runs: AtomicU32,
    may_end: Semaphore,
}

impl Work {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            runs: AtomicU32::new(0),
            may_end: Semaphore::new(0),
        })
    }

    async fn once(&self) -> Response {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.may_end.acquire().await.unwrap().forget();
        let body = uuid::Uuid::new_v4().to_string();
        Response::new(201).with_body(&body).unwrap()
    }
}

fn twelve_times(key: &Key, wait: Duration, work: &Arc<Work>) -> JoinSet<Answer> {
    let (mut requests, pool) = (JoinSet::new(), pool());
    for _ in 0..12 {
        let (key, pool, work) = (key.clone(), pool.clone(), Arc::clone(work));
        requests.spawn(async move {
            let runner = key.run(&pool).wait(wait);
            let outcome = runner.run(|_| async { Ok(work.once().await.into()) }).await;
            Answer::of(&outcome.unwrap())
        });
    }
    requests
}

#[tokio::test]
async fn duplicates_that_wait_get_the_bytes_of_the_first_one_and_the_work_runs_once() {
    let work = Work::new();
    let mut requests = twelve_times(&fresh_key(), LONG, &work);
    until(|| work.runs.load(Ordering::SeqCst) > 0).await;
    tokio::time::sleep(Duration::from_millis(200)).await; // the duplicates poll meanwhile
    assert!(requests.try_join_next().is_none(), "nobody is answered yet");
    work.may_end.add_permits(12);

    let mut answers = vec![];
    while let Some(answer) = requests.join_next().await {
        answers.push(answer.unwrap());
    }
    assert_eq!(answers.len(), 12);
    assert!(answers.iter().all(|answer| answer.status == 201));
    assert!(answers.iter().all(|answer| answer.body == answers[0].body));
    let replayed = answers
        .iter()
        .filter(|a| a.header(IDEMPOTENT_REPLAYED).is_some());
    assert_eq!(replayed.count(), 11);
    assert_eq!(work.runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn duplicates_that_do_not_wait_are_told_to_come_back_in_a_second() {
    let work = Work::new();
    let mut requests = twelve_times(&fresh_key(), Duration::ZERO, &work);
    for _ in 0..11 {
        let refused = requests.join_next().await.unwrap().unwrap();
        let said = (refused.status, refused.header(RETRY_AFTER));
        assert_eq!(said, (409, Some("1")));
    }
    work.may_end.add_permits(12);
    assert_eq!(requests.join_next().await.unwrap().unwrap().status, 201);
    assert_eq!(work.runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_duplicate_waits_no_longer_than_it_was_told_to() {
    let (pool, key, up_to) = (pool(), fresh_key(), Duration::from_millis(200));
    let _lease = claimed(&key, &pool).await;
    let begun = Instant::now();
    let runner = key.run(&pool).wait(up_to);
    let outcome = runner.run(|_| async { panic!("not to run") }).await;
    assert!(matches!(outcome.unwrap(), Outcome::InProgress { .. }));
    assert!(begun.elapsed() >= up_to);
}

#[tokio::test]
async fn a_duplicate_that_waits_runs_the_request_if_the_first_one_fails() {
    let (pool, key) = (pool(), fresh_key());
    let lease = claimed(&key, &pool).await;
    let waiting = tokio::spawn({
        let (pool, key) = (pool.clone(), key.clone());
        async move {
            let runner = key.run(&pool).wait(LONG);
            runner
                .run(|_| async { Ok(Response::new(201).into()) })
                .await
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await; // it polls meanwhile
    lease.release(&pool, Some("not here"), None).await.unwrap();
    assert!(matches!(waiting.await.unwrap().unwrap(), Outcome::Ran(_)));
}

#[tokio::test]
async fn a_duplicate_does_not_fail_open_on_a_request_that_it_knows_to_be_in_progress() {
    let (pool, key) = (pool(), fresh_key());
    let _lease = claimed(&key, &pool).await;
    let calls = AtomicU32::new(0);
    let away = AwaySoon { pool, calls };
    let runner = key.run(&away).wait(LONG).backoff(QUICK);
    let run = runner.fail_open(|_| panic!("it would run twice"));
    let error = run.run(|_| async { panic!("not to run") }).await;
    assert_eq!(error.unwrap_err().kind(), Kind::Unavailable);
}

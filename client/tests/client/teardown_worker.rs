//! The teardown worker tears down every pending row, and no row stops it.

use std::io;
use std::time::{Duration, Instant};

use pg_once::{Kind, Machine, MachineRow, Waker};
use tokio::sync::{Notify, oneshot};

use crate::support::{Jobs, QUICK, named_pool, pool, until_idle};

/// Makes several jobs, each with a requested cancellation and no holder.
async fn left_behind(customers: &[&str]) -> Jobs {
    let jobs = Jobs::guarded().await;
    let mut ids = vec![jobs.id];
    for customer in customers {
        ids.push(jobs.another(customer).await);
    }
    for id in ids {
        jobs.machine
            .row(id)
            .cancel()
            .request(&jobs.pool)
            .await
            .unwrap();
    }
    jobs
}

async fn until_cancelled(jobs: &Jobs, how_many: i64) {
    let cancelled =
        format!("SELECT (count(*) = {how_many})::text FROM batch_job WHERE status = 'cancelled'");
    for _ in 0..1000 {
        if jobs.text(&cancelled).await == "true" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{how_many} jobs were not cancelled in time");
}

const SOON: Duration = Duration::from_millis(20);

#[tokio::test]
async fn what_is_left_behind_is_torn_down_until_the_worker_is_told_to_stop() {
    let jobs = left_behind(&["bob", "cyd"]).await;
    let worker = jobs
        .machine
        .teardown_worker(&jobs.pool)
        .poll_every(SOON)
        .batch(1);
    let clean = |_, _| async { Ok::<(), io::Error>(()) };
    let torn_down = worker.run(until_cancelled(&jobs, 3), clean).await.unwrap();
    assert_eq!((torn_down.cancelled, torn_down.failed), (3, 0));
    assert_eq!(jobs.pending().await, []);
}

#[tokio::test]
async fn a_row_that_cannot_be_torn_down_does_not_stop_the_others() {
    for panics in [false, true] {
        one_row_of_poison(panics).await;
    }
}

async fn one_row_of_poison(panics: bool) {
    // The oldest request is the poison one, and the worker takes one row at a time.
    let jobs = left_behind(&["bob", "cyd"]).await;
    let poison = jobs.job.clone();
    let worker = jobs
        .machine
        .teardown_worker(&jobs.pool)
        .poll_every(SOON)
        .batch(1);
    let clean = |row: MachineRow, _| {
        let fails = row == poison;
        async move {
            assert!(!(fails && panics), "it cannot be cleaned");
            match fails {
                true => Err(io::Error::other("the store is away")),
                false => Ok(()),
            }
        }
    };
    let torn_down = worker.run(until_cancelled(&jobs, 2), clean).await.unwrap();
    assert_eq!(torn_down.cancelled, 2);
    assert!(torn_down.failed >= 1);
    assert_eq!(jobs.pending().await, std::slice::from_ref(&jobs.job));
}

#[tokio::test]
async fn several_workers_tear_each_row_down_once() {
    let jobs = left_behind(&["bob", "cyd", "dan", "eve"]).await;
    jobs.execute("UPDATE batch_item SET state = 'succeeded'")
        .await;
    let clean = |_, _| async { Ok::<(), io::Error>(()) };
    let work = || {
        let worker = jobs.machine.teardown_worker(&jobs.pool).poll_every(SOON);
        worker.run(until_cancelled(&jobs, 5), clean)
    };
    let (one, two, three) = tokio::join!(work(), work(), work());
    for torn_down in [one, two, three] {
        assert_eq!(torn_down.unwrap().failed, 0);
    }
    let given_back = "SELECT string_agg(DISTINCT points::text, ' ') FROM wallet";
    assert_eq!(jobs.text(given_back).await, "130");
    jobs.assert_audited().await;
}

#[tokio::test]
async fn a_teardown_that_has_begun_is_brought_to_its_end_before_the_worker_stops() {
    let jobs = left_behind(&[]).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let mut stop = Some(stop);
    let shutdown = async { stopped.await.unwrap_or(()) };
    let worker = jobs.machine.teardown_worker(&jobs.pool);
    let clean = |_, _| {
        drop(stop.take()); // the signal comes during the teardown
        async { Ok::<(), io::Error>(()) }
    };
    let torn_down = worker.run(shutdown, clean).await.unwrap();
    assert_eq!(
        (torn_down.cancelled, jobs.status().await.as_str()),
        (1, "cancelled")
    );
}

#[tokio::test]
async fn a_teardown_that_has_no_end_is_dropped_when_the_grace_is_over() {
    let jobs = left_behind(&[]).await;
    let begun = Notify::new();
    let worker = jobs.machine.teardown_worker(&jobs.pool).grace(SOON);
    let clean = |_, _| {
        begun.notify_one();
        std::future::pending::<Result<(), io::Error>>()
    };
    let torn_down = worker.run(begun.notified(), clean).await.unwrap();
    assert_eq!((torn_down.cancelled, torn_down.failed), (0, 0));
    assert_eq!(jobs.pending().await, std::slice::from_ref(&jobs.job));
}

#[tokio::test]
async fn an_idle_teardown_worker_that_is_woken_need_not_wait_for_the_next_poll() {
    let jobs = Jobs::guarded().await;
    let (waker, (name, named)) = (Waker::new(), named_pool());
    let shutdown = async {
        let next_look = until_idle(&name).await;
        let begin = Instant::now();
        jobs.job.cancel().request(&jobs.pool).await.unwrap();
        waker.wake();
        until_cancelled(&jobs, 1).await;
        let took = begin.elapsed();
        assert!(took < next_look / 2, "{took:?} of {next_look:?}");
    };
    let worker = jobs.machine.teardown_worker(&named).waker(&waker);
    let worker = worker.poll_every(Duration::from_secs(3600));
    let clean = |_, _| async { Ok::<(), io::Error>(()) };
    worker.run(shutdown, clean).await.unwrap();
}

#[tokio::test]
async fn a_worker_for_a_machine_that_is_not_there_says_so() {
    let pool = pool();
    let machine = Machine::new("no such machine");
    let worker = machine.teardown_worker(&pool).backoff(QUICK);
    let clean = |_, _| async { Ok::<(), io::Error>(()) };
    let error = worker.run(std::future::pending(), clean).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Undeclared);
}

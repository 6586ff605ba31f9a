//! The teardown of one row: after a failure the next run starts from the beginning, and a failed cleanup ends the run.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use pg_once::{BoxError, CancelFinish, Cancelled, CleanupItem, Error, Kind, Machine};

use crate::proxy::Proxy;
use crate::support::{Jobs, QUICK};

/// Makes a job with two succeeded items and a requested cancellation.
async fn cancelling() -> Jobs {
    let jobs = Jobs::guarded().await;
    jobs.execute("UPDATE batch_item SET state = 'succeeded' WHERE artifact <> 'item-3'")
        .await;
    jobs.execute("UPDATE wallet SET points = points - 20").await;
    jobs.job.cancel().request(&jobs.pool).await.unwrap();
    jobs
}

async fn fine(_: Vec<CleanupItem>) -> Result<(), BoxError> {
    Ok(())
}

async fn tear_down(jobs: &Jobs) -> Result<Cancelled, Error> {
    jobs.job.cancel().teardown(&jobs.pool).run(fine).await
}

/// Asserts that the job is cancelled, and every point was refunded once.
async fn assert_torn_down(jobs: &Jobs) {
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("cancelled", 100)
    );
    jobs.assert_audited().await;
}

#[tokio::test]
async fn everything_is_given_back_and_listed_before_the_terminal_state() {
    let jobs = cancelling().await;
    let deleted = RefCell::new(BTreeSet::new());
    let teardown = jobs.job.cancel().teardown(&jobs.pool).page(2).max_items(1);
    let cancelled = teardown
        .run(async |items: Vec<CleanupItem>| {
            assert!(items.len() <= 2);
            assert_eq!(jobs.status().await, "queued");
            assert_eq!(jobs.points().await, 100);
            deleted
                .borrow_mut()
                .extend(items.into_iter().map(|item| item.item_id));
            Ok::<(), Error>(())
        })
        .await
        .unwrap();
    assert_eq!(
        (cancelled.items_total, cancelled.amount_total.as_str()),
        (3, "20")
    );
    assert_eq!(deleted.into_inner().len(), 3);
    assert_torn_down(&jobs).await;

    let again = tear_down(&jobs).await.unwrap();
    assert_eq!((again.items_total, again.amount_total.as_str()), (3, "20"));
    assert_torn_down(&jobs).await;
}

#[tokio::test]
async fn a_failed_cleanup_comes_back_and_the_row_is_not_cancelled() {
    let jobs = cancelling().await;
    let away = |_| async { Err(io::Error::other("the store is away")) };
    let teardown = jobs.job.cancel().teardown(&jobs.pool).backoff(QUICK);
    let error = teardown.run(away).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (Kind::Other, false));
    match error {
        Error::Other(cause) => assert_eq!(cause.to_string(), "the store is away"),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("queued", 100)
    );
    tear_down(&jobs).await.unwrap();
    assert_torn_down(&jobs).await;
}

#[tokio::test]
async fn a_teardown_that_nobody_asked_for_is_refused() {
    let jobs = Jobs::guarded().await;
    let error = tear_down(&jobs).await.unwrap_err();
    assert_eq!(error.kind(), Kind::IllegalTransition);
    assert_eq!(jobs.status().await, "queued");
}

#[tokio::test]
async fn a_machine_without_a_refund_has_nothing_but_the_terminal_move() {
    let jobs = Jobs::guarded().await;
    let definition = jobs.machine.get(&jobs.pool).await.unwrap();
    let mut definition: serde_json::Value = definition.parse().unwrap();
    definition.as_object_mut().unwrap().remove("refund");
    Machine::define(&jobs.pool, &definition.into())
        .await
        .unwrap();
    jobs.job.cancel().request(&jobs.pool).await.unwrap();
    let none = async |_| panic!("there is nothing to clean");
    let teardown = jobs.job.cancel().teardown(&jobs.pool);
    let cancelled = teardown.run::<_, _, BoxError>(none).await.unwrap();
    assert_eq!(cancelled.items_total, 0);
    assert_eq!(jobs.status().await, "cancelled");
}

/// An item that somebody inserts while the artifacts are being deleted.
const LATE_ITEM: &str = "INSERT INTO batch_item (job_id, input, points, artifact, state) \
    SELECT id, 'late', 10, 'late', 'pending' FROM batch_job";

#[tokio::test]
async fn an_item_that_comes_late_sends_the_teardown_back_to_the_top() {
    // The first page has three items. Then the late item is inserted. The teardown begins again, and gets all four
    // items in one page. With `marked_by_another`, a refund marks the late item, and it comes as a second page before.
    for (marked_by_another, pages) in [(false, 2), (true, 3)] {
        let jobs = cancelling().await;
        let listed = RefCell::new(0);
        let teardown = jobs.job.cancel().teardown(&jobs.pool).backoff(QUICK);
        let cancelled = teardown
            .run(async |_| {
                let first = listed.replace_with(|listed| *listed + 1) == 0;
                if first {
                    jobs.execute(LATE_ITEM).await;
                    if marked_by_another {
                        jobs.job.cancel().refund(&jobs.pool, None).await?;
                    }
                }
                Ok::<(), Error>(())
            })
            .await
            .unwrap();
        assert_eq!((cancelled.items_total, listed.into_inner()), (4, pages));
        assert_torn_down(&jobs).await;
    }
}

#[tokio::test]
async fn items_that_never_stop_coming_end_the_teardown_and_not_the_job() {
    let jobs = cancelling().await;
    let teardown = jobs.job.cancel().teardown(&jobs.pool).backoff(QUICK);
    let error = teardown
        .run(async |_| {
            jobs.execute(LATE_ITEM).await;
            Ok::<(), Error>(())
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::TeardownIncomplete);
    assert_eq!(jobs.status().await, "queued");
    tear_down(&jobs).await.unwrap();
    assert_torn_down(&jobs).await;
}

#[tokio::test]
async fn a_teardown_that_is_dropped_goes_on_from_the_top() {
    let jobs = cancelling().await;
    let hangs = |_| std::future::pending::<Result<(), BoxError>>();
    let teardown = jobs.job.cancel().teardown(&jobs.pool).run(hangs);
    // The teardown may or may not have reached the callback; the result must be the same.
    tokio::time::timeout(Duration::from_millis(200), teardown)
        .await
        .unwrap_err();
    assert_eq!(jobs.status().await, "queued");
    tear_down(&jobs).await.unwrap();
    assert_torn_down(&jobs).await;
}

#[tokio::test]
async fn an_answer_that_is_lost_on_the_way_changes_nothing() {
    for call in [
        "cancel_refund",
        "cancel_items",
        "cancel_confirm",
        "cancel_finish",
    ] {
        let jobs = cancelling().await;
        let proxy = Proxy::start().await;
        let pool = jobs.through(proxy.config());
        proxy.lose_answer_to(call);
        let teardown = jobs.job.cancel().teardown(&pool).backoff(QUICK);
        let cancelled = teardown.run(fine).await.unwrap();
        assert_eq!(
            (proxy.lost(), cancelled.amount_total.as_str()),
            (1, "20"),
            "{call}"
        );
        assert_torn_down(&jobs).await;
    }
}

#[tokio::test]
async fn ten_at_once_give_back_once_and_one_makes_the_move() {
    let jobs = cancelling().await;
    let all: Vec<_> = (0..10)
        .map(|_| {
            let (pool, cancel) = (jobs.pool.clone(), jobs.job.cancel());
            tokio::spawn(async move { cancel.teardown(&pool).backoff(QUICK).run(fine).await })
        })
        .collect();
    let mut moved = 0;
    for one in all {
        let cancelled = one.await.unwrap().unwrap();
        assert_eq!(cancelled.amount_total.as_str(), "20");
        moved += usize::from(cancelled.outcome == CancelFinish::Cancelled);
    }
    assert_eq!(moved, 1);
    assert_torn_down(&jobs).await;
}

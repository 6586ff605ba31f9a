//! The calls of a cancellation, one by one.

use pg_once::{CancelRequest, Kind};

use crate::support::{Jobs, code};

/// Marks two of three items as succeeded; the wallet pays for them.
async fn two_succeeded(jobs: &Jobs) {
    jobs.execute("UPDATE batch_item SET state = 'succeeded' WHERE artifact <> 'item-3'")
        .await;
    jobs.execute("UPDATE wallet SET points = points - 20").await;
}

#[tokio::test]
async fn a_request_says_who_has_to_tear_down() {
    let jobs = Jobs::new().await;
    let cancel = jobs.job.cancel();
    let action = jobs.claimed().await;
    let running = CancelRequest::Accepted {
        status: "running".to_owned(),
    };
    assert_eq!(cancel.request(&jobs.pool).await.unwrap(), running);
    action.release(&jobs.pool, None).await.unwrap();
    let queued = CancelRequest::Teardown {
        status: "queued".to_owned(),
    };
    assert_eq!(cancel.request(&jobs.pool).await.unwrap(), queued);

    let nobody = jobs.machine.row(999_999).cancel();
    assert_eq!(
        nobody.request(&jobs.pool).await.unwrap(),
        CancelRequest::NotFound
    );
}

#[tokio::test]
async fn a_request_for_what_has_ended_says_how_it_ended() {
    let jobs = Jobs::new().await;
    let cancel = jobs.job.cancel();
    cancel.request(&jobs.pool).await.unwrap();
    let pass = cancel.refund(&jobs.pool, None).await.unwrap().pass;
    assert!(cancel.confirm(&jobs.pool, pass).await.unwrap());
    cancel.finish(&jobs.pool, None).await.unwrap();
    let done = CancelRequest::Done {
        status: "cancelled".to_owned(),
    };
    assert_eq!(cancel.request(&jobs.pool).await.unwrap(), done);

    let other = jobs.machine.row(jobs.another("bob").await);
    jobs.execute("UPDATE batch_job SET status = 'done' WHERE customer = 'bob'")
        .await;
    let too_late = CancelRequest::TooLate {
        status: "done".to_owned(),
    };
    assert_eq!(other.cancel().request(&jobs.pool).await.unwrap(), too_late);
}

#[tokio::test]
async fn a_refund_marks_all_and_gives_back_what_matches_and_adds_nothing_twice() {
    let jobs = Jobs::new().await;
    two_succeeded(&jobs).await;
    let cancel = jobs.job.cancel();
    cancel.request(&jobs.pool).await.unwrap();
    for (items, amount) in [(3, "20"), (0, "0")] {
        let refunded = cancel.refund(&jobs.pool, None).await.unwrap();
        assert_eq!((refunded.items, refunded.amount.as_str()), (items, amount));
        assert_eq!(
            (refunded.items_total, refunded.amount_total.as_str()),
            (3, "20")
        );
        assert_eq!((refunded.remaining, refunded.pass), (false, 1));
    }
    assert_eq!(jobs.points().await, 100);
    assert!(cancel.audit(&jobs.pool).await.unwrap().is_none());
}

#[tokio::test]
async fn refunds_and_lists_may_be_cut_into_pages() {
    let jobs = Jobs::new().await;
    two_succeeded(&jobs).await;
    let cancel = jobs.job.cancel();
    cancel.request(&jobs.pool).await.unwrap();
    for remaining in [true, true, false] {
        let refunded = cancel.refund(&jobs.pool, Some(1)).await.unwrap();
        assert_eq!((refunded.items, refunded.remaining), (1, remaining));
    }
    assert_eq!(jobs.points().await, 100);

    let first = cancel.items(&jobs.pool, None, 2).await.unwrap();
    let last = first.last().unwrap().item_id.clone();
    let second = cancel.items(&jobs.pool, Some(&last), 2).await.unwrap();
    assert_eq!((first.len(), second.len()), (2, 1));
    let row: serde_json::Value = second[0].item.parse().unwrap();
    assert_eq!(
        (&row["artifact"], &row["settled"]),
        (&"item-3".into(), &"returned".into())
    );
}

#[tokio::test]
async fn the_steps_of_a_teardown_keep_their_order() {
    let jobs = Jobs::new().await;
    let cancel = jobs.job.cancel();
    let early = cancel.refund(&jobs.pool, None).await.unwrap_err();
    assert_eq!(
        (early.code(), early.kind()),
        (Some("ON002"), Kind::IllegalTransition)
    );

    cancel.request(&jobs.pool).await.unwrap();
    let incomplete = cancel.finish(&jobs.pool, None).await.unwrap_err();
    let seen = (
        incomplete.code(),
        incomplete.kind(),
        incomplete.is_retryable(),
    );
    assert_eq!(seen, (Some("ON005"), Kind::TeardownIncomplete, false));

    let pass = cancel.refund(&jobs.pool, None).await.unwrap().pass;
    assert_eq!(code(cancel.finish(&jobs.pool, None).await), "ON005");
    assert_eq!(code(cancel.confirm(&jobs.pool, pass + 1).await), "22023");
    assert!(cancel.confirm(&jobs.pool, pass).await.unwrap());
    let cancelled = cancel.finish(&jobs.pool, None).await.unwrap();
    assert_eq!(
        (cancelled.status.as_str(), cancelled.items_total),
        ("cancelled", 3)
    );
}

#[tokio::test]
async fn what_waits_for_its_teardown_is_listed() {
    let jobs = Jobs::new().await;
    assert_eq!(jobs.pending().await, []);
    let action = jobs.claimed().await;
    jobs.job.cancel().request(&jobs.pool).await.unwrap();
    assert_eq!(jobs.pending().await, []);
    action.release(&jobs.pool, None).await.unwrap();
    jobs.job.cancel().refund(&jobs.pool, Some(2)).await.unwrap();
    let pending = jobs.machine.cancel_pending(&jobs.pool, 10).await.unwrap();
    assert_eq!((pending.len(), &pending[0].row), (1, &jobs.job));
    assert_eq!(
        (pending[0].status.as_str(), pending[0].items_total),
        ("queued", 2)
    );
    assert_eq!(pending[0].amount_total.as_str(), "0");
}

#[tokio::test]
async fn a_marker_that_was_set_by_hand_is_shown_by_the_audit() {
    let jobs = Jobs::new().await;
    two_succeeded(&jobs).await;
    jobs.execute("UPDATE batch_item SET settled = 'returned' WHERE artifact = 'item-1'")
        .await;
    let found = jobs.machine.cancel_audit(&jobs.pool).await.unwrap();
    assert_eq!((found.len(), &found[0].row), (1, &jobs.job));
    assert_eq!(found[0].marked_amount.parse::<i64>(), Ok(10));
    assert_eq!(found[0].refunded_amount.as_str(), "0");
    assert_eq!(found[0].difference.as_str(), "-10");
    assert!(jobs.job.cancel().audit(&jobs.pool).await.unwrap().is_some());
}

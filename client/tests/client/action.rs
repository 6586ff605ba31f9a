//! An action from its claim to its end, and an action whose lease is lost.

use std::time::Duration;

use pg_once::{ActionClaim, ActionEnd, ActionOptions, Error, Json, Kind};

use crate::support::{Jobs, code, worker};

fn lost<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    let seen = (error.code(), error.kind(), error.is_retryable());
    assert_eq!(seen, (Some("ON001"), Kind::LeaseLost, false));
}

#[tokio::test]
async fn a_claimed_row_wears_the_claim_state_and_a_finished_one_the_successful_state() {
    let jobs = Jobs::new().await;
    let action = jobs.claimed().await;
    assert_eq!((action.status(), action.version()), ("running", Some(1)));
    assert_eq!((action.step_key(), action.row()), ("run", &jobs.job));
    assert!(action.lease_left() > Duration::from_secs(20));
    assert_eq!(jobs.status().await, "running");

    let extended = action.extend(&jobs.pool, None).await.unwrap();
    assert!(!extended.cancelling && extended.lease_left > Duration::from_secs(20));

    let result = Json::from_text(r#"{"result": "3 pages"}"#);
    let end = action.finish(&jobs.pool, Some(&result)).await.unwrap();
    let finished = ActionEnd::Finished {
        status: "done".to_owned(),
        version: Some(2),
    };
    assert_eq!(end, finished);
    assert_eq!(jobs.text("SELECT result FROM batch_job").await, "3 pages");
    // If the answer of finish was lost, the same call again raises ON006.
    assert_eq!(
        code(action.finish(&jobs.pool, Some(&result)).await),
        "ON006"
    );
}

#[tokio::test]
async fn an_action_that_is_finished_is_not_finished_otherwise_extended_or_released() {
    let jobs = Jobs::new().await;
    let action = jobs.claimed().await;
    action.finish(&jobs.pool, None).await.unwrap();
    let other = Json::from_text(r#"{"result": "another"}"#);
    assert_eq!(code(action.finish(&jobs.pool, Some(&other)).await), "ON006");
    assert_eq!(code(action.extend(&jobs.pool, None).await), "ON006");
    let error = action.release(&jobs.pool, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyDone);
}

#[tokio::test]
async fn a_claim_that_is_not_given_says_why() {
    let jobs = Jobs::new().await;
    let (pool, job) = (&jobs.pool, &jobs.job);
    let nobody = jobs.machine.row(999_999);
    assert_eq!(
        nobody.claim(pool, "run", &worker()).await.unwrap(),
        ActionClaim::NotFound
    );
    let stale = job.claim(pool, "run", &worker().version(7)).await.unwrap();
    let queued = ActionClaim::Refused {
        status: "queued".to_owned(),
        version: Some(0),
    };
    assert_eq!(stale, queued);
    let stranger = ActionOptions::new().requester("stranger");
    assert_eq!(job.claim(pool, "run", &stranger).await.unwrap(), queued);
    assert_eq!(
        code(job.claim(pool, "no such step", &worker()).await),
        "22023"
    );

    let action = jobs.claimed().await;
    match job.claim(pool, "run", &worker()).await.unwrap() {
        ActionClaim::InProgress { retry_after } => assert!(!retry_after.is_zero()),
        other => panic!("{other:?}"),
    }
    action.release(pool, None).await.unwrap();
    job.cancel().request(pool).await.unwrap();
    assert_eq!(
        job.claim(pool, "run", &worker()).await.unwrap(),
        ActionClaim::Cancelling
    );
}

#[tokio::test]
async fn the_same_holder_gets_its_own_lease_back() {
    let jobs = Jobs::new().await;
    let holder = worker();
    let first = jobs.job.claim(&jobs.pool, "run", &holder).await.unwrap();
    let again = jobs.job.claim(&jobs.pool, "run", &holder).await.unwrap();
    match (first, again) {
        (ActionClaim::Claimed(first), ActionClaim::Claimed(again)) => {
            assert_eq!(first.token(), again.token());
            again.release(&jobs.pool, None).await.unwrap();
        }
        claims => panic!("{claims:?}"),
    }
}

#[tokio::test]
async fn a_released_row_can_be_claimed_again() {
    let jobs = Jobs::new().await;
    let first = jobs.claimed().await;
    let released = first
        .release(&jobs.pool, Some("the service is away"))
        .await
        .unwrap();
    assert_eq!(
        (released.status.as_str(), released.version),
        ("queued", Some(2))
    );
    // If the answer of release was lost, the same call again gives the same answer.
    let again = first
        .release(&jobs.pool, Some("the service is away"))
        .await
        .unwrap();
    assert_eq!(again, released);
    let second = jobs.claimed().await;
    assert!(second.token() > first.token());
    lost(first.release(&jobs.pool, Some("the service is away")).await);
    second.release(&jobs.pool, None).await.unwrap();
}

#[tokio::test]
async fn a_short_lease_stays_short_when_it_is_extended() {
    let jobs = Jobs::new().await;
    let short = Duration::from_secs(2);
    let claim = jobs
        .job
        .claim(&jobs.pool, "run", &worker().lease(short))
        .await
        .unwrap();
    let ActionClaim::Claimed(action) = claim else {
        panic!("{claim:?}")
    };
    assert!(action.extend(&jobs.pool, None).await.unwrap().lease_left <= short);
    let long = Some(Duration::from_secs(60));
    assert!(action.extend(&jobs.pool, long).await.unwrap().lease_left > short);
    action.release(&jobs.pool, None).await.unwrap();
}

#[tokio::test]
async fn every_write_with_a_lost_lease_is_refused() {
    let jobs = Jobs::new().await;
    let action = jobs.claimed().await;
    jobs.swept_later().await;
    assert_eq!(jobs.status().await, "queued");
    lost(action.extend(&jobs.pool, None).await);
    lost(action.finish(&jobs.pool, None).await);
    lost(action.release(&jobs.pool, None).await);
}

#[tokio::test]
async fn an_item_of_a_lost_lease_cannot_commit() {
    let jobs = Jobs::new().await;
    let action = jobs.claimed().await;
    jobs.swept_later().await;
    let mut client = jobs.pool.get().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let item = "UPDATE batch_item SET state = 'succeeded'";
    transaction.execute(item, &[]).await.unwrap();
    lost(action.extend(&transaction, None).await);
    drop(transaction);
    let pending = "SELECT count(*)::text FROM batch_item WHERE state = 'pending'";
    assert_eq!(jobs.text(pending).await, "3");
}

#[tokio::test]
async fn a_holder_hears_of_the_cancellation_and_finishes_nothing() {
    let jobs = Jobs::new().await;
    let action = jobs.claimed().await;
    jobs.job.cancel().request(&jobs.pool).await.unwrap();
    assert!(action.extend(&jobs.pool, None).await.unwrap().cancelling);
    let end = action.finish(&jobs.pool, None).await.unwrap();
    assert_eq!(
        (end, jobs.status().await.as_str()),
        (ActionEnd::Cancelling, "running")
    );
    action.release(&jobs.pool, None).await.unwrap();
    assert_eq!(jobs.status().await, "queued");
}

#[tokio::test]
async fn a_row_that_came_in_a_claim_state_is_adopted_and_given_back() {
    let jobs = Jobs::new().await;
    jobs.execute("UPDATE batch_job SET status = 'running'")
        .await;
    assert_eq!(jobs.machine.adopt(&jobs.pool, 1000).await.unwrap(), 1);
    assert_eq!(jobs.machine.adopt(&jobs.pool, 1000).await.unwrap(), 0);
    jobs.swept_later().await;
    assert_eq!(jobs.status().await, "queued");
}

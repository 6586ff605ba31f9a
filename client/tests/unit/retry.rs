//! Unit tests of src/retry.rs.

#![allow(clippy::unwrap_used)] // a test may panic

use super::*;
use deadpool_postgres::{PoolError, TimeoutType};
use std::cell::Cell;

const QUICK: Backoff = Backoff {
    base: Duration::from_millis(2),
    cap: Duration::from_millis(5),
    tries: 4,
    call_timeout: Duration::from_millis(20),
};

#[test]
fn waits_double_up_to_the_cap_and_are_jittered_below_it() {
    let backoff = Backoff {
        base: Duration::from_millis(100),
        cap: Duration::from_secs(1),
        ..QUICK
    };
    let ceilings: Vec<u128> = (1..=6).map(|n| backoff.ceiling(n).as_millis()).collect();
    assert_eq!(ceilings, [100, 200, 400, 800, 1000, 1000]);
    assert_eq!(backoff.ceiling(u32::MAX), backoff.cap);
    let waits: Vec<Duration> = (0..200).map(|_| backoff.wait(4)).collect();
    assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(800)));
    assert!(waits.iter().any(|wait| *wait < Duration::from_millis(400)));
    assert!(waits.iter().any(|wait| *wait > Duration::from_millis(400)));
}

#[test]
fn a_loop_without_a_bound_never_goes_on_at_once_whatever_the_settings() {
    let none = Backoff {
        base: Duration::ZERO,
        cap: Duration::ZERO,
        ..QUICK
    };
    assert_eq!(
        (none.wait(9), none.pause(9)),
        (Duration::ZERO, SHORTEST_PAUSE)
    );
}

#[tokio::test]
async fn an_unanswered_call_is_tried_as_often_as_said_and_a_final_error_once() {
    let calls = Cell::new(0);
    let never = QUICK.retry(|| {
        calls.set(calls.get() + 1);
        std::future::pending::<Result<(), Error>>()
    });
    assert!(matches!(never.await, Err(Error::TimedOut)));
    assert_eq!(calls.replace(0), 4);

    let refused = QUICK.retry(|| {
        calls.set(calls.get() + 1);
        std::future::ready(Err::<(), _>(Error::Answer("no".into())))
    });
    assert!(matches!(refused.await, Err(Error::Answer(_))));
    assert_eq!(calls.get(), 1);
}

#[tokio::test]
async fn the_write_that_ends_a_lease_is_tried_until_the_lease_is_over_and_fails_with_the_last_answer()
 {
    let calls = Cell::new(0);
    let began = Instant::now();
    let ends = QUICK.insist(Duration::from_millis(500), || {
        calls.set(calls.get() + 1);
        let calls = calls.get();
        async move {
            match calls {
                1 => Err(Error::TimedOut),
                2 => Err(Error::Pool(PoolError::Timeout(TimeoutType::Wait))),
                _ => std::future::pending::<Result<(), Error>>().await,
            }
        }
    });
    assert!(matches!(ends.await, Err(Error::Pool(_))));
    assert!(began.elapsed() >= Duration::from_millis(500));
    assert!(calls.get() > 2);
}

#[tokio::test]
async fn it_ends_with_the_first_success() {
    let calls = Cell::new(0);
    let third = QUICK.retry(|| {
        calls.set(calls.get() + 1);
        let calls = calls.get();
        async move {
            if calls < 3 {
                Err(Error::TimedOut)
            } else {
                Ok(calls)
            }
        }
    });
    assert!(matches!(third.await, Ok(3)));
}

/// Makes a foreign call whose tries have these results; returns the number of tries and the last result.
async fn foreign(ends: Vec<Result<u8, Failure>>) -> (usize, Result<u8, Failure>) {
    let (mut ends, tries) = (ends.into_iter(), Cell::new(0));
    let ended = QUICK.foreign(|| {
        tries.set(tries.get() + 1);
        std::future::ready(ends.next().unwrap())
    });
    let ended = ended.await;
    (tries.get(), ended)
}

#[tokio::test]
async fn a_foreign_call_is_made_again_only_where_that_may_help_and_is_due_soon() {
    let retry = || Err(Failure::retry("503"));
    let soon = Err(Failure::retry_after("503", QUICK.cap));
    let (tries, ended) = foreign(vec![retry(), soon, Ok(1)]).await;
    assert!(matches!((tries, ended), (3, Ok(1))));

    let (tries, ended) = foreign((0..4).map(|_| retry()).collect()).await;
    assert!(matches!((tries, ended), (4, Err(Failure::Retry { .. }))));

    let late = QUICK.cap + Duration::from_millis(1);
    for end in [
        Failure::retry_after("429", late),
        Failure::unknown("no answer"),
        Failure::Abort(crate::Response::new(402)),
    ] {
        let expected = format!("{end:?}");
        let (tries, ended) = foreign(vec![Err(end), Ok(1)]).await;
        assert_eq!((tries, format!("{:?}", ended.unwrap_err())), (1, expected));
    }
}

#[tokio::test]
async fn a_foreign_call_waits_as_long_as_the_other_side_says() {
    let began = Instant::now();
    let soon = Err(Failure::retry_after("503", QUICK.cap));
    assert!(foreign(vec![soon, Ok(1)]).await.1.is_ok());
    assert!(began.elapsed() >= QUICK.cap);
}

/// Tests that this compiles: a handler's future must be `Send`, and so must a call inside it.
#[tokio::test]
async fn a_foreign_call_can_be_made_in_a_task() {
    let (bank, mut tries) = (String::from("bank"), 0);
    let task = tokio::spawn(async move {
        let bank = &bank;
        let ask = || {
            tries += 1;
            async move {
                tokio::task::yield_now().await;
                match tries {
                    1 => Err(Failure::retry("503")),
                    _ => Ok(bank.as_str()),
                }
            }
        };
        assert_eq!(QUICK.foreign(ask).await?, "bank");
        QUICK.foreign(async || Ok(bank.len())).await
    });
    assert!(matches!(task.await, Ok(Ok(4))));
}

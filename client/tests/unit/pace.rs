//! Unit tests of src/run/pace.rs.

use super::*;
use std::cell::Cell;

const QUICK: Backoff = Backoff {
    base: Duration::from_millis(1),
    cap: Duration::from_millis(2),
    tries: 2,
    call_timeout: Duration::from_millis(20),
};

/// A worker's loop with the settings that the tests change.
struct Loop {
    pace: Pace,
}

impl Loop {
    settings!(concurrency poll_every backoff waker);
}

fn paced(poll_every: Duration) -> Loop {
    let pace = Pace::new(1, Duration::MAX);
    Loop { pace }.poll_every(poll_every).backoff(QUICK)
}

fn slots() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

fn pace(poll_every: Duration) -> Pace {
    paced(poll_every).pace
}

#[test]
fn an_idle_worker_asks_less_and_less_often_up_to_the_longest_wait() {
    let (_stage, seen) = watch::channel(Stage::Run);
    let pace = pace(Duration::from_secs(1));
    let mut intake = pace.intake(&"a test", None, &seen);
    let waits: Vec<Duration> = (0..10).map(|_| intake.next_wait()).collect();
    assert!(waits[0] <= FIRST_WAIT, "{waits:?}");
    assert!(waits[8] >= Duration::from_millis(500), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(1)));
    intake.found();
    assert!(intake.next_wait() <= FIRST_WAIT);
}

#[test]
fn no_setting_makes_a_worker_ask_without_a_wait_or_work_at_nothing() {
    let (_stage, seen) = watch::channel(Stage::Run);
    let pace = paced(Duration::ZERO).concurrency(0).pace;
    assert!(pace.intake(&"a test", None, &seen).next_wait() > Duration::ZERO);
    assert_eq!(pace.concurrency, 1);
}

#[tokio::test]
async fn many_wake_ups_while_the_worker_is_busy_are_one_and_it_is_not_lost() {
    let (_stage, seen) = watch::channel(Stage::Run);
    let (hour, waker) = (Duration::from_secs(3600), Waker::new());
    let pace = paced(hour).waker(&waker).pace;
    let mut intake = pace.intake(&"a test", None, &seen);
    intake.wait = hour;
    for _ in 0..5 {
        waker.wake(); // nobody waits yet
    }
    intake.idle().await; // waits an hour if the wake-up was lost
    assert_eq!(intake.wait, FIRST_WAIT);
    intake.wait = hour;
    let again = tokio::time::timeout(Duration::from_millis(50), intake.idle());
    assert!(again.await.is_err());
}

#[tokio::test]
async fn asking_goes_on_beyond_the_tries_and_ends_when_the_worker_is_told_to() {
    let (stage, seen) = watch::channel(Stage::Run);
    let pace = pace(Duration::from_secs(1));
    let mut intake = pace.intake(&"a test", Some(0), &seen);
    let (calls, one) = (Cell::new(0), slots());
    let away = || {
        // After the first failure the slot is free for the other shards.
        assert_eq!(one.available_permits(), calls.get().min(1));
        calls.set(calls.get() + 1);
        if calls.get() == 5 {
            stage.send_replace(Stage::Finish);
        }
        std::future::ready(Err::<(), _>(Error::TimedOut))
    };
    let answer = intake.ask(&one, away).await;
    assert!(matches!(answer, Ok(None)), "{answer:?}");
    assert_eq!(calls.get(), 5);
    let answer = intake.ask(&slots(), || std::future::ready(Ok(()))).await;
    assert!(
        matches!(answer, Ok(None)),
        "it asks for nothing more: {answer:?}"
    );
}

#[tokio::test]
async fn an_error_that_is_final_is_told_at_once() {
    let (_stage, seen) = watch::channel(Stage::Run);
    let pace = pace(Duration::from_secs(1));
    let refused = || std::future::ready(Err::<(), _>(Error::Answer("no".into())));
    let answer = pace
        .intake(&"a test", None, &seen)
        .ask(&slots(), refused)
        .await;
    assert!(matches!(answer, Err(Error::Answer(_))));
}

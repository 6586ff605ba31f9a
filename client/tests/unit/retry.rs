//! Unit tests of src/retry.rs.

use super::*;
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

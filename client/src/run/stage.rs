//! Owns a worker's way to its end, the same for every loop: told to stop, it takes nothing more; what is
//! at work goes on for a while; what is not done then is stopped and given back.
//!
//! Invariant: stages only go forward, and a call to the server that is on its way is never dropped for
//! them: what it leases would be nobody's.

use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::{Backoff, Error};

/// How far a worker is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Take, begin, finish.
    Run,
    /// Begin nothing; what is at work goes on.
    Finish,
    /// What is still at work is stopped and given back.
    GiveBack,
}

/// Waits until the worker has come to that stage; a worker that is gone has.
pub(super) async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) {
    // An error says that the sender is gone.
    let _ = stage.wait_for(|now| *now >= wanted).await;
}

/// Runs the loop until it ends by itself; when `shutdown` completes it is told to finish, and waited for.
pub(super) async fn until_told<T>(
    stage: &watch::Sender<Stage>,
    shutdown: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        ended = &mut work => ended,
        () = shutdown => {
            stage.send_replace(Stage::Finish);
            work.await
        }
    }
}

/// Asks for work until there is an answer, with backoff, or until the worker is told to stop; a call that
/// is on its way is waited for. Tells when it was sent.
pub(super) async fn until_answered<T, F, Fut>(
    whose: &impl Debug,
    backoff: &Backoff,
    stage: &mut watch::Receiver<Stage>,
    mut call: F,
) -> Result<Option<(Instant, T)>, Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Error>>,
{
    let mut failures = 0;
    loop {
        let sent = Instant::now();
        let answer = timeout(backoff.call_timeout, call()).await;
        let error = match answer.unwrap_or(Err(Error::TimedOut)) {
            Ok(answer) => return Ok(Some((sent, answer))),
            Err(error) if error.is_retryable() => error,
            Err(error) => return Err(error),
        };
        failures += 1;
        let wait = backoff.wait(failures);
        tracing::warn!(?whose, %error, failures, ?wait, "asking for work failed");
        tokio::select! {
            biased;
            () = reached(stage, Stage::Finish) => return Ok(None),
            () = sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::time::Duration;

    const QUICK: Backoff = Backoff {
        base: Duration::from_millis(1),
        cap: Duration::from_millis(2),
        tries: 2,
        call_timeout: Duration::from_millis(20),
    };

    #[tokio::test]
    async fn a_worker_that_is_told_to_stop_is_waited_for_and_what_it_says_is_told() {
        let (stage, mut seen) = watch::channel(Stage::Run);
        let work = async {
            reached(&mut seen, Stage::Finish).await;
            tokio::task::yield_now().await; // what it is at
            7
        };
        assert_eq!(until_told(&stage, async {}, work).await, 7);
        assert_eq!(*stage.borrow(), Stage::Finish);
    }

    #[tokio::test]
    async fn asking_goes_on_beyond_the_tries_and_ends_when_the_worker_is_told_to() {
        let (stage, mut seen) = watch::channel(Stage::Run);
        let calls = Cell::new(0);
        let away = || {
            calls.set(calls.get() + 1);
            if calls.get() == 5 {
                stage.send_replace(Stage::Finish);
            }
            std::future::ready(Err::<(), _>(Error::TimedOut))
        };
        let answer = until_answered(&"a test", &QUICK, &mut seen, away).await;
        assert!(matches!(answer, Ok(None)), "{answer:?}");
        assert_eq!(calls.get(), 5);
    }

    #[tokio::test]
    async fn an_error_that_is_final_is_told_at_once() {
        let (_stage, mut seen) = watch::channel(Stage::Run);
        let refused = || std::future::ready(Err::<(), _>(Error::Answer("no".into())));
        let answer = until_answered(&"a test", &QUICK, &mut seen, refused).await;
        assert!(matches!(answer, Err(Error::Answer(_))));
    }
}

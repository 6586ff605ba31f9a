//! Unit tests of src/run/stage.rs.

use super::*;

/// Waits for the stage `Finish`, then returns `ended`.
async fn told(mut seen: watch::Receiver<Stage>, ended: Result<(), Error>) -> Result<(), Error> {
    reached(&mut seen, Stage::Finish).await;
    tokio::task::yield_now().await; // finishes its present work
    ended
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_is_waited_for_and_what_it_says_is_told() {
    let (stage, seen) = watch::channel(Stage::Run);
    let loops = [Ok(()), Err(Error::TimedOut)].map(|ended| told(seen.clone(), ended));
    let ended = until_told(&stage, async {}, loops.into_iter()).await;
    assert!(matches!(ended, Err(Error::TimedOut)), "{ended:?}");
    assert_eq!(*stage.borrow(), Stage::Finish);
}

#[tokio::test]
async fn a_loop_that_fails_ends_the_others() {
    let (stage, seen) = watch::channel(Stage::Run);
    let failing = async { Err(Error::TimedOut) };
    let loops = [Ok(told(seen, Ok(()))), Err(failing)].map(async |one| match one {
        Ok(other) => other.await,
        Err(failing) => failing.await,
    });
    let ended = until_told(&stage, std::future::pending(), loops.into_iter()).await;
    assert!(matches!(ended, Err(Error::TimedOut)), "{ended:?}");
}

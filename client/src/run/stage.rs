//! Owns the end of a worker, the same for every loop. Told to stop, it takes no more work; running
//! handlers go on for the grace time; then they are stopped and their work is released.
//!
//! Invariant: stages only go forward, and none of them drops a call to the server that is on its way. Otherwise
//! the leases that the call took would have to expire.

use std::future::Future;
use std::pin::pin;

use tokio::sync::watch;

/// The stages of a worker's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Take, begin, finish.
    Run,
    /// Begin nothing; running handlers go on.
    Finish,
    /// Handlers that still run are stopped, and their work is released.
    GiveBack,
}

/// Waits until the worker has come to that stage; a worker that is gone has come to every stage.
pub(super) async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) {
    // An error says that the sender is gone.
    let _ = stage.wait_for(|now| *now >= wanted).await;
}

/// Runs the loop until it ends by itself; when `shutdown` completes, it tells the loop to finish,
/// and waits for it.
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

#[cfg(test)]
#[path = "../../tests/unit/stage.rs"]
mod tests;

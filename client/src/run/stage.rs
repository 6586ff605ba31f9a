//! Owns the end of a worker, the same for every loop. Told to stop, it takes no more work; running
//! handlers go on for the grace time; then they are stopped and their work is released.
//!
//! Invariant: stages only go forward, and none of them drops a call to the server that is on its way. Otherwise
//! the leases that the call took would have to expire.

use std::future::Future;
use std::pin::pin;

use futures_util::TryFutureExt;
use futures_util::future::join_all;
use tokio::sync::watch;

use crate::Error;

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

/// Runs the loops until all have ended by themselves. When `shutdown` completes, or one of them fails, the others are
/// told to finish, and waited for.
pub(super) async fn until_told<F>(
    stage: &watch::Sender<Stage>,
    shutdown: impl Future<Output = ()>,
    loops: impl Iterator<Item = F>,
) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>>,
{
    let finish = || {
        stage.send_replace(Stage::Finish);
    };
    let mut work = pin!(join_all(loops.map(|one| one.inspect_err(|_| finish()))));
    let ended = tokio::select! {
        biased;
        ended = &mut work => ended,
        () = shutdown => {
            finish();
            work.await
        }
    };
    ended.into_iter().collect()
}

#[cfg(test)]
#[path = "../../tests/unit/stage.rs"]
mod tests;

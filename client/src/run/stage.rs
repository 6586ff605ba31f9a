//! Owns the end of a worker. A worker that is told to stop takes no more work; running handlers go on for the grace
//! time; then they are stopped and their leases are released.
//!
//! Invariant: stages only go forward, and no stage drops a take that is on its way, because the leases of that take
//! would have to expire.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tokio::sync::watch;

use crate::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Run,
    /// Begin nothing; running handlers go on.
    Finish,
    /// Handlers that still run are stopped, and their leases are released.
    GiveBack,
}

/// Waits until the worker has reached this stage. Returns at once if the worker is gone.
pub(super) async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) {
    let _ = stage.wait_for(|now| *now >= wanted).await;
}

/// Runs the loops until all have ended by themselves. When `shutdown` completes or a loop fails, tells the loops that
/// still run to finish, and waits for them. Returns the first error.
pub(super) async fn until_told<F>(
    stage: &watch::Sender<Stage>,
    shutdown: impl Future<Output = ()>,
    loops: impl Iterator<Item = F>,
) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>>,
{
    let (mut work, mut failed): (Vec<_>, _) = (loops.map(Box::pin).collect(), None);
    let mut all = pin!(poll_fn(|context| {
        work.retain_mut(|each| {
            let Poll::Ready(ended) = each.as_mut().poll(context) else {
                return true;
            };
            if let Err(error) = ended {
                stage.send_replace(Stage::Finish);
                failed.get_or_insert(error);
            }
            false
        });
        match work.is_empty() {
            true => Poll::Ready(failed.take().map_or(Ok(()), Err)),
            false => Poll::Pending,
        }
    }));
    tokio::select! {
        biased;
        ended = &mut all => ended,
        () = shutdown => {
            stage.send_replace(Stage::Finish);
            all.await
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/stage.rs"]
mod tests;

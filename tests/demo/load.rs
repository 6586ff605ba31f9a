//! An open loop: everything starts at its own time.
//!
//! Invariant: arrivals do not wait for answers, so a slow or dead service does not get less to do, as
//! it would not in life.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::progress::Progress;

/// Serves all of them, which are in the order of their start; ends when every service has.
pub async fn open_loop<T, F>(
    all: &[T],
    starts: impl Fn(&T) -> Duration,
    progress: &Progress,
    serve: impl Fn(&T) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let begin = Instant::now();
    let mut running = JoinSet::new();
    for one in all {
        tokio::time::sleep_until(begin + starts(one)).await;
        running.spawn(serve(one));
        while running.try_join_next().is_some() {
            progress.one_done();
        }
    }
    while running.join_next().await.is_some() {
        progress.one_done();
    }
}

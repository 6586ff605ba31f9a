//! Waiting for what a load leaves behind to end.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Waits until everything has ended, or nothing has changed for `quiet`. `look` tells whether all is
/// over, and something that changes while it is not.
pub async fn settle<T: PartialEq>(
    quiet: Duration,
    look: impl AsyncFn() -> Result<(bool, T)>,
) -> Result<()> {
    let (mut over, mut seen) = look().await?;
    let mut since = Instant::now();
    while !over && since.elapsed() < quiet {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = look().await?;
        over = now.0;
        if now.1 != seen {
            (seen, since) = (now.1, Instant::now());
        }
    }
    Ok(())
}

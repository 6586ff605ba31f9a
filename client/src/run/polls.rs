//! Owns the polls of a duplicate that waits for the first request's answer.
//!
//! Invariant: a duplicate polls until the time to wait is over. Even the last wait ends with a poll, and the duplicate
//! awaits the answer to this poll. The waits are random, so that duplicates that came together do not ask together.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::pace::jittered;

/// The first wait; the wait then doubles, up to `LONGEST`.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(500);

pub(super) struct Polls {
    begun: Instant,
    up_to: Duration,
    wait: Duration,
}

impl Polls {
    pub(super) fn up_to(up_to: Duration) -> Self {
        Self {
            begun: Instant::now(),
            up_to,
            wait: FIRST,
        }
    }

    /// Waits until the next poll is due; `false` if the time to wait is over.
    pub(super) async fn next(&mut self) -> bool {
        let left = self.up_to.saturating_sub(self.begun.elapsed());
        if left.is_zero() {
            return false;
        }
        sleep(jittered(self.wait).min(left)).await;
        self.wait = self.wait.saturating_mul(2).min(LONGEST);
        true
    }
}

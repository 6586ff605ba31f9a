//! Owns the state of a running action: the time of the server's last answer, and whether the row is
//! being cancelled.
//!
//! Invariant: a cancellation stays known, since nothing clears a cancel flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::super::heartbeat::Leased;
use crate::{Action, Error, Executor};

/// An action, watched.
pub(super) struct Watch<'a> {
    action: &'a Action,
    cancelling: AtomicBool,
    heard: Mutex<Instant>,
}

impl<'a> Watch<'a> {
    /// `since`: when the claim was sent.
    pub(super) fn new(action: &'a Action, since: Instant) -> Self {
        Self {
            action,
            cancelling: AtomicBool::new(false),
            heard: Mutex::new(since),
        }
    }

    pub(super) const fn action(&self) -> &'a Action {
        self.action
    }

    pub(super) fn is_cancelling(&self) -> bool {
        self.cancelling.load(Ordering::Relaxed)
    }

    /// The time since the last answered request was sent.
    pub(super) fn silence(&self) -> Duration {
        self.heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }

    /// Extends the lease and notes a cancellation.
    pub(super) async fn look<E: Executor>(&self, exec: &E) -> Result<Duration, Error> {
        let asked = Instant::now();
        let extended = self.action.extend(exec, None).await?;
        if extended.cancelling {
            self.cancelling.store(true, Ordering::Relaxed);
        }
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        *heard = asked.max(*heard);
        Ok(extended.lease_left)
    }
}

impl Leased for Watch<'_> {
    fn name(&self) -> String {
        format!("{:?}, step {}", self.action.row(), self.action.step_key())
    }

    fn lease_left(&self) -> Duration {
        self.action.lease_left()
    }

    fn renew<E: Executor>(&self, exec: &E) -> impl Future<Output = Result<Duration, Error>> + Send {
        self.look(exec)
    }
}

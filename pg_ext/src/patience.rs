//! How long one call waits for other sessions' locks while it keeps rows and tables itself: half a second once, and for
//! moments for a quarter of a second after that; then what is left is for the next call. Who gives way so early finds no
//! deadlock: whoever has what we wait for, and comes to wait for what we keep, would be its victim after deadlock_timeout.

use crate::error::Result;
use crate::settings::{self, PATIENCE};
use crate::subxact::{self, Failure};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// So long the parts of what has waited for a lock are tried one by one.
const AFTER: Duration = Duration::from_millis(250);

#[derive(Default)]
pub struct Patience {
    is_lost: Cell<bool>,
    over_at: Cell<Option<Instant>>,
}

impl Patience {
    /// Works in a subtransaction, and waits for nobody longer than there is patience for.
    pub fn attempt<T>(
        &self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<std::result::Result<T, Failure>> {
        let begin = Instant::now();
        let done = match self.is_lost() {
            true => subxact::attempt(|| settings::briefly(work))?,
            false => subxact::attempt(|| settings::patiently(work))?,
        };
        if let Err(failure) = &done {
            // A trigger may say something else of its wait.
            self.is_lost
                .set(self.is_lost() || begin.elapsed() >= settings::at_most(PATIENCE));
            if self.is_lost() && failure.is_wait && self.over_at.get().is_none() {
                self.over_at.set(Some(Instant::now() + AFTER));
            }
        }
        Ok(done)
    }

    /// There was such a wait.
    pub fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// What is left is for the next call.
    pub fn is_over(&self) -> bool {
        self.over_at.get().is_some_and(|at| Instant::now() >= at)
    }
}

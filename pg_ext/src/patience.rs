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
    lost_at: Cell<Option<Instant>>,
}

impl Patience {
    /// Works in a subtransaction, and waits for nobody longer than there is patience for.
    pub fn attempt<T>(
        &self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<std::result::Result<T, Failure>> {
        if self.is_lost() {
            return subxact::attempt(|| settings::briefly(work));
        }
        let begin = Instant::now();
        let done = subxact::attempt(|| settings::patiently(work))?;
        if done.is_err() && begin.elapsed() >= settings::at_most(PATIENCE) {
            self.lost_at.set(Some(Instant::now()));
        }
        Ok(done)
    }

    /// There was such a wait.
    pub fn is_lost(&self) -> bool {
        self.lost_at.get().is_some()
    }

    /// What is left is for the next call.
    pub fn is_over(&self) -> bool {
        self.lost_at
            .get()
            .is_some_and(|lost| lost.elapsed() >= AFTER)
    }
}

//! How long one call waits for other sessions' locks while it keeps rows and tables itself: for half a second from its
//! begin, and for moments after that; where it meets waits then, what is left after a quarter of a second is for the next
//! call. Who gives way so early finds hardly ever a deadlock: whoever has what we wait for, and comes to wait for what we
//! keep, would be its victim after deadlock_timeout.

use crate::error::Result;
use crate::settings::{self, PATIENCE};
use crate::subxact::{self, Failure};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// So long the parts of what has waited for a lock are tried one by one.
const AFTER: Duration = Duration::from_millis(250);

pub struct Patience {
    until: Instant,
    over_at: Cell<Option<Instant>>,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            until: Instant::now() + PATIENCE,
            over_at: Cell::new(None),
        }
    }
}

impl Patience {
    /// Works in a subtransaction, and waits for nobody longer than there is patience for.
    pub fn attempt<T>(
        &self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<std::result::Result<T, Failure>> {
        let left = self.until.saturating_duration_since(Instant::now());
        let done = subxact::attempt(|| match left > settings::BRIEF {
            true => settings::waiting(left, work),
            false => settings::briefly(work),
        })?;
        if self.is_lost() && done.as_ref().is_err_and(|failure| failure.is_wait) {
            let over_at = self.over_at.get();
            self.over_at
                .set(over_at.or_else(|| Some(Instant::now() + AFTER)));
        }
        Ok(done)
    }

    /// There is none but for moments.
    pub fn is_lost(&self) -> bool {
        self.until.saturating_duration_since(Instant::now()) <= settings::BRIEF
    }

    /// What is left is for the next call.
    pub fn is_over(&self) -> bool {
        self.over_at.get().is_some_and(|at| Instant::now() >= at)
    }

    /// Something else begins, which has met no wait of its own.
    pub fn renew(&self) {
        self.over_at.set(None);
    }
}

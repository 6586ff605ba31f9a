//! What one call may still do, of rows that each have a lease and, if they fail, are put off: so many of them, for so long.
//! The time ends it once a row is settled, so every call gets on; what is settled is locked until the transaction ends.

use crate::patience::Patience;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What is left after that is for the next call.
const TIME: Duration = Duration::from_secs(2);

pub struct Budget<'p> {
    rows: Cell<i64>,
    until: Instant,
    is_used: Cell<bool>,
    pub patience: &'p Patience,
}

impl<'p> Budget<'p> {
    pub fn of(rows: i64, patience: &'p Patience) -> Budget<'p> {
        Budget {
            rows: Cell::new(rows),
            until: Instant::now() + TIME,
            is_used: Cell::new(false),
            patience,
        }
    }

    /// So many rows were done, or found and put off.
    pub fn settle(&self, rows: i64) {
        self.rows.set(self.rows.get() - rows);
        self.is_used.set(self.is_used.get() || rows > 0);
    }

    /// There was such a row.
    pub fn is_used(&self) -> bool {
        self.is_used.get()
    }

    /// So many more.
    pub fn rows(&self) -> i64 {
        self.rows.get().max(0)
    }

    pub fn is_spent(&self) -> bool {
        let in_time = Instant::now() < self.until && !self.patience.is_over();
        self.rows() == 0 || self.is_used() && !in_time
    }
}

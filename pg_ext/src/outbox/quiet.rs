//! A memory of takes that found nothing, so that the next take need not look through all lanes again.
//!
//! Invariant: the memory says "nothing" only where there is nothing. A take of this backend looked through every
//! lane: no event was pending, no batch was out, and once.retry had no row. That take could not see the events of two
//! kinds of transactions:
//!   - A transaction that had its id then. If it has ended since, `unended` is different now.
//!   - A transaction that got its id later, and its event ids after that. Then the sequence of event ids has moved on.
//!
//! Each take asks once.retry anew, because a redrive takes no event id. DROP and CREATE EXTENSION begin another
//! sequence (`ids`). Rows that were written by hand are found within [`LONGEST_US`].

use super::topic::Subscriber;
use crate::clock;
use crate::error::Result;
use crate::table::{self, Sequence, Snapshot};
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::HashMap;

/// How long a memory counts.
const LONGEST_US: i64 = 1_000_000;
/// The most open transactions of a memory.
const MOST: i64 = 1_000;

thread_local! {
    static QUIET: RefCell<HashMap<i32, QuietLog>> = RefCell::new(HashMap::new());
}

struct QuietLog {
    lanes: i32,
    moment: LogMoment,
}

/// Where the log was when a take began.
pub struct LogMoment {
    /// The sequence of event ids.
    ids: Oid,
    top: i64,
    next: i64,
    at: i64,
    /// The open transactions; None: too many, or `before_look` was not called.
    unended: Option<Vec<i64>>,
}

impl LogMoment {
    pub fn now() -> Result<LogMoment> {
        let ids = Sequence::to_read(c"event_id")?;
        // In this order: a transaction that gets its id later gets larger event ids.
        let top = ids.last();
        Ok(LogMoment {
            ids: ids.oid(),
            top,
            next: table::next_xid(),
            at: clock::real_us(),
            unended: None,
        })
    }

    /// A take of this backend found nothing, and no event has come since, except in once.retry.
    pub fn is_quiet(&self, subscriber: &Subscriber) -> bool {
        QUIET.with(|quiet| {
            let quiet = quiet.borrow();
            let Some(known) = quiet.get(&subscriber.id) else {
                return false;
            };
            let then = &known.moment;
            known.lanes == subscriber.topic.lanes
                && (then.ids, then.top) == (self.ids, self.top)
                && (then.at..then.at.saturating_add(LONGEST_US)).contains(&self.at)
                && Snapshot::latest().unended_before(then.next, MOST) == then.unended
        })
    }

    /// Asks for the open transactions; to be called before the take looks at the lanes.
    pub fn before_look(&mut self) {
        self.unended = Snapshot::latest().unended_before(self.next, MOST);
    }

    /// The take has looked through all lanes; `nothing`: it found nothing at all.
    pub fn remember(self, subscriber: &Subscriber, nothing: bool) {
        // A rollback would bring back events that this transaction has acked.
        let nothing = nothing && table::own_xid_if_any().is_none();
        QUIET.with(|quiet| {
            let mut quiet = quiet.borrow_mut();
            match nothing && self.unended.is_some() {
                true => quiet.insert(
                    subscriber.id,
                    QuietLog {
                        lanes: subscriber.topic.lanes,
                        moment: self,
                    },
                ),
                false => quiet.remove(&subscriber.id),
            };
        });
    }
}

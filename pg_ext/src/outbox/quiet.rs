//! What a take that found nothing remembers, so that the next one need not look through all lanes again.
//!
//! Invariant: the memory says "nothing" only where there is nothing. A take of this backend looked through every
//! lane: nothing was there, nothing was out, and there were no retries. What it could not see comes either from a
//! transaction that had an id then and has ended since (`unended` says so), or from one that got its id after
//! that, and its event's number after its id: then the sequence of event ids has moved on. Retries are asked for
//! anew each time, because a redrive takes no number. DROP and CREATE EXTENSION begin another sequence, whose
//! numbers and subscribers say nothing about those of the one before.
//!
//! What is written by hand is found within [`LONGEST_US`].

use super::topic::Subscriber;
use crate::clock;
use crate::error::Result;
use crate::table::{self, Sequence, Snapshot};
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::HashMap;

/// From then on a take looks through all lanes again.
const LONGEST_US: i64 = 1_000_000;
/// More open transactions are not remembered.
const MOST: i64 = 1_000;

thread_local! {
    static QUIET: RefCell<HashMap<i32, QuietLog>> = RefCell::new(HashMap::new());
}

struct QuietLog {
    lanes: i32,
    ids: Oid,
    top: i64,
    next: i64,
    unended: Vec<i64>,
    from: i64,
}

/// Where the log was when a take began.
pub struct LogMoment {
    /// The sequence of event ids.
    ids: Oid,
    top: i64,
    next: i64,
    at: i64,
}

impl LogMoment {
    pub fn now() -> Result<LogMoment> {
        let ids = Sequence::to_read(c"event_id")?;
        // In this order: whoever gets a transaction id later gets a larger event id.
        let top = ids.last_exactly();
        Ok(LogMoment {
            ids: ids.oid(),
            top,
            next: table::next_xid(),
            at: clock::real_us(),
        })
    }

    /// A take of this backend found nothing, and nothing has come since but what is in once.retry.
    pub fn is_quiet(&self, subscriber: &Subscriber) -> bool {
        QUIET.with(|quiet| {
            let quiet = quiet.borrow();
            let Some(known) = quiet.get(&subscriber.id) else {
                return false;
            };
            known.lanes == subscriber.topic.lanes
                && known.ids == self.ids
                && known.top == self.top
                && (known.from..known.from.saturating_add(LONGEST_US)).contains(&self.at)
                && Snapshot::latest().unended_before(known.next, MOST).as_ref()
                    == Some(&known.unended)
        })
    }

    /// To be asked before the lanes are looked at: what the memory will need.
    pub fn before_look(self) -> BeforeTake {
        let unended = Snapshot::latest().unended_before(self.next, MOST);
        BeforeTake {
            moment: self,
            unended,
        }
    }
}

/// The state before a take looked through the lanes.
pub struct BeforeTake {
    moment: LogMoment,
    unended: Option<Vec<i64>>,
}

impl BeforeTake {
    /// It has looked through all of them: whether there was nothing at all.
    pub fn remember(self, subscriber: &Subscriber, nothing: bool) {
        // What this transaction has ended may yet be undone.
        let nothing = nothing && table::own_xid_if_any().is_none();
        QUIET.with(|quiet| {
            let mut quiet = quiet.borrow_mut();
            match self.unended {
                Some(unended) if nothing => quiet.insert(
                    subscriber.id,
                    QuietLog {
                        lanes: subscriber.topic.lanes,
                        ids: self.moment.ids,
                        top: self.moment.top,
                        next: self.moment.next,
                        unended,
                        from: self.moment.at,
                    },
                ),
                _ => quiet.remove(&subscriber.id),
            };
        });
    }
}

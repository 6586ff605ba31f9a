//! Remembers takes that found nothing, so that the next take need not look through all lanes again.
//!
//! Invariant: a take is skipped only if it would find nothing. A memory belongs to an earlier take of this backend.
//! That take looked through all lanes. It found no new event, no open batch and no due row of once.retry. An event that
//! has become visible since comes from one of two kinds of transactions:
//! - A transaction that had its id when the earlier take began. It was open then. Its end changes `unended`.
//! - A transaction that got its id later. Its emit advances the sequence of event ids (`top`).
//!
//! A redrive takes an event id, too, to advance the sequence. A row of once.retry outside a batch becomes due at a
//! known time (`next_due`). While a batch is open, a take of this backend stores no memory. DROP and CREATE EXTENSION
//! begin another sequence (`ids`). Two kinds of events may be found late, by up to [`LONGEST_US`]. One kind is an event
//! that was written by hand. The other is an event that other workers nack, take and nack again while this backend
//! looks through the lanes.

use super::retry;
use super::topic::Subscriber;
use crate::clock::{self, INFINITY};
use crate::error::Result;
use crate::table::{self, Sequence, Snapshot};
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::HashMap;

/// The longest time for which a memory is used, in microseconds.
const LONGEST_US: i64 = 1_000_000;
/// The largest distance from a snapshot's `xmax` to the next transaction id. If the distance is larger, the list
/// `unended` would be long. Then no memory is stored.
const MOST_UNENDED: i64 = 1_000;

thread_local! {
    static QUIET: RefCell<HashMap<i32, QuietLog>> = RefCell::new(HashMap::new());
}

struct QuietLog {
    lanes: i32,
    moment: LogMoment,
}

/// The state of the log when a take began.
pub struct LogMoment {
    /// The sequence of event ids.
    ids: Oid,
    top: i64,
    next: i64,
    at: i64,
    /// The open transactions; None: too many, or `before_look` was not called.
    unended: Option<Vec<i64>>,
    /// When the first retry is due.
    next_due: i64,
}

impl LogMoment {
    pub fn now() -> Result<LogMoment> {
        let ids = Sequence::to_read(c"event_id")?;
        // Read the event ids first: then a transaction with an id of `next` or larger gets event ids above `top`.
        let top = ids.last();
        Ok(LogMoment {
            ids: ids.oid(),
            top,
            next: table::next_xid(),
            at: clock::real_us(),
            unended: None,
            next_due: i64::MIN,
        })
    }

    /// Whether a recent take found nothing, no event was emitted or committed since, and no retry is due.
    pub fn is_quiet(&self, subscriber: &Subscriber) -> Result<bool> {
        let now = clock::now_us()?;
        Ok(QUIET.with(|quiet| {
            let quiet = quiet.borrow();
            let Some(known) = quiet.get(&subscriber.id) else {
                return false;
            };
            let then = &known.moment;
            known.lanes == subscriber.topic.lanes
                && now < then.next_due
                && (then.ids, then.top) == (self.ids, self.top)
                && (then.at..then.at.saturating_add(LONGEST_US)).contains(&self.at)
                && Snapshot::latest().unended_before(then.next, MOST_UNENDED) == then.unended
        }))
    }

    /// Reads the open transactions, then the retries, before the take looks at the lanes. True: there may be retries.
    pub fn before_look(&mut self, subscriber: &Subscriber) -> Result<bool> {
        self.unended = Snapshot::latest().unended_before(self.next, MOST_UNENDED);
        let any = retry::may_have_any(subscriber)?;
        self.next_due = match any {
            true => retry::next_due(subscriber, clock::now_us()?)?,
            false => INFINITY,
        };
        Ok(any)
    }

    /// Called at the end of a take. `nothing`: the take looked through all lanes and found nothing at all.
    pub fn remember(mut self, subscriber: &Subscriber, nothing: bool) -> Result<()> {
        // After a rollback, the events that this transaction has acked would be pending again.
        let nothing = nothing && self.unended.is_some() && table::own_xid_if_any().is_none();
        let now = clock::now_us()?;
        if nothing && now < self.next_due {
            // A batch that ended since `before_look` may have left retries that are due earlier.
            self.next_due = self.next_due.min(retry::next_due(subscriber, now)?);
        }
        QUIET.with(|quiet| {
            let mut quiet = quiet.borrow_mut();
            match nothing {
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
        Ok(())
    }
}

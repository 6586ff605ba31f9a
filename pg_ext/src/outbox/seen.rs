//! A snapshot as it is stored. An event's transaction id and event id determine whether the snapshot saw the event.
//!
//! Invariant of a [`Seen`] made by [`Seen::now`]: `high`, the last event id, is read before `next`, the next
//! transaction id. So the events of a transaction from `next` on have ids above `high`. Events that the snapshot sees
//! have ids up to `top`.
//!
//! Some transactions with an id had not ended when the snapshot was taken. They are the transactions in `running`, and
//! all from `xmax` to the one before `next`. After such a transaction has ended, a take finds its events by transaction
//! id ("late").

use crate::call;
use crate::error::{Error, Result};
use crate::row;
use crate::table::{self, Sequence, Snapshot};
use pgrx::pg_sys::Datum;

/// Above every transaction id and event id.
const LAST: i64 = i64::MAX;

/// The events that were visible at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// No transaction with this or a larger id had ended.
    xmax: i64,
    /// Transaction ids from this one on were assigned after `high` was read.
    pub next: i64,
    /// The transaction that looked, or 0. It saw its own events up to `top`.
    own: i64,
    /// Events of transactions from `next` on have larger event ids.
    pub high: i64,
    /// Visible events have at most this id.
    pub top: i64,
    /// Running transactions below `xmax`, sorted.
    running: Vec<i64>,
}

impl Seen {
    /// Before the first event of a series.
    pub fn nothing() -> Seen {
        Seen {
            xmax: 0,
            next: 0,
            own: 0,
            high: 0,
            top: 0,
            running: Vec::new(),
        }
    }

    /// Sees every event of an older series, because all transactions of that series have ended.
    pub fn everything() -> Seen {
        Seen {
            xmax: LAST,
            next: LAST,
            own: 0,
            high: LAST,
            top: LAST,
            running: Vec::new(),
        }
    }

    /// The events that are visible now, and the snapshot that sees them.
    pub fn now() -> Result<(Seen, Snapshot)> {
        let ids = Sequence::to_read(c"event_id")?;
        // In this order, see the head of this file.
        let high = ids.last();
        let next = table::next_xid();
        let snapshot = Snapshot::latest();
        let top = ids.last();
        let (mut running, xmax) = snapshot.running();
        running.sort_unstable();
        let seen = Seen {
            xmax,
            // No event of a transaction with this or a larger id is visible in the snapshot.
            next: next.max(xmax),
            own: table::own_xid_if_any().unwrap_or(0),
            high,
            top,
            running,
        };
        Ok((seen, snapshot))
    }

    /// Whether the event with this event id, emitted by this transaction, was visible.
    pub fn sees(&self, xid: i64, event_id: i64) -> bool {
        if xid == self.own {
            return event_id <= self.top;
        }
        xid < self.xmax && self.running.binary_search(&xid).is_err()
    }

    /// Transactions below `xmax` that had not ended. [`Seen::fresh`] gives the transactions from `xmax` to `next`.
    pub fn unfinished(&self) -> impl Iterator<Item = i64> + '_ {
        let own = (self.own != 0 && self.own < self.xmax).then_some(self.own);
        let others = self.running.iter().copied();
        others.filter(|x| *x != self.own).chain(own)
    }

    /// The range of transaction ids that were assigned and had not ended: first, end (excluded).
    pub fn fresh(&self) -> (i64, i64) {
        (self.xmax, self.next)
    }

    pub fn datum(&self) -> Datum {
        let head = [self.xmax, self.next, self.own, self.high, self.top];
        row::i64s(&[&head, self.running.as_slice()].concat())
    }

    pub fn stored(datum: Datum) -> Result<Seen> {
        let damaged = || Error::internal("a stored snapshot of the outbox is damaged");
        let numbers = call::i64s(datum).ok_or_else(damaged)?;
        match numbers.as_slice() {
            [xmax, next, own, high, top, running @ ..] => Ok(Seen {
                xmax: *xmax,
                next: *next,
                own: *own,
                high: *high,
                top: *top,
                running: running.to_vec(),
            }),
            _ => Err(damaged()),
        }
    }
}

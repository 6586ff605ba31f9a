//! The batch that a take builds: the token, and the rows that the caller gets.
//!
//! A take first looks for events. Before it writes its first row of once.batch, it chooses a token and locks it. So a
//! take that finds nothing locks no token. The caller gets the rows of all lanes in the order of event ids.

use super::batch::Batch;
use super::event::{Col, Event};
use super::topic::Subscriber;
use crate::call::utf8;
use crate::clock;
use crate::digest::digits;
use crate::error::Result;
use crate::row::{self, Rows};
use crate::trylock::TryLock;
use pgrx::pg_sys::Datum;
use sha2::{Digest, Sha256};

pub struct TakeWish {
    pub max: usize,
    pub lease_us: i64,
}

/// The events that a take has so far.
pub struct Draft<'a> {
    pub subscriber: &'a Subscriber,
    pub wish: TakeWish,
    token: Option<i64>,
    rows: Vec<(i64, [Option<Datum>; 8])>,
    /// Whether the only event is a suspect: then the draft accepts no other event.
    pub alone: bool,
    /// Whether once.retry may have rows of the subscriber. True also after this take has put back an expired batch.
    pub retries: bool,
    /// Whether this take has found an earlier batch with events in it. A batch with an expired lease counts, too.
    pub is_active: bool,
}

impl<'a> Draft<'a> {
    pub fn new(subscriber: &'a Subscriber, wish: TakeWish, retries: bool) -> Draft<'a> {
        Draft {
            subscriber,
            token: None,
            // Avoids moving the rows of a growing vector: a typical take has up to 128 rows.
            rows: Vec::with_capacity(wish.max.min(128)),
            wish,
            alone: false,
            retries,
            is_active: false,
        }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.alone || self.rows.len() >= self.wish.max
    }

    /// The batch's token; None: it has none yet.
    pub fn begun(&self) -> Option<i64> {
        self.token
    }

    /// The batch's token. If the batch has none yet, it gets a free token larger than `above`, the lane's last
    /// token. The token is locked until the transaction ends.
    pub fn token(&mut self, above: i64) -> Result<i64> {
        let mut token = above;
        loop {
            if let Some(token) = self.token {
                return Ok(token);
            }
            token = clock::next_token(token);
            let spread = (self.subscriber.id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if let Some(lock) = TryLock::acquire(spread ^ token as u64)
                && Batch::find(self.subscriber.id, token)?.is_none()
            {
                lock.keep();
                self.token = Some(token);
            }
        }
    }

    pub fn push(&mut self, event: &Event, attempt: i32) {
        let copied = |col| event.raw(col).map(row::copied);
        let row = [
            None,
            event.raw(Col::EventId),
            Some(Datum::from(attempt)),
            Some(row::text(&delivery_key(self.subscriber, event))),
            copied(Col::OrderKey),
            copied(Col::Payload),
            copied(Col::Headers),
            event.raw(Col::EmittedAt),
        ];
        self.rows.push((event.i64(Col::EventId), row));
    }

    /// Returns the rows to the caller.
    pub fn hand_out(mut self, rows: &Rows) {
        self.rows.sort_unstable_by_key(|(event_id, _)| *event_id);
        let token = self.token.map(Datum::from);
        for (_, mut row) in self.rows {
            row[0] = token;
            rows.push(&row);
        }
    }
}

/// The idempotency key of an event's delivery to a subscriber. It depends on stored columns alone, so it is the same on
/// every attempt and in a restored database. After a crash an event id may be used twice; the two events differ in time
/// and transaction.
fn delivery_key(subscriber: &Subscriber, event: &Event) -> [u8; 36] {
    let mut hash = Sha256::new();
    for number in [
        i64::from(subscriber.id),
        event.i64(Col::EventId),
        event.i64(Col::Xid),
        event.i64(Col::EmittedAt),
        event.i64(Col::Series),
    ] {
        hash.update(number.to_be_bytes());
    }
    hash.update(utf8(&subscriber.topic.name));
    hash.update([0]);
    hash.update(utf8(&subscriber.name));
    let mut key = *b"evt_00000000000000000000000000000000";
    for (pair, byte) in key[4..].chunks_exact_mut(2).zip(hash.finalize()) {
        pair.copy_from_slice(&digits(byte));
    }
    key
}

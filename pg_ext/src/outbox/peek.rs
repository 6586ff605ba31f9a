//! `outbox_peek`: the pending events of a subscriber, without taking them.
//!
//! An event is pending if it is in once.retry, in an open batch, or in the part of the log that the subscriber has not
//! read. The call collects at most `max` events from each lane, from each batch and from once.retry.

use super::batch::{self, Batch, Part};
use super::event::{self, Col, Event, is_unordered};
use super::receipt::{self, Ledger};
use super::retry::{self, Col as RetryCol, Retry};
use super::seen::Seen;
use super::series;
use super::topic::Subscriber;
use super::window::{self, LaneLog, Window};
use crate::call::Call;
use crate::clock::{self, INFINITY};
use crate::error::Result;
use crate::row::{self, Rows};
use crate::table::{ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;
use std::collections::{BTreeMap, HashMap};

/// Limit: up to this many events per call.
const MOST_PEEKED: i32 = 10_000;

/// The place and state of a pending event.
struct PendingState {
    lane: i32,
    state: &'static [u8],
    /// INFINITY: not known.
    due_at: i64,
    attempt: i32,
}

struct Peek<'a> {
    subscriber: &'a Subscriber,
    max: usize,
    now: i64,
    /// By event_id.
    found: BTreeMap<i64, PendingState>,
    /// The first event of a key in once.retry, or None. If there is one, the key's events in the log wait behind it.
    first_of_key: HashMap<(i32, Vec<u8>), Option<i64>>,
}

/// `once.outbox_peek`.
pub fn outbox_peek(call: &Call) -> Result<Datum> {
    let subscriber = Subscriber::named_in(call)?;
    let mut peek = Peek {
        subscriber: &subscriber,
        max: call.limit(2, "max", MOST_PEEKED)? as usize,
        now: clock::now_us()?,
        found: BTreeMap::new(),
        first_of_key: HashMap::new(),
    };
    let rows = Rows::begin(call);
    peek.look_in_retry()?;
    peek.look_in_lanes()?;
    let pending = std::mem::take(&mut peek.found).into_iter().take(peek.max);
    for (id, pending) in pending {
        // The event may have been acked and removed meanwhile.
        if let Some(event) = event::find(subscriber.topic.id, pending.lane, id)? {
            rows.push(&values(&event, &pending));
        }
    }
    Ok(call.return_null())
}

fn values(event: &Event, pending: &PendingState) -> [Option<Datum>; 8] {
    let due_at = Some(pending.due_at).filter(|at| *at != INFINITY);
    [
        event.raw(Col::EventId),
        Some(row::text(pending.state)),
        due_at.map(Datum::from),
        Some(Datum::from(pending.attempt)),
        event.raw(Col::OrderKey),
        event.raw(Col::Payload),
        event.raw(Col::Headers),
        event.raw(Col::EmittedAt),
    ]
}

impl Peek<'_> {
    fn look_in_retry(&mut self) -> Result<()> {
        let snapshot = Snapshot::latest();
        let table = Table::to_read(retry::TABLE)?;
        let keys = &mut [ScanKey::i32(1, self.subscriber.id)];
        let mut scan = table.scan(retry::BY_EVENT, keys, &snapshot)?;
        for _ in 0..self.max {
            let Some(slot) = scan.advance() else {
                break;
            };
            let row = Retry::borrow(slot);
            let pending = self.of_retry(&row)?;
            self.found.insert(row.i64(RetryCol::EventId), pending);
        }
        Ok(())
    }

    fn of_retry(&mut self, row: &Retry) -> Result<PendingState> {
        let (lane, due_at) = (row.i32(RetryCol::Lane), row.i64(RetryCol::DueAt));
        let attempt = row.i32(RetryCol::Failures) + 1;
        let pending = |state, due_at| PendingState {
            lane,
            state,
            due_at,
            attempt,
        };
        if let Some(token) = row.raw(RetryCol::Token) {
            let batch = Batch::find(self.subscriber.id, token.value() as i64)?;
            return Ok(self.leased(lane, attempt, batch.map_or(self.now, |b| b.lease_until())));
        }
        let is_first = match row.bytes(RetryCol::OrderKey) {
            None => true,
            Some(key) => self.first(lane, key)? == Some(row.i64(RetryCol::EventId)),
        };
        Ok(match (is_first, due_at) {
            (false, _) | (_, INFINITY) => pending(b"waiting", INFINITY),
            (true, at) if at > self.now => pending(b"delayed", at),
            (true, at) => pending(b"ready", at),
        })
    }

    /// An event of a batch: leased, or ready again if the lease has expired.
    fn leased(&self, lane: i32, attempt: i32, until: i64) -> PendingState {
        PendingState {
            lane,
            state: if until > self.now {
                b"leased"
            } else {
                b"ready"
            },
            due_at: until,
            attempt,
        }
    }

    fn first(&mut self, lane: i32, key: &[u8]) -> Result<Option<i64>> {
        if let Some(first) = self.first_of_key.get(&(lane, key.to_vec())) {
            return Ok(*first);
        }
        let first = retry::first_of_key(self.subscriber, lane, key)?;
        self.first_of_key.insert((lane, key.to_vec()), first);
        Ok(first)
    }

    fn look_in_lanes(&mut self) -> Result<()> {
        let (seen, snapshot) = Seen::now()?;
        let series = series::present(&snapshot)?;
        let tables = window::tables()?;
        let batches = Table::to_read(batch::TABLE)?;
        for lane in self.subscriber.lanes() {
            let last = Part::last_in(&batches, self.subscriber.id, lane, &snapshot)?;
            let out = last.as_ref().map(Part::out).unwrap_or_default();
            let is_out = self.look_in_batches(lane, out, &snapshot)? && !is_unordered(lane);
            if is_out {
                let retried = self.found.values_mut();
                for pending in retried.filter(|p| p.lane == lane && p.state == b"ready") {
                    (pending.state, pending.due_at) = (b"waiting", INFINITY);
                }
            }
            let log = LaneLog {
                topic: self.subscriber.topic.id,
                lane,
                tables: &tables,
                snapshot: &snapshot,
                seen: &seen,
                series,
            };
            let mut left = self.max;
            Window::behind(self.subscriber, last.as_ref())?.walk(&log, |event| {
                self.of_log(event, lane, is_out)?;
                left -= 1;
                Ok(left > 0)
            })?;
        }
        Ok(())
    }

    /// Adds the events that these batches hold. True: a batch whose lease is alive holds events of this lane.
    fn look_in_batches(
        &mut self,
        lane: i32,
        tokens: Vec<i64>,
        snapshot: &Snapshot,
    ) -> Result<bool> {
        let mut is_out = false;
        for token in tokens {
            if receipt::is_over(self.subscriber.id, token, snapshot)? {
                continue;
            }
            let Some(batch) = Batch::find_under(self.subscriber.id, token, snapshot)? else {
                continue;
            };
            let (until, lanes) = (batch.lease_until(), batch.lanes());
            let mut held = Ledger::read(&batch)?.held;
            is_out |= until > self.now && held.iter().any(|id| lanes.get(id) == Some(&lane));
            held.sort_unstable();
            for id in held.into_iter().take(self.max) {
                let lane = lanes.get(&id).copied().unwrap_or(0);
                let pending = self.leased(lane, 1, until);
                self.found.entry(id).or_insert(pending);
            }
        }
        Ok(is_out)
    }

    /// Adds an event of the log that no take has handed out.
    fn of_log(&mut self, event: &Event, lane: i32, is_out: bool) -> Result<()> {
        let waits = is_out
            || match event.bytes(Col::OrderKey).filter(|_| !is_unordered(lane)) {
                Some(key) => self.first(lane, key)?.is_some(),
                None => false,
            };
        let (state, due_at): (&[u8], i64) = match waits {
            true => (b"waiting", INFINITY),
            false => (b"ready", event.i64(Col::EmittedAt)),
        };
        let pending = PendingState {
            lane,
            state,
            due_at,
            attempt: 1,
        };
        self.found.entry(event.i64(Col::EventId)).or_insert(pending);
        Ok(())
    }
}

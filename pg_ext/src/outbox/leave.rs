//! How events leave a batch without an ack: they are nacked, or the lease has expired. Each of these events goes to the
//! dead letters or to once.retry. In once.retry it is due at once, is due later, or waits behind an earlier event of
//! its order_key.
//!
//! Invariant: when an event leaves without an ack, the later events of its order_key leave the batch with it. In
//! once.retry they wait behind the first of them that is not dead. A waiting row has no token, and its due_at is
//! infinity. So a batch holds no event while an earlier event of its order_key waits, unless that one was committed
//! late. The caller has locked the batch, and writes the receipt.

use super::batch::Batch;
use super::dead;
use super::delivery;
use super::event;
use super::retry;
use super::topic::Subscriber;
use crate::call::varlena;
use crate::clock::INFINITY;
use crate::error::Result;
use crate::row;
use crate::spi::{self, Kept, column, number};
use pgrx::pg_sys::{
    self, BOOLARRAYOID, Datum, INT4ARRAYOID, INT4OID, INT8ARRAYOID, TEXTARRAYOID,
    TIMESTAMPTZARRAYOID,
};
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;

const ROWS: &CStr = c"
    SELECT r.event_id, r.failures, r.redriven, r.suspect, r.order_key
      FROM once.retry r WHERE r.subscriber_id = $1 AND r.event_id = ANY ($2)";

const INTO_RETRY: &CStr = c"
    INSERT INTO once.retry (due_at, event_id, token, subscriber_id, topic_id, lane, failures, redriven,
                            suspect, order_key)
    SELECT u.due_at, u.event_id, NULL, $1, $2, u.lane, u.failures, 0, u.suspect, NULLIF(u.order_key, '')
      FROM unnest($3, $4, $5, $6, $7, $8) u (lane, due_at, event_id, failures, suspect, order_key)
    ON CONFLICT (subscriber_id, event_id) DO UPDATE
       SET due_at = excluded.due_at, token = NULL, failures = excluded.failures, suspect = excluded.suspect";

static ROWS_OF: Kept = Kept::new(ROWS, &[INT4OID, INT8ARRAYOID]);
static PUT_IN_RETRY: Kept = Kept::new(
    INTO_RETRY,
    &[
        INT4OID,
        INT4OID,
        INT4ARRAYOID,
        TIMESTAMPTZARRAYOID,
        INT8ARRAYOID,
        INT4ARRAYOID,
        BOOLARRAYOID,
        TEXTARRAYOID,
    ],
);

/// An event that a batch holds.
pub struct HeldEvent {
    pub id: i64,
    pub failures: i32,
    pub redriven: i32,
    pub suspect: bool,
    pub lane: i32,
    pub order_key: Option<Vec<u8>>,
}

/// The state of an event after it has left its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Due(i64),
    /// Waits behind the first event of its key.
    Waits,
    Dead,
}

/// An event that leaves its batch.
pub struct Leaving {
    pub event: HeldEvent,
    /// True: the attempt counts, and `event.failures` includes it.
    pub counted: bool,
    pub fate: Fate,
}

pub struct Reason<'a> {
    pub kind: &'a [u8],
    pub error: Option<&'a [u8]>,
}

/// Reads an event from its row in once.retry.
fn known(row: &spi::Row, lane: i32) -> HeldEvent {
    HeldEvent {
        id: number(row, 0),
        failures: number(row, 1) as i32,
        redriven: number(row, 2) as i32,
        suspect: number(row, 3) as u8 != 0,
        lane,
        order_key: column(row, 4).map(|d| varlena(d).to_vec()),
    }
}

/// These events of a batch, in the order of `ids`.
pub fn held(sub: &Subscriber, batch: &Batch, ids: &[i64]) -> Result<Vec<HeldEvent>> {
    let args = [Some(Datum::from(sub.id)), Some(row::i64s(ids))];
    let rows = spi::query_latest(&ROWS_OF, &args)?;
    let lanes = batch.lanes();
    let lane_of = |id: i64| lanes.get(&id).copied().unwrap_or_default();
    let known = |row| {
        let id = number(row, 0);
        (id, known(row, lane_of(id)))
    };
    let mut known: HashMap<i64, HeldEvent> = rows.iter().map(known).collect();
    let event = |id: &i64| match known.remove(id) {
        Some(event) => Ok(event),
        None => fresh(sub, lane_of(*id), *id),
    };
    ids.iter().map(event).collect()
}

/// An event in its first delivery.
fn fresh(sub: &Subscriber, lane: i32, id: i64) -> Result<HeldEvent> {
    let order_key = match event::is_unordered(lane) {
        true => None,
        false => event::needed(&sub.topic, lane, id)?
            .bytes(event::Col::OrderKey)
            .map(<[u8]>::to_vec),
    };
    Ok(HeldEvent {
        id,
        failures: 0,
        redriven: 0,
        suspect: false,
        lane,
        order_key,
    })
}

/// Counts one more failure. The event is dead at max_attempts; otherwise it is due at `retry_at` or after the backoff.
pub fn failed(sub: &Subscriber, event: HeldEvent, retry_at: Option<i64>, now: i64) -> Leaving {
    let failures = event.failures.saturating_add(1);
    let fate = match failures >= sub.max_attempts {
        true => Fate::Dead,
        false => Fate::Due(retry_at.unwrap_or_else(|| next_retry_at(sub, failures, now))),
    };
    Leaving {
        event: HeldEvent { failures, ..event },
        counted: true,
        fate,
    }
}

/// When the retry after the nth failure is due: now + `min(cap, base * 2^(n-1))` * a random number from 0.5 to 1.
fn next_retry_at(sub: &Subscriber, failures: i32, now: i64) -> i64 {
    let doublings = failures.saturating_sub(1).clamp(0, 63);
    let longest = (i128::from(sub.base_us) << doublings).min(sub.cap_us.into());
    // SAFETY: the random state of this backend, seeded when it started.
    let random = unsafe { pg_sys::pg_prng_double(&raw mut pg_sys::pg_global_prng_state) };
    now.saturating_add((longest as f64 * (0.5 + 0.5 * random)) as i64)
}

/// Moves the events to once.retry or once.dead. Returns the events that [`retry::free`] made due.
pub fn leave(
    sub: &Subscriber,
    token: i64,
    leaving: &[Leaving],
    reason: &Reason,
    now: i64,
) -> Result<HashSet<i64>> {
    delivery::note(sub, token, leaving, reason, now)?;
    bury_dead(sub, leaving, reason, now)?;
    move_to_retry(sub, leaving)?;
    let keys: HashSet<(i32, &[u8])> = leaving
        .iter()
        .filter_map(|l| Some((l.event.lane, l.event.order_key.as_deref()?)))
        .collect();
    retry::free(sub, keys, now)
}

fn bury_dead(sub: &Subscriber, leaving: &[Leaving], reason: &Reason, now: i64) -> Result<()> {
    let dead = || {
        leaving
            .iter()
            .filter(|l| l.fate == Fate::Dead)
            .map(|l| &l.event)
    };
    for event in dead() {
        dead::bury(sub, event, reason, now)?;
    }
    let ids: Vec<i64> = dead().map(|e| e.id).collect();
    match ids.is_empty() {
        true => Ok(()),
        false => retry::remove(sub, &ids),
    }
}

fn move_to_retry(sub: &Subscriber, leaving: &[Leaving]) -> Result<()> {
    let alive = || leaving.iter().filter(|l| l.fate != Fate::Dead);
    if alive().next().is_none() {
        return Ok(());
    }
    let due_at = |l: &Leaving| match l.fate {
        Fate::Due(at) => Datum::from(at),
        _ => Datum::from(INFINITY),
    };
    let ids: Vec<i64> = alive().map(|l| l.event.id).collect();
    // An empty string stands for NULL, because an order_key is never empty.
    let keys: Vec<&[u8]> = alive()
        .map(|l| l.event.order_key.as_deref().unwrap_or_default())
        .collect();
    let args = [
        Some(Datum::from(sub.id)),
        Some(Datum::from(sub.topic.id)),
        Some(row::array(
            alive().map(|l| l.event.lane.into()),
            pg_sys::INT4OID,
        )),
        Some(row::array(alive().map(due_at), pg_sys::TIMESTAMPTZOID)),
        Some(row::i64s(&ids)),
        Some(row::array(
            alive().map(|l| l.event.failures.into()),
            pg_sys::INT4OID,
        )),
        Some(row::array(
            alive().map(|l| l.event.suspect.into()),
            pg_sys::BOOLOID,
        )),
        Some(row::texts(&keys)),
    ];
    spi::query_latest(&PUT_IN_RETRY, &args).map(drop)
}

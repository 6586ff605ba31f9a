//! `outbox_emit`: inserts an event into the current segment, or a delayed event into once.event_kept and once.retry.
//!
//! The order of an emit: it locks the segment, checks that the segment is still current, reads the topic, gets a
//! transaction id, and gets an event id. Because the lock comes first, the segment is not truncated and the topic's
//! lanes do not change until this transaction has ended. seen.rs relies on the order of the two ids.
//!
//! The check reads a cached row of once.segment. The sweep task outbox_retire opens a new segment in place of an old
//! one. A run of the task holds the task's lock. At its commit it first sends an invalidation of the cached row, and
//! then releases the task's lock. An emitter that locks the old segment after the invalidation sees the new row.
//!
//! An emitter that has locked the old segment earlier may see the old row, and writes to the old segment. The run that
//! opens the new segment does not drain the old one. Each later run begins after the emitter has locked the segment.
//! While the emitter's transaction is open, such a run finds the segment locked, and does not drain it.

use super::event::{self, Col, DELAYED_LANE, Event, SEGMENT, SEGMENTS};
use super::retry;
use super::series;
use super::topic::Topic;
use crate::call::{Call, KEY_MAX, SCOPE_MAX, shown, utf8};
use crate::clock;
use crate::digest::first_16;
use crate::error::{Error, Result};
use crate::row::{self, Shape};
use crate::spi::{self, Kept};
use crate::table::{self, Recalled, Sequence, Snapshot, Table};
use pgrx::pg_sys::{self, Datum, INT4OID, INT8OID, TIMESTAMPTZOID, UUIDOID};
use sha2::{Digest, Sha256};

static SHAPE: Shape = Shape::new(&[
    (c"event_id", pg_sys::INT8OID),
    (c"emitted", pg_sys::BOOLOID),
]);
/// Waits for an open transaction that has taken this key. Takes the key if it is free or its dedupe window is over.
static TAKE_KEY: Kept = Kept::new(
    c"INSERT INTO once.dedupe AS d (topic_id, event_id, until, id) VALUES ($1, $2, $3, $4)
      ON CONFLICT (topic_id, id) DO UPDATE SET event_id = excluded.event_id, until = excluded.until
       WHERE d.until <= $5
      RETURNING d.event_id",
    &[INT4OID, INT8OID, TIMESTAMPTZOID, UUIDOID, TIMESTAMPTZOID],
);
static FIRST: Kept = Kept::new(
    c"SELECT event_id FROM once.dedupe WHERE topic_id = $1 AND id = $2",
    &[INT4OID, UUIDOID],
);

static CURRENT: Recalled<usize> = Recalled::new(SEGMENT);

/// The arguments of an emit, without the topic.
pub struct Emission<'a> {
    /// A json datum, stored as it is.
    pub payload: Datum,
    pub headers: Option<Datum>,
    pub order_key: Option<&'a [u8]>,
    pub dedupe_key: Option<&'a [u8]>,
    pub delay_us: Option<i64>,
}

impl<'a> Emission<'a> {
    pub fn plain(payload: Datum, order_key: Option<&'a [u8]>) -> Emission<'a> {
        Emission {
            payload,
            headers: None,
            order_key,
            dedupe_key: None,
            delay_us: None,
        }
    }
}

/// `once.outbox_emit`.
pub fn outbox_emit(call: &Call) -> Result<Datum> {
    let emission = Emission {
        payload: call.datum(1).ok_or_else(|| {
            Error::bad_argument(
                "payload",
                "must not be null",
                "Give a json value; 'null'::json is one.",
            )
        })?,
        headers: call.datum(4),
        order_key: call.opt_text(2, "order_key", KEY_MAX)?,
        dedupe_key: call.opt_text(3, "dedupe_key", KEY_MAX)?,
        delay_us: call.interval(5, "delay")?,
    };
    if emission.delay_us.is_some() && emission.order_key.is_some() {
        return Err(Error::bad_argument(
            "delay",
            "cannot be given together with order_key",
            "Delay an event without order_key, or emit it when it is due.",
        ));
    }
    if let Some(headers) = call.bytes(4)
        && headers.trim_ascii_start().first() != Some(&b'{')
    {
        return Err(Error::bad_argument(
            "headers",
            "is not a JSON object",
            "Give an object such as {\"trace\": \"...\"}.",
        ));
    }
    let name = call.text(0, "topic", SCOPE_MAX)?;
    let (event_id, emitted) = emit(name, &emission)?;
    Ok(SHAPE.row(&[Some(Datum::from(event_id)), Some(Datum::from(emitted))]))
}

/// Emits to a topic; 42501 unless the caller may use it. Returns the event's id and true. If the dedupe_key is taken,
/// returns the earlier event's id and false.
pub fn emit(topic: &[u8], emission: &Emission) -> Result<(i64, bool)> {
    let segment = open_segment()?;
    let topic = Topic::named(topic)?;
    if topic.subscribers == 0 {
        return Err(Error::bad_argument(
            "topic",
            format!("\"{}\" has no subscribers", shown(&topic.name)),
            "Nobody would ever get the event: add a subscriber with once.subscriber_set.",
        ));
    }
    log(&topic, emission, &segment)
}

/// Emits the event of a step or a move. Rights were checked when the step registered the event or the machine was
/// defined. None: the topic is gone or has no subscribers.
pub fn emit_registered(topic: &[u8], emission: &Emission) -> Result<Option<i64>> {
    let segment = open_segment()?;
    match Topic::registered(topic)? {
        Some(topic) if topic.subscribers > 0 => {
            let (event_id, _) = log(&topic, emission, &segment)?;
            Ok(Some(event_id))
        }
        _ => Ok(None),
    }
}

/// Writes the event, unless its dedupe_key is taken.
fn log(topic: &Topic, emission: &Emission, segment: &Table) -> Result<(i64, bool)> {
    let series = series::current()?;
    let xid = table::own_xid();
    let now = clock::now_us()?;
    let event_id = Sequence::next(c"event_id")?;
    if emission.delay_us.is_some() {
        topic.hold_subscribers();
    }
    if let Some(key) = emission.dedupe_key
        && let Some(first) = first_of(topic, key, event_id)?
    {
        return Ok((first, false));
    }
    let mut event = Event::empty();
    event.put_i64(Col::EventId, event_id);
    event.put_i64(Col::Xid, xid);
    event.put_i64(Col::EmittedAt, now);
    event.put_i32(Col::TopicId, topic.id);
    event.put_i32(Col::Lane, lane_of(topic, emission, event_id));
    event.put_i32(Col::Series, series);
    event.put_text(Col::OrderKey, emission.order_key);
    event.put(Col::Headers, emission.headers);
    event.put(Col::Payload, Some(emission.payload));
    match emission.delay_us {
        None => event.insert(segment)?,
        Some(delay) => {
            event.insert(&Table::to_write(event::KEPT.table)?)?;
            retry::delayed(topic.id, event_id, now + delay)?;
        }
    }
    Ok((event_id, true))
}

/// Locks the current segment as any INSERT does. The segment is still current once it is locked.
fn open_segment() -> Result<Table> {
    let current = || CURRENT.get(b"", || event::current_segment(&Snapshot::latest()));
    loop {
        let guess = *current()?;
        let table = Table::to_write(SEGMENTS[guess].table)?;
        if *current()? == guess {
            return Ok(table);
        }
    }
}

fn lane_of(topic: &Topic, emission: &Emission, event_id: i64) -> i32 {
    match emission.order_key {
        _ if emission.delay_us.is_some() => DELAYED_LANE,
        None => event::unordered_lane(event_id),
        Some(key) => lane_of_key(key, topic.lanes),
    }
}

/// The lane of an order_key. It is the same on every server and in every encoding.
pub fn lane_of_key(key: &[u8], lanes: i32) -> i32 {
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(utf8(key)));
    1 + (u32::from_be_bytes([a, b, c, d]) % lanes.max(1) as u32) as i32
}

/// The earlier event that has this dedupe_key; None: this emit has taken the key.
fn first_of(topic: &Topic, key: &[u8], event_id: i64) -> Result<Option<i64>> {
    let id = first_16(&Sha256::digest(utf8(key)));
    let (topic_id, id) = (Some(Datum::from(topic.id)), Some(row::uuid(&id)));
    loop {
        let now = clock::now_us()?;
        let until = now.saturating_add(topic.dedupe_us);
        let args = [
            topic_id,
            Some(Datum::from(event_id)),
            Some(Datum::from(until)),
            id,
            Some(Datum::from(now)),
        ];
        if !spi::query_latest(&TAKE_KEY, &args)?.is_empty() {
            return Ok(None);
        }
        // An earlier event has the key, and its dedupe window is not over. TAKE_KEY has changed nothing, but it has
        // locked the earlier event's row. So no sweep can delete this row before FIRST reads it.
        let first = spi::query_latest(&FIRST, &[topic_id, id])?;
        if let Some(first) = spi::first(&first) {
            return Ok(Some(first.value() as i64));
        }
        pgrx::check_for_interrupts!();
    }
}

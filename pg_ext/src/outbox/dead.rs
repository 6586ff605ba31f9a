//! once.dead: `outbox_dead`, `outbox_redrive` and `outbox_discard`.
//!
//! A dead letter is a copy of its event, because the event's segment may be truncated while the letter still exists. A
//! redrive inserts the event into once.event_kept, in DELAYED_LANE, and into once.retry for this subscriber alone. The
//! event's place among the pending events of its order_key depends on its event_id. So events that are redriven
//! together keep their order. Later events of the key that were delivered meanwhile are not delivered again.

use super::emit::lane_of_key;
use super::event::{self, DELAYED_LANE, UNORDERED};
use super::leave::{HeldEvent, Reason};
use super::topic::{Subscriber, Topic};
use crate::call::{Call, varlena};
use crate::clock;
use crate::error::{Error, Result};
use crate::row::{self, Rows};
use crate::spi::{self, Kept, column, number};
use crate::table::{self, Name, Record, ScanKey, Sequence, Snapshot, Table};
use pgrx::pg_sys::{self, Datum, INT4ARRAYOID, INT4OID, INT8ARRAYOID, TIMESTAMPTZOID};
use std::ffi::CStr;

pub const TABLE: Name = c"dead";
pub const BY_DEATH: Name = c"dead_died";
/// Limit: up to this many dead letters per call.
const MOST_LETTERS: i32 = 10_000;

// Keeps the topic's lanes and subscribers as they are until this transaction ends.
const HOLD: &CStr = c"SELECT t.topic_id FROM once.topic t WHERE t.topic_id = $1 FOR SHARE";

const OLDEST: &CStr = c"
    SELECT d.event_id, d.order_key FROM once.dead d WHERE d.subscriber_id = $1 AND d.died_at > $3
     ORDER BY d.died_at, d.event_id LIMIT $2 FOR UPDATE SKIP LOCKED";

const NAMED: &CStr = c"
    SELECT d.event_id, d.order_key FROM once.dead d WHERE d.subscriber_id = $1 AND d.died_at > $3 AND d.event_id = ANY ($4)
     ORDER BY d.died_at, d.event_id LIMIT $2 FOR UPDATE SKIP LOCKED";

// once.event_kept may have the event already: redriven before, or emitted with a delay. Then the update changes
// nothing, but locks the row, so that the sweep (retire/tidy.rs) does not delete it.
const REDRIVE: &CStr = c"
    WITH risen AS (
        DELETE FROM once.dead d USING unnest($3, $4) u (event_id, lane)
         WHERE d.subscriber_id = $1 AND d.event_id = u.event_id
        RETURNING d.*, u.lane),
    kept AS (
        INSERT INTO once.event_kept AS k (event_id, xid, emitted_at, topic_id, lane, series, order_key, headers,
                                          payload)
        SELECT r.event_id, r.xid, r.emitted_at, r.topic_id, $5, r.series, r.order_key, r.headers, r.payload
          FROM risen r ORDER BY r.event_id
        ON CONFLICT (topic_id, lane, event_id) DO UPDATE SET lane = k.lane),
    due AS (
        INSERT INTO once.retry (due_at, event_id, subscriber_id, topic_id, lane, failures, redriven, suspect,
                                order_key)
        SELECT $2, r.event_id, r.subscriber_id, r.topic_id, r.lane, 0, r.redriven + 1, false, r.order_key
          FROM risen r
        RETURNING 1)
    SELECT pg_catalog.count(*)::integer FROM due";

const DISCARD: &CStr = c"
    WITH discarded AS (DELETE FROM once.dead WHERE subscriber_id = $1 AND event_id = ANY ($2) RETURNING event_id),
         attempts AS (DELETE FROM once.delivery
                       WHERE subscriber_id = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM discarded)))
    SELECT pg_catalog.count(*)::integer FROM discarded";

static DISCARDED: Kept = Kept::new(DISCARD, &[INT4OID, INT8ARRAYOID]);
static HELD: Kept = Kept::new(HOLD, &[INT4OID]);
static OLDEST_OF: Kept = Kept::new(OLDEST, &[INT4OID, INT4OID, TIMESTAMPTZOID]);
static THOSE_NAMED: Kept = Kept::new(NAMED, &[INT4OID, INT4OID, TIMESTAMPTZOID, INT8ARRAYOID]);
static REDRIVEN: Kept = Kept::new(
    REDRIVE,
    &[INT4OID, TIMESTAMPTZOID, INT8ARRAYOID, INT4ARRAYOID, INT4OID],
);

/// Columns of once.dead, from 1.
#[derive(Clone, Copy)]
pub enum Col {
    SubscriberId = 1,
    TopicId,
    EventId,
    Xid,
    EmittedAt,
    DiedAt,
    Series,
    Attempts,
    Redriven,
    Kind,
    Error,
    OrderKey,
    Headers,
    Payload,
}

table::columns!(Col);

type Dead = Record<Col, 14>;

/// Copies an event to the dead letters.
pub fn bury(sub: &Subscriber, held: &HeldEvent, reason: &Reason, now: i64) -> Result<()> {
    let event = event::needed(&sub.topic, held.lane, held.id)?;
    let mut dead = Dead::empty();
    dead.put_i32(Col::SubscriberId, sub.id);
    dead.put_i32(Col::TopicId, sub.topic.id);
    dead.put_i64(Col::DiedAt, now);
    dead.put_i32(Col::Attempts, held.failures);
    dead.put_i32(Col::Redriven, held.redriven);
    dead.put_text(Col::Kind, Some(reason.kind));
    dead.put_text(Col::Error, reason.error);
    for (to, from) in [
        (Col::EventId, event::Col::EventId),
        (Col::Xid, event::Col::Xid),
        (Col::EmittedAt, event::Col::EmittedAt),
        (Col::Series, event::Col::Series),
        (Col::OrderKey, event::Col::OrderKey),
        (Col::Headers, event::Col::Headers),
        (Col::Payload, event::Col::Payload),
    ] {
        dead.put(to, event.raw(from));
    }
    dead.insert(&Table::to_write(TABLE)?)
}

/// `once.outbox_dead`.
pub fn outbox_dead(call: &Call) -> Result<Datum> {
    let subscriber = Subscriber::named_in(call)?;
    let max = call.limit(2, "max", MOST_LETTERS)?;
    let rows = Rows::begin(call);
    let (table, snapshot) = (Table::to_read(TABLE)?, Snapshot::now());
    let keys = &mut [
        ScanKey::i32(1, subscriber.id),
        ScanKey::after(2, kept_since(&subscriber)?),
    ];
    let mut scan = table.scan(BY_DEATH, keys, &snapshot)?;
    for _ in 0..max {
        let Some(slot) = scan.advance() else {
            break;
        };
        let dead = Dead::borrow(slot);
        rows.push(
            &[
                Col::EventId,
                Col::Attempts,
                Col::DiedAt,
                Col::Kind,
                Col::Error,
                Col::OrderKey,
                Col::Payload,
                Col::Headers,
                Col::EmittedAt,
            ]
            .map(|col| dead.raw(col)),
        );
    }
    Ok(call.return_null())
}

/// `once.outbox_redrive`.
pub fn outbox_redrive(call: &Call) -> Result<Datum> {
    table::ensure_writable(TABLE)?;
    let subscriber = Subscriber::named_in(call)?;
    let max = call.limit(2, "max", MOST_LETTERS)?;
    let named = call.opt_i64s(3, "event_ids")?;
    spi::query_latest(&HELD, &[Some(Datum::from(subscriber.topic.id))])?;
    // Reads the topic and the subscriber again, now under the lock.
    let subscriber = Subscriber::named_in(call)?;
    let mut args = vec![
        Some(Datum::from(subscriber.id)),
        Some(Datum::from(max)),
        Some(Datum::from(kept_since(&subscriber)?)),
    ];
    let found = match named {
        None => spi::query_latest(&OLDEST_OF, &args)?,
        Some(named) => {
            args.push(Some(row::i64s(&named)));
            spi::query_latest(&THOSE_NAMED, &args)?
        }
    };
    redrive(&subscriber, &found).map(Datum::from)
}

/// Returns a time. Only letters that died after it are kept. The others have expired; a sweep deletes them later.
fn kept_since(subscriber: &Subscriber) -> Result<i64> {
    let now = clock::now_us()?;
    Ok(subscriber
        .dead_for_us
        .map_or(i64::MIN, |dead_for| now - dead_for))
}

/// `once.outbox_discard`.
pub fn outbox_discard(call: &Call) -> Result<Datum> {
    table::ensure_writable(TABLE)?;
    let subscriber = Subscriber::named_in(call)?;
    let ids = call.opt_i64s(2, "event_ids")?.ok_or_else(|| {
        Error::bad_argument(
            "event_ids",
            "must not be null",
            "Name the events that once.outbox_dead lists: ARRAY[41, 42].",
        )
    })?;
    let args = [Some(Datum::from(subscriber.id)), Some(row::i64s(&ids))];
    let rows = spi::query_latest(&DISCARDED, &args)?;
    Ok(Datum::from(rows.first().map_or(0, |r| number(r, 0) as i32)))
}

/// Redrives dead letters that this transaction has locked; `found` has their event_ids and order_keys.
fn redrive(sub: &Subscriber, found: &[spi::Row]) -> Result<i32> {
    if found.is_empty() {
        return Ok(0);
    }
    // As an emit does, gets a transaction id, then an event id. The new event id makes the takes of all backends look
    // through their lanes again (quiet.rs).
    table::own_xid();
    Sequence::next(c"event_id")?;
    let ids: Vec<i64> = found.iter().map(|r| number(r, 0)).collect();
    let lanes = found.iter().map(|r| lane(&sub.topic, column(r, 1)).into());
    let args = [
        Datum::from(sub.id),
        Datum::from(clock::now_us()?),
        row::i64s(&ids),
        row::array(lanes, pg_sys::INT4OID),
        Datum::from(DELAYED_LANE),
    ];
    let rows = spi::query_latest(&REDRIVEN, &args.map(Some))?;
    Ok(rows.first().map_or(0, |r| number(r, 0) as i32))
}

/// The lane of an event under the topic's present options.
fn lane(topic: &Topic, order_key: Option<Datum>) -> i32 {
    order_key.map_or(UNORDERED[0], |key| lane_of_key(varlena(key), topic.lanes))
}

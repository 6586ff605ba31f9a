//! `subscriber_set`, `subscriber_get`, `subscriber_drop`.
//!
//! A new subscriber gets the events that a snapshot at its creation does not see. The creation locks once.subscriber as
//! any INSERT does, and then takes the snapshot. The sweep task outbox_retire locks that table against writers before
//! it looks for needed events. So it runs only while no transaction makes a subscriber.
//!
//! An emit of a delayed event writes a row in once.retry for each subscriber of the topic. So the emit waits for an
//! open change of the topic's subscribers, and the change waits for open emits of delayed events.

use super::lock;
use crate::call::{Call, SCOPE_MAX};
use crate::caller;
use crate::error::{Error, Result};
use crate::options::{Given, Member};
use crate::outbox::seen::Seen;
use crate::outbox::series;
use crate::outbox::take::lock_of;
use crate::outbox::topic::{SUBSCRIBERS, Subscriber, TOPICS, Topic};
use crate::row;
use crate::spi::{self, Kept};
use crate::table::{self, Table};
use crate::trylock::TryLock;
use pgrx::pg_sys::{BOOLOID, Datum, INT4OID, INT8OID, JSONBOID, TEXTOID};

const FIND: &std::ffi::CStr = c"
    SELECT s.subscriber_id FROM once.subscriber s WHERE s.topic_id = $1 AND s.subscriber = $2";

const COUNT: &std::ffi::CStr = c"
    UPDATE once.topic SET subscribers = subscribers + 1 WHERE topic_id = $1 RETURNING 1";

const SET: &std::ffi::CStr = c"
    UPDATE once.subscriber SET
        max_attempts      = CASE WHEN $2 ? 'max_attempts' THEN $3 ELSE max_attempts END,
        backoff_base_us   = CASE WHEN $2 ? 'backoff_base' THEN $4 ELSE backoff_base_us END,
        backoff_cap_us    = CASE WHEN $2 ? 'backoff_cap' THEN $5 ELSE backoff_cap_us END,
        lease_us          = CASE WHEN $2 ? 'lease' THEN $6 ELSE lease_us END,
        max_lease_life_us = CASE WHEN $2 ? 'max_lease_life' THEN $7 ELSE max_lease_life_us END,
        dead_for_us       = CASE WHEN $2 ? 'dead_for' THEN $8 ELSE dead_for_us END,
        paused            = CASE WHEN $2 ? 'paused' THEN COALESCE(($2 ->> 'paused')::boolean, false) ELSE paused END
     WHERE subscriber_id = $1 RETURNING 1";

const GET: &std::ffi::CStr = c"
    SELECT pg_catalog.jsonb_build_object(
        'max_attempts', $1,
        'backoff_base', $2 * interval '1 microsecond',
        'backoff_cap', $3 * interval '1 microsecond',
        'lease', $4 * interval '1 microsecond',
        'max_lease_life', $5 * interval '1 microsecond',
        'dead_for', $6 * interval '1 microsecond',
        'paused', $7)::pg_catalog.json";

// An ack or nack locks the batch before it writes its receipt. So after these rows are locked, no other transaction
// adds a receipt.
const HOLD: &std::ffi::CStr = c"
    SELECT pg_catalog.count(*)
      FROM (SELECT FROM once.batch WHERE subscriber_id = $1 FOR UPDATE) held";

const DROP: &std::ffi::CStr = c"
    WITH subscriber AS (DELETE FROM once.subscriber WHERE subscriber_id = $1 RETURNING topic_id),
         batch AS (DELETE FROM once.batch WHERE subscriber_id = $1),
         receipt AS (DELETE FROM once.receipt WHERE subscriber_id = $1),
         retry AS (DELETE FROM once.retry WHERE subscriber_id = $1),
         dead AS (DELETE FROM once.dead WHERE subscriber_id = $1),
         delivery AS (DELETE FROM once.delivery WHERE subscriber_id = $1)
    UPDATE once.topic t SET subscribers = t.subscribers - 1
      FROM subscriber WHERE t.topic_id = subscriber.topic_id";

static FIND_ONE: Kept = Kept::new(FIND, &[INT4OID, TEXTOID]);
static COUNT_ONE: Kept = Kept::new(COUNT, &[INT4OID]);
static SET_ALL: Kept = Kept::new(
    SET,
    &[
        INT4OID, JSONBOID, INT4OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID,
    ],
);
static GET_ALL: Kept = Kept::new(
    GET,
    &[
        INT4OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, BOOLOID,
    ],
);
static HOLD_ALL: Kept = Kept::new(HOLD, &[INT4OID]);
static DROP_ALL: Kept = Kept::new(DROP, &[INT4OID]);

/// The values of a change; None: the option is not named, or is reset to its default.
#[derive(Default)]
struct SubscriberChange {
    max_attempts: Option<i32>,
    base_us: Option<i64>,
    cap_us: Option<i64>,
    lease_us: Option<i64>,
    max_life_us: Option<i64>,
    dead_for_us: Option<i64>,
}

/// `once.subscriber_set`.
pub fn subscriber_set(call: &Call) -> Result<Datum> {
    let topic = Topic::named_in(call)?;
    let name = call.text(1, "subscriber", SCOPE_MAX)?;
    let options = Given::of(call, 2, OPTIONS_HINT)?;
    let mut change = SubscriberChange::default();
    for option in &options.members {
        read_option(option, &mut change)?;
    }
    let topic = lock::existing(&topic.name)?;
    caller::follow_renames()?;
    let id = match find(&topic, name)? {
        Some(id) => id,
        None => create(&topic, name)?,
    };
    let set = spi::query(
        &SET_ALL,
        &[
            Some(Datum::from(id)),
            Some(options.jsonb),
            change.max_attempts.map(Datum::from),
            change.base_us.map(Datum::from),
            change.cap_us.map(Datum::from),
            change.lease_us.map(Datum::from),
            change.max_life_us.map(Datum::from),
            change.dead_for_us.map(Datum::from),
        ],
    )?;
    table::tell_all(&[SUBSCRIBERS])?;
    match set.is_empty() {
        true => Err(lock::raced(&topic.name)),
        false => all_options(&Subscriber::named(topic, name)?),
    }
}

/// The id of a topic's subscriber, as committed now. The caller has locked the topic.
fn find(topic: &Topic, name: &[u8]) -> Result<Option<i32>> {
    let args = [Some(Datum::from(topic.id)), Some(row::text(name))];
    let rows = spi::query_latest(&FIND_ONE, &args)?;
    Ok(spi::first(&rows).map(|d| d.value() as i32))
}

/// Makes a subscriber. The topic, which the caller has locked, has no subscriber of that name.
pub fn create(topic: &Topic, name: &[u8]) -> Result<i32> {
    let id = lock::next_number()?;
    topic.change_subscribers();
    if spi::query(&COUNT_ONE, &[Some(Datum::from(topic.id))])?.is_empty() {
        return Err(lock::raced(&topic.name));
    }
    let series = series::current()?;
    let table = Table::to_write(SUBSCRIBERS)?;
    // The subscriber does not get the events that this transaction has emitted before.
    let (start, _) = Seen::now()?;
    table.insert(&[
        Some(Datum::from(id)),
        Some(Datum::from(topic.id)),
        Some(Datum::from(series)),
        None,
        None,
        None,
        None,
        None,
        None,
        Some(start.datum()),
        Some(Datum::from(false)),
        Some(row::text(name)),
    ])?;
    table::tell_all(&[TOPICS, SUBSCRIBERS])?;
    Ok(id)
}

/// `once.subscriber_get`.
pub fn subscriber_get(call: &Call) -> Result<Datum> {
    all_options(&Subscriber::named_in(call)?)
}

pub fn all_options(subscriber: &Subscriber) -> Result<Datum> {
    let rows = spi::query(
        &GET_ALL,
        &[
            Some(Datum::from(subscriber.max_attempts)),
            Some(Datum::from(subscriber.base_us)),
            Some(Datum::from(subscriber.cap_us)),
            Some(Datum::from(subscriber.lease_us)),
            Some(Datum::from(subscriber.max_life_us)),
            subscriber.dead_for_us.map(Datum::from),
            Some(Datum::from(subscriber.paused)),
        ],
    )?;
    spi::first(&rows).ok_or_else(|| Error::internal("a subscriber without options"))
}

/// `once.subscriber_drop`. Waits for open takes, acks and nacks of the subscriber, and open emits of delayed events.
pub fn subscriber_drop(call: &Call) -> Result<Datum> {
    let subscriber = Subscriber::named_in(call)?;
    lock::existing(&subscriber.topic.name)?;
    // The subscriber may have been dropped while this call waited for the topic.
    let subscriber = Subscriber::named_in(call)?;
    for lane in subscriber.lanes() {
        TryLock::wait(lock_of(&subscriber, lane)).keep();
    }
    let number = [Some(Datum::from(subscriber.id))];
    spi::query_latest(&HOLD_ALL, &number)?;
    // A transaction may nack, then emit a delayed event. To avoid a deadlock, lock in the same order: batches first.
    subscriber.topic.change_subscribers();
    spi::query_latest(&DROP_ALL, &number)?;
    table::tell_all(&[TOPICS, SUBSCRIBERS])?;
    // This may have been the last subscriber. Without subscribers, outbox_retire does its work only if this incarnation
    // has begun a series. So begin one here.
    series::current()?;
    Ok(call.return_null())
}

fn read_option(option: &Member, change: &mut SubscriberChange) -> Result<()> {
    match option.name {
        b"max_attempts" => change.max_attempts = option.count(i32::MAX)?,
        b"backoff_base" => change.base_us = option.duration(1)?,
        b"backoff_cap" => change.cap_us = option.duration(1)?,
        b"lease" => change.lease_us = option.duration(1)?,
        b"max_lease_life" => change.max_life_us = option.duration(1)?,
        b"dead_for" => change.dead_for_us = option.duration(1)?,
        // The UPDATE reads `paused` from the options' JSON.
        b"paused" => option.boolean()?,
        _ => return Err(option.unknown()),
    }
    Ok(())
}

const OPTIONS_HINT: &str =
    "Options: max_attempts, backoff_base, backoff_cap, lease, max_lease_life, dead_for, paused.";

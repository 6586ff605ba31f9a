//! `topic_set`, `topic_get` and `topic_drop`.

use super::lock;
use super::{idle, subscriber};
use crate::call::{Call, SCOPE_MAX, shown, texts};
use crate::caller::{self, Owner};
use crate::error::{Error, Kind, Result};
use crate::incarnation;
use crate::options::{Given, Member};
use crate::outbox::topic::{DEDUPE_US, LANES, TOPICS, Topic};
use crate::spi::{self, Kept};
use crate::table;
use pgrx::pg_sys::{Datum, INT4OID, INT8OID, JSONBOID, OIDOID};

const LANES_MAX: i32 = 1_000;

const SET: &std::ffi::CStr = c"
    UPDATE once.topic SET
        lanes         = CASE WHEN $2 ? 'lanes' THEN $3 ELSE lanes END,
        dedupe_for_us = CASE WHEN $2 ? 'dedupe_for' THEN $4 ELSE dedupe_for_us END,
        owner         = CASE WHEN $2 ? 'owner' THEN $5 ELSE owner END,
        owner_name    = CASE WHEN $2 ? 'owner' THEN (SELECT r.rolname FROM pg_catalog.pg_roles r
                                                      WHERE r.oid = $5) ELSE owner_name END,
        owner_incarnation = CASE WHEN $2 ? 'owner' THEN $6 ELSE owner_incarnation END
     WHERE topic_id = $1";

const GET: &std::ffi::CStr = c"
    SELECT pg_catalog.jsonb_build_object(
        'lanes', COALESCE(t.lanes, $2),
        'dedupe_for', COALESCE(t.dedupe_for_us, $3) * interval '1 microsecond',
        'subscribers', (SELECT COALESCE(pg_catalog.jsonb_agg(s.subscriber ORDER BY s.subscriber), '[]')
                          FROM once.subscriber s WHERE s.topic_id = t.topic_id),
        'owner', COALESCE((SELECT r.rolname FROM pg_catalog.pg_roles r
                            WHERE r.oid = t.owner AND t.owner_incarnation = $4), t.owner_name)::text)::pg_catalog.json
      FROM once.topic t WHERE t.topic_id = $1";

const NAMES: &std::ffi::CStr = c"
    SELECT pg_catalog.array_agg(s.subscriber) FROM once.subscriber s WHERE s.topic_id = $1";

const DROP: &std::ffi::CStr = c"
    DELETE FROM once.topic WHERE topic_id = $1 AND subscribers = 0 RETURNING 1";

static DROP_ONE: Kept = Kept::new(DROP, &[INT4OID]);
static SET_ALL: Kept = Kept::new(SET, &[INT4OID, JSONBOID, INT4OID, INT8OID, OIDOID, INT8OID]);
static GET_ALL: Kept = Kept::new(GET, &[INT4OID, INT4OID, INT8OID, INT8OID]);
static NAMES_OF: Kept = Kept::new(NAMES, &[INT4OID]);

/// The values of a change; None: the option is not named, or is reset to its default.
#[derive(Default)]
struct TopicChange<'a> {
    lanes: Option<i32>,
    sets_lanes: bool,
    dedupe_us: Option<i64>,
    owner: Option<Datum>,
    subscribers: Option<Vec<&'a [u8]>>,
}

/// `once.topic_set`.
pub fn topic_set(call: &Call) -> Result<Datum> {
    let name = call.text(0, "topic", SCOPE_MAX)?;
    let options = Given::of(call, 1, OPTIONS_HINT)?;
    lock::find(name)?;
    let mut change = TopicChange::default();
    for option in &options.members {
        read_option(option, &mut change)?;
    }
    if let Some(role) = change.owner {
        Owner::Role(role).ensure_member("topic", name)?;
    }
    let (topic, created) = lock::existing_or_new(name)?;
    caller::follow_renames()?;
    if let Some(wanted) = change.subscribers.as_ref().filter(|_| !created) {
        ensure_same_subscribers(&topic, wanted)?;
    }
    if change.sets_lanes && change.lanes.unwrap_or(LANES) != topic.lanes && !created {
        idle::ensure(&topic)?;
    }
    spi::query(
        &SET_ALL,
        &[
            Some(Datum::from(topic.id)),
            Some(options.jsonb),
            change.lanes.map(Datum::from),
            change.dedupe_us.map(Datum::from),
            change.owner,
            Some(Datum::from(incarnation::present()?)),
        ],
    )?;
    table::tell_all(&[TOPICS])?;
    if created {
        for subscriber in change.subscribers.unwrap_or_else(default_subscribers) {
            subscriber::create(&topic, subscriber)?;
        }
    }
    all_options(&topic)
}

/// `once.topic_get`.
pub fn topic_get(call: &Call) -> Result<Datum> {
    all_options(&Topic::named_in(call)?)
}

fn all_options(topic: &Topic) -> Result<Datum> {
    options_if_there(topic)?.ok_or_else(|| Error::internal("a topic without options"))
}

/// The options of a topic. None: the topic was dropped since it was read.
pub fn options_if_there(topic: &Topic) -> Result<Option<Datum>> {
    let rows = spi::query_latest(
        &GET_ALL,
        &[
            Some(Datum::from(topic.id)),
            Some(Datum::from(LANES)),
            Some(Datum::from(DEDUPE_US)),
            Some(Datum::from(incarnation::present()?)),
        ],
    )?;
    Ok(spi::first(&rows))
}

fn read_option<'a>(option: &Member<'a>, change: &mut TopicChange<'a>) -> Result<()> {
    match option.name {
        b"lanes" => {
            change.lanes = option.count(LANES_MAX)?;
            change.sets_lanes = true;
        }
        b"dedupe_for" => change.dedupe_us = option.duration(1)?,
        b"owner" => change.owner = option.role()?,
        b"subscribers" => {
            let names = option.texts(SCOPE_MAX)?;
            change.subscribers = Some(names.unwrap_or_else(default_subscribers));
        }
        _ => return Err(option.unknown()),
    }
    Ok(())
}

const OPTIONS_HINT: &str =
    "Options: dedupe_for, lanes, owner, and subscribers where the topic is new.";

fn default_subscribers<'a>() -> Vec<&'a [u8]> {
    vec![b"default"]
}

/// A repeated topic_set that names subscribers must name exactly those that the topic has; subscriber_set adds others.
fn ensure_same_subscribers(topic: &Topic, wanted: &[&[u8]]) -> Result<()> {
    let rows = spi::query_latest(&NAMES_OF, &[Some(Datum::from(topic.id))])?;
    let present = spi::first(&rows).map(texts).unwrap_or_default();
    let same = present.len() == wanted.len() && wanted.iter().all(|w| present.contains(w));
    match same {
        true => Ok(()),
        false => Err(Error::bad_argument(
            "options",
            format!(
                "names other subscribers than topic \"{}\" has: option \"subscribers\" is for a new topic",
                shown(&topic.name)
            ),
            "Add a subscriber with once.subscriber_set(topic, subscriber), remove one with once.subscriber_drop.",
        )),
    }
}

/// `once.topic_drop`. The topic's events have no subscriber, so outbox_retire removes them.
pub fn topic_drop(call: &Call) -> Result<Datum> {
    let topic = Topic::named_in(call)?;
    let topic = lock::existing(&topic.name)?;
    if spi::query_latest(&DROP_ONE, &[Some(Datum::from(topic.id))])?.is_empty() {
        return Err(Error::new(
            Kind::InUse,
            format!("topic \"{}\" has {} subscribers", shown(&topic.name), topic.subscribers),
        )
        .hint("Drop its subscribers first: once.subscriber_drop(topic, subscriber) removes one subscriber and its backlog."));
    }
    table::tell_all(&[TOPICS])?;
    Ok(call.return_null())
}

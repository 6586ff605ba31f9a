//! `topic_list`: topics and subscribers with their options and backlogs.

use super::backlog::BacklogLook;
use super::dead;
use crate::call::{Call, shown};
use crate::clock;
use crate::error::Result;
use crate::outbox::options::{subscriber_options, topic_options};
use crate::outbox::topic::{Subscriber, Topic, all_subscribers, all_topics};
use crate::row::{self, Rows};
use crate::spi::{self, Kept};
use crate::table::Snapshot;
use pgrx::pg_sys::{Datum, JSONOID};
use std::collections::{BTreeMap, HashMap};

// $1 options of the topic, $2 of the subscriber. No option of a topic has the name of a subscriber's option.
const MERGED: &std::ffi::CStr = c"
    SELECT ($1::pg_catalog.jsonb || $2::pg_catalog.jsonb)::pg_catalog.json";

static MERGE: Kept = Kept::new(MERGED, &[JSONOID, JSONOID]);

/// `once.topic_list`.
pub fn topic_list(call: &Call) -> Result<Datum> {
    let rows = Rows::begin(call);
    let topics = all_topics(&Snapshot::latest())?;
    let mut by_name: BTreeMap<&[u8], (&Topic, Vec<Subscriber>)> = topics
        .values()
        .map(|t| (&*t.name, (t, Vec::new())))
        .collect();
    for subscriber in all_subscribers()? {
        if let Some((_, of)) = by_name.get_mut(&*subscriber.topic.name) {
            of.push(subscriber);
        }
    }
    let dead: HashMap<(String, String), f64> = dead::count()?
        .into_iter()
        .map(|d| ((d.topic, d.subscriber), d.count))
        .collect();
    let look = BacklogLook::begin()?;
    for (name, (topic, subscribers)) in by_name {
        let Some(options) = topic_options(topic)? else {
            continue;
        };
        if subscribers.is_empty() {
            let none = [None; 4];
            rows.push(&[&[Some(row::text(name)), None, Some(options)], &none[..]].concat());
        }
        for subscriber in subscribers {
            let backlog = look.backlog(&subscriber)?;
            let both = [Some(options), Some(subscriber_options(&subscriber)?)];
            let letters = dead.get(&(shown(name), shown(&subscriber.name)));
            rows.push(&[
                Some(row::text(name)),
                Some(row::text(&subscriber.name)),
                spi::first(&spi::query(&MERGE, &both)?),
                Some(Datum::from(subscriber.paused)),
                look.lag_us(&backlog).map(clock::interval_datum),
                Some(Datum::from(backlog.depth.round() as i64)),
                Some(Datum::from(letters.copied().unwrap_or(0.0) as i64)),
            ]);
        }
    }
    Ok(call.return_null())
}

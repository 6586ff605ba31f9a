//! Finds the topic and the subscriber that a call names, and checks the owner. A lookup costs at most one index probe.

use super::event::UNORDERED;
use super::seen::Seen;
use crate::call::{Call, SCOPE_MAX, shown, varlena};
use crate::caller::Owner;
use crate::clock::DAY_US;
use crate::error::{Error, Kind, Result};
use crate::row;
use crate::table::{KeptRow, Name, Recalled, ScanKey, Snapshot, Table};
use crate::trylock::TryLock;
use pgrx::pg_sys::Datum;
use std::collections::HashMap;
use std::rc::Rc;

pub const TOPICS: Name = c"topic";
const BY_NAME: Name = c"topic_name";
const BY_TOPIC: Name = c"topic_pkey";
pub const SUBSCRIBERS: Name = c"subscriber";
const BY_NUMBER: Name = c"subscriber_pkey";
const BY_SUBSCRIBER: Name = c"subscriber_name";

/// The rows of topics by name, and of subscribers by topic and name.
static STORED_TOPICS: Recalled<Option<KeptRow>> = Recalled::new(TOPICS);
static STORED_SUBSCRIBERS: Recalled<Option<KeptRow>> = Recalled::new(SUBSCRIBERS);

/// The defaults of options.
pub const LANES: i32 = 16;
pub const DEDUPE_US: i64 = DAY_US;
pub const DEFAULT_MAX_ATTEMPTS: i32 = 10;
pub const BACKOFF_BASE_US: i64 = 1_000_000;
pub const BACKOFF_CAP_US: i64 = 3_600_000_000;
pub const LEASE_US: i64 = 60_000_000;
pub const MAX_LEASE_LIFE_US: i64 = DAY_US;

/// A topic with its options in force.
#[derive(Clone)]
pub struct Topic {
    pub id: i32,
    pub lanes: i32,
    pub dedupe_us: i64,
    /// The number of its subscribers.
    pub subscribers: i32,
    pub name: Vec<u8>,
}

impl Topic {
    /// The topic that argument 0 names; 42501 for a caller without the owner's rights.
    pub fn named_in(call: &Call) -> Result<Topic> {
        Topic::named(call.text(0, "topic", SCOPE_MAX)?)
    }

    /// A topic by name; 42501 for a caller without the owner's rights.
    pub fn named(name: &[u8]) -> Result<Topic> {
        let stored = Topic::stored(name)?;
        let Some(row) = stored.as_ref() else {
            return Err(Error::new(
                Kind::UndefinedObject,
                format!("topic \"{}\" does not exist", shown(name)),
            )
            .hint("Create it with once.topic_set(topic)."));
        };
        if let Some(owner) = Owner::stored(row.column(5), row.column(6), row.column(7))? {
            owner.ensure_member("topic", name)?;
        }
        Ok(Topic::load(|column| row.column(column)))
    }

    /// A topic by name without the check of the owner: for events that were checked when they were registered.
    pub fn registered(name: &[u8]) -> Result<Option<Topic>> {
        let stored = Topic::stored(name)?;
        let row = stored.as_ref().as_ref();
        Ok(row.map(|row| Topic::load(|column| row.column(column))))
    }

    fn stored(name: &[u8]) -> Result<Rc<Option<KeptRow>>> {
        STORED_TOPICS.get(name, || {
            let table = Table::to_read(TOPICS)?;
            let key = &mut [ScanKey::text(1, row::text(name))];
            let found = table.find(BY_NAME, key, &Snapshot::latest())?;
            Ok(found.as_ref().map(KeptRow::of))
        })
    }

    /// Blocks changes of the topic's subscribers until this transaction ends, because a delayed event gets a row for
    /// each of them. Waits for an open transaction that makes or drops a subscriber.
    pub fn hold_subscribers(&self) {
        TryLock::wait_shared(self.subscribers_lock()).keep();
    }

    /// Called before the topic's subscribers change: waits for open transactions that have emitted delayed events.
    pub fn change_subscribers(&self) {
        TryLock::wait(self.subscribers_lock()).keep();
    }

    /// No lane has this lock number (take.rs), because topics and subscribers get their ids from the same sequence.
    fn subscribers_lock(&self) -> u64 {
        (self.id as u64) << 32
    }

    fn load(column: impl Fn(usize) -> Option<Datum>) -> Topic {
        let int = |number| column(number).map(|d| d.value() as i64);
        Topic {
            id: int(1).unwrap_or(0) as i32,
            subscribers: int(2).unwrap_or(0) as i32,
            lanes: int(3).map_or(LANES, |n| n as i32),
            dedupe_us: int(4).unwrap_or(DEDUPE_US),
            name: column(8).map(varlena).unwrap_or_default().to_vec(),
        }
    }
}

/// A subscriber of a topic with its options in force.
pub struct Subscriber {
    pub topic: Topic,
    pub id: i32,
    pub name: Vec<u8>,
    pub max_attempts: i32,
    pub base_us: i64,
    pub cap_us: i64,
    pub lease_us: i64,
    pub max_life_us: i64,
    /// None: dead letters stay until they are redriven or discarded.
    pub dead_for_us: Option<i64>,
    pub paused: bool,
    pub start_series: i32,
    /// Taken when the subscriber was created. The subscriber gets only the events that this snapshot did not see.
    pub start: Seen,
}

impl Subscriber {
    /// The subscriber that arguments 0 and 1 name; 42501 for a caller without the rights of the topic's owner.
    pub fn named_in(call: &Call) -> Result<Subscriber> {
        let topic = Topic::named_in(call)?;
        Subscriber::named(topic, call.text(1, "subscriber", SCOPE_MAX)?)
    }

    /// A topic's subscriber by name.
    pub fn named(topic: Topic, name: &[u8]) -> Result<Subscriber> {
        let of_topic = [&topic.id.to_ne_bytes(), name].concat();
        let stored = STORED_SUBSCRIBERS.get(&of_topic, || {
            let table = Table::to_read(SUBSCRIBERS)?;
            let keys = &mut [ScanKey::i32(1, topic.id), ScanKey::text(2, row::text(name))];
            let found = table.find(BY_SUBSCRIBER, keys, &Snapshot::latest())?;
            Ok(found.as_ref().map(KeptRow::of))
        })?;
        match stored.as_ref() {
            Some(row) => Subscriber::load(topic, |column| row.column(column)),
            None => Err(missing(&topic.name, name)),
        }
    }

    fn load(topic: Topic, column: impl Fn(usize) -> Option<Datum>) -> Result<Subscriber> {
        let int = |number| column(number).map(|d| d.value() as i64);
        Ok(Subscriber {
            topic,
            id: int(1).unwrap_or(0) as i32,
            start_series: int(3).unwrap_or(0) as i32,
            max_attempts: int(4).map_or(DEFAULT_MAX_ATTEMPTS, |n| n as i32),
            base_us: int(5).unwrap_or(BACKOFF_BASE_US),
            cap_us: int(6).unwrap_or(BACKOFF_CAP_US),
            lease_us: int(7).unwrap_or(LEASE_US),
            max_life_us: int(8).unwrap_or(MAX_LEASE_LIFE_US),
            dead_for_us: int(9),
            paused: int(11) == Some(1),
            start: column(10).map_or_else(|| Ok(Seen::nothing()), Seen::stored)?,
            name: column(12).map(varlena).unwrap_or_default().to_vec(),
        })
    }

    /// 42704 if the subscriber was dropped since it was read.
    pub fn ensure_there(&self, snapshot: &Snapshot) -> Result<()> {
        let table = Table::to_read(SUBSCRIBERS)?;
        let found = table.find(BY_NUMBER, &mut [ScanKey::i32(1, self.id)], snapshot)?;
        match found {
            Some(_) => Ok(()),
            None => Err(missing(&self.topic.name, &self.name)),
        }
    }

    /// Its name in errors: subscriber "x" of topic "y".
    pub fn shown(&self) -> String {
        let (name, topic) = (shown(&self.name), shown(&self.topic.name));
        format!("subscriber \"{name}\" of topic \"{topic}\"")
    }

    /// The lanes of events without order_key, then the topic's keyed lanes.
    pub fn lanes(&self) -> impl Iterator<Item = i32> + use<> {
        UNORDERED.into_iter().chain(1..=self.topic.lanes)
    }
}

/// Every subscriber of every topic, topic by topic, without the check of owners.
pub fn all_subscribers() -> Result<Vec<Subscriber>> {
    let snapshot = Snapshot::latest();
    let topics = all_topics(&snapshot)?;
    let table = Table::to_read(SUBSCRIBERS)?;
    let mut scan = table.scan(BY_SUBSCRIBER, &mut [], &snapshot)?;
    let mut all = Vec::new();
    while let Some(slot) = scan.advance() {
        let topic = slot.column(2).map_or(0, |d| d.value() as i32);
        if let Some(topic) = topics.get(&topic) {
            all.push(Subscriber::load(topic.clone(), |column| {
                slot.column(column)
            })?);
        }
    }
    Ok(all)
}

/// Topics by number.
pub fn all_topics(snapshot: &Snapshot) -> Result<HashMap<i32, Topic>> {
    let table = Table::to_read(TOPICS)?;
    let mut scan = table.scan(BY_TOPIC, &mut [], snapshot)?;
    let mut all = HashMap::new();
    while let Some(slot) = scan.advance() {
        let topic = Topic::load(|column| slot.column(column));
        all.insert(topic.id, topic);
    }
    Ok(all)
}

fn missing(topic: &[u8], name: &[u8]) -> Error {
    Error::new(
        Kind::UndefinedObject,
        format!(
            "topic \"{}\" has no subscriber \"{}\"",
            shown(topic),
            shown(name)
        ),
    )
    .hint("Add it with once.subscriber_set(topic, subscriber); once.topic_get(topic) names the topic's subscribers.")
}

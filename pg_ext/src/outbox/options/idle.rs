//! A change of a topic's lanes needs the proof that no event of the topic is pending. Otherwise the events of an
//! order_key could be in two lanes, and be delivered out of order.
//!
//! Emitters lock their segment as any INSERT does, redrives lock the topic's row, and both read the topic's lanes after
//! that. The change of the lanes locks the topic's row, too. It also locks the segments and once.retry against writers.
//! So emits and redrives wait, and then use the new lanes. Three kinds of events are pending: events of the log that no
//! take has handed out, events of open batches, and events in once.retry. Dead letters are not pending: a redrive
//! computes their lanes anew.

use crate::call::shown;
use crate::error::{Error, Kind, Result};
use crate::outbox::batch::{Batch, Part};
use crate::outbox::event::{Home, SEGMENTS};
use crate::outbox::receipt;
use crate::outbox::retry;
use crate::outbox::seen::Seen;
use crate::outbox::series;
use crate::outbox::topic::{Subscriber, Topic, all_subscribers};
use crate::outbox::window::{self, LaneLog, Window};
use crate::settings;
use crate::table::{Name, ScanKey, Snapshot, Table, lock_against_writers};

/// Raises 55006 if an event of the topic is pending. Until this transaction ends, no event becomes pending.
pub fn ensure(topic: &Topic) -> Result<()> {
    let mut tables: Vec<Name> = SEGMENTS.iter().map(|home| home.table).collect();
    tables.push(retry::TABLE);
    settings::with_sweep_lock_timeout(|| lock_against_writers(&tables))?;
    let log = window::tables()?;
    let (seen, snapshot) = Seen::now()?;
    let present = series::current()?;
    let now = LockedLog {
        log,
        seen,
        snapshot,
        present,
    };
    for subscriber in all_subscribers()? {
        if subscriber.topic.id == topic.id && now.is_pending(&subscriber)? {
            return Err(pending(&subscriber));
        }
    }
    Ok(())
}

fn pending(subscriber: &Subscriber) -> Error {
    let (topic, name) = (shown(&subscriber.topic.name), shown(&subscriber.name));
    Error::new(
        Kind::InUse,
        format!("events of topic \"{topic}\" are pending, so its lanes cannot change"),
    )
    .detail(format!(
        "Subscriber \"{name}\" has not acked everything that was emitted."
    ))
    .hint(format!(
        "Let workers ack every event while nothing is emitted, or drop \"{name}\" with once.subscriber_drop."
    ))
}

/// The log as it is under the locks.
struct LockedLog {
    log: Vec<(&'static Home, Table)>,
    seen: Seen,
    snapshot: Snapshot,
    present: i32,
}

impl LockedLog {
    fn is_pending(&self, subscriber: &Subscriber) -> Result<bool> {
        let keys = &mut [ScanKey::i32(1, subscriber.id)];
        let retries = Table::to_read(retry::TABLE)?.find(retry::BY_EVENT, keys, &self.snapshot)?;
        if retries.is_some() {
            return Ok(true);
        }
        for lane in subscriber.lanes() {
            let last = Part::last(subscriber.id, lane, &self.snapshot)?;
            if self.is_out(subscriber, last.as_ref())? || self.is_in_log(subscriber, lane, last)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a batch of the lane still holds events.
    fn is_out(&self, subscriber: &Subscriber, last: Option<&Part>) -> Result<bool> {
        let Some(last) = last else {
            return Ok(false);
        };
        for token in last.out() {
            let there = Batch::find_under(subscriber.id, token, &self.snapshot)?.is_some();
            if there && !receipt::is_over(subscriber.id, token, &self.snapshot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the lane has events that the subscriber has not read past.
    fn is_in_log(&self, subscriber: &Subscriber, lane: i32, last: Option<Part>) -> Result<bool> {
        let log = LaneLog {
            topic: subscriber.topic.id,
            lane,
            tables: &self.log,
            snapshot: &self.snapshot,
            seen: &self.seen,
            series: self.present,
        };
        let mut found = false;
        Window::behind(subscriber, last.as_ref())?.walk(&log, |_| {
            found = true;
            Ok(false)
        })?;
        Ok(found)
    }
}

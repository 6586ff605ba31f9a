//! Finds, makes and locks the row of a topic.
//!
//! When two sessions create the same topic, the second waits for the first and uses its row. Above READ COMMITTED the
//! second gets 40001. No session gets 23505.

use crate::call::shown;
use crate::error::{Error, Kind, Result};
use crate::outbox::topic::{TOPICS, Topic};
use crate::row;
use crate::spi::{self, Kept};
use crate::table::{self, ensure_writable};
use crate::trylock::{self, TryLock};
use pgrx::pg_sys::{Datum, INT4OID, TEXTOID};

const LOCK: &std::ffi::CStr = c"
    SELECT t.topic_id FROM once.topic t WHERE t.topic = $1 FOR NO KEY UPDATE";

const CREATE: &std::ffi::CStr = c"
    INSERT INTO once.topic AS t (topic_id, subscribers, topic) VALUES ($2, 0, $1)
    ON CONFLICT (topic) DO UPDATE SET topic = excluded.topic
    RETURNING t.topic_id";

// In a logical copy of the database the sequence can be behind the rows.
const NEXT: &std::ffi::CStr = c"
    SELECT setval('once.outbox_id', greatest(nextval('once.outbox_id'),
                                             (SELECT max(topic_id) FROM once.topic) + 1,
                                             (SELECT max(subscriber_id) FROM once.subscriber) + 1))";

static NEXT_NUMBER: Kept = Kept::new(NEXT, &[]);
static LOCK_ROW: Kept = Kept::new(LOCK, &[TEXTOID]);
static CREATE_ROW: Kept = Kept::new(CREATE, &[TEXTOID, INT4OID]);

/// A number that no topic and no subscriber has.
pub fn next_number() -> Result<i32> {
    // One session at a time: setval must not undo the nextval of another session.
    let _lock = TryLock::wait(trylock::OUTBOX_NUMBERS);
    let rows = spi::query_latest(&NEXT_NUMBER, &[])?;
    Ok(rows.first().map_or(0, |row| spi::number(row, 0)) as i32)
}

/// A topic as it is committed now, if it exists; 42501 for a caller without the owner's rights.
pub fn find(name: &[u8]) -> Result<Option<Topic>> {
    match Topic::named(name) {
        Err(error) if error.kind == Kind::UndefinedObject => Ok(None),
        found => found.map(Some),
    }
}

/// Locks the row of an existing topic, and then checks its owner.
pub fn existing(name: &[u8]) -> Result<Topic> {
    ensure_writable(c"topic")?;
    // The caller has found the topic. If this statement does not see its row, the row is newer than the snapshot.
    if !locked(name)? && table::above_read_committed() {
        return Err(raced(name));
    }
    Topic::named(name)
}

/// Locks the row of a topic, and creates the topic if it does not exist. True: this call created it.
pub fn existing_or_new(name: &[u8]) -> Result<(Topic, bool)> {
    ensure_writable(c"topic")?;
    let mut created = false;
    if !locked(name)? {
        let id = next_number()?;
        let rows = spi::query(&CREATE_ROW, &[Some(row::text(name)), Some(Datum::from(id))])?;
        created = spi::first(&rows).is_some_and(|d| d.value() as i32 == id);
        table::tell_all(&[TOPICS])?;
    }
    Ok((Topic::named(name)?, created))
}

fn locked(name: &[u8]) -> Result<bool> {
    let rows = spi::query(&LOCK_ROW, &[Some(row::text(name))])?;
    Ok(!rows.is_empty())
}

/// 40001 for a topic that changed after this transaction's snapshot.
pub fn raced(name: &[u8]) -> Error {
    Error::retry_transaction(format!("topic \"{}\"", shown(name)))
}

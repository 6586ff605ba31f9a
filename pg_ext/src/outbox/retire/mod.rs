//! The sweep task `outbox_retire`: truncates the segments that no subscriber needs any more.
//!
//! The life of a segment:
//! 1. The segment is current until it is full (or old and mostly not needed) and another segment is empty.
//! 2. The events that a lagging subscriber, an open batch or a retry still needs are copied to once.event_kept, and
//!    the segment is marked as drained.
//! 3. A later transaction truncates the segment, once every open snapshot sees the commit of step 2.
//!
//! So every snapshot finds a needed event in its segment or in once.event_kept.
//!
//! Invariant: need.rs reads the lane, then the lane's batches, then once.retry. Each read sees all that is committed
//! by then. A pending event moves in the same order, from the lane to a batch and from a batch to once.retry. It may
//! skip the batch. Each move is one transaction. An event may leave a place shortly before that place is read. Then a
//! later read finds the event in its new place. A row of once.retry stays as long as its event is pending.
//!
//! A redrive makes an unneeded event needed again. It inserts a copy into once.event_kept, so the event's segment may
//! be truncated all the same. One session at a time runs the task. The session first waits for the end of each
//! transaction that makes a subscriber, because an uncommitted subscriber already needs events. Until the task ends, no
//! session can make one.

mod copy;
mod log;
mod need;
mod tidy;

use super::event::SEGMENTS;
use super::series;
use super::topic::all_subscribers;
use crate::error::Result;
use crate::swept::Swept;
use crate::table::{self, Snapshot};
use crate::trylock::{self, TryLock};
use log::Log;

/// Copies up to `max` events, deletes up to `max` copies and `max` batches, truncates, rotates. None: already running.
pub fn retire_segments(max: i64) -> Result<Option<Swept>> {
    let Some(lock) = TryLock::acquire(trylock::OUTBOX_RETIRE) else {
        return Ok(None);
    };
    // Keep the lock until the transaction ends: until then other sessions do not see these changes.
    lock.keep();
    // An uncommitted subscriber may need events, and cannot be seen.
    table::lock_against_writers(&[c"subscriber"])?;
    // A restore of a dump first loads the events, then the subscribers that need them. After the restore, the first
    // emit begins a series of this incarnation. If there is neither a subscriber nor such a series, the restore may be
    // half done, so nothing is deleted.
    if all_subscribers()?.is_empty() && series::begun(&Snapshot::latest())?.is_none() {
        return Ok(Some(Swept::default()));
    }
    let mut all = copy::copy_needed(max)?;
    all.add(tidy::kept(max)?);
    all.add(tidy::batches(max)?);
    all.add(truncate()?);
    all.add(rotate()?);
    Ok(Some(all))
}

/// Truncates the drained segments that no old snapshot can read.
fn truncate() -> Result<Swept> {
    let mut swept = Swept::default();
    let log = Log::read(&Snapshot::latest())?;
    for segment in 0..SEGMENTS.len() {
        if log.is_ripe(segment)? {
            swept.add(log::truncate(segment)?);
        }
    }
    Ok(swept)
}

/// Opens an empty segment when the current segment is full, or old and mostly not needed.
fn rotate() -> Result<Swept> {
    let log = Log::read(&Snapshot::latest())?;
    let mut swept = Swept::default();
    if let Some(empty) = log.empty()?
        && (log.is_full(log.current)? || copy::is_old_and_mostly_not_needed(log.current)?)
    {
        log.open(empty)?;
        swept.more = true;
    }
    Ok(swept)
}

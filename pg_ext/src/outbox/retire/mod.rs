//! The sweep task `outbox_retire`: the log gives back the space of what everybody is past.
//!
//! A segment's life: it is written to (current) until it is large or idle and another one is empty; then what a
//! lagging subscriber, an open batch or a retry still needs of it is copied to once.event_kept, and it is marked
//! as drained; then, in a later transaction, when no snapshot is left from before that mark was committed, it is
//! truncated. So whoever reads the log finds every event in its segment or, if it looks for the first time after
//! the mark, among those kept: a pg_dump that stalls between its snapshot and its locks holds the truncation back.
//!
//! Invariant: what is needed (need.rs) is looked up lane first, then the lane's batches, then the retries, each
//! as it is committed then. An event goes the other way (out of the lane into a batch, out of the batch into
//! once.retry, in one transaction each), so it is seen in one of them. What is not needed never is again: a
//! redriven event comes out of once.dead. One session at a time does this, and only while no subscriber is being
//! made: a new one begins with what its creator did not see, long before others see it.

mod copy;
mod log;
mod need;
mod tidy;

use super::event::SEGMENTS;
use crate::error::Result;
use crate::swept::Swept;
use crate::table::{self, Snapshot};
use crate::trylock::TryLock;
use log::Log;

pub const TASK: &str = "outbox_retire";

/// In the extension's lock space, beside series.rs: the session that does this.
const LOCK: u64 = 2;

/// Copies, truncates and deletes; at most `max` of each kind of row. None: another session is at it.
pub fn retire_segments(max: i64) -> Result<Option<Swept>> {
    let Some(lock) = TryLock::acquire(LOCK) else {
        return Ok(None);
    };
    // To the end of the transaction: until then nobody sees what was done here.
    lock.keep();
    // A subscriber that is not committed yet may need what nobody else does, and cannot be seen.
    table::lock_against_writers(&[c"subscriber"])?;
    let mut all = copy::copy_needed(max)?;
    all.add(tidy::kept(max)?);
    all.add(tidy::batches(max)?);
    all.add(truncate()?);
    all.add(rotate()?);
    Ok(Some(all))
}

/// Truncates the drained segments that nobody can miss any more.
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

/// Moves on to an empty segment when the current one is large, or nobody has needed anything of it for a while.
fn rotate() -> Result<Swept> {
    let log = Log::read(&Snapshot::latest())?;
    let mut swept = Swept::default();
    if let Some(empty) = log.empty()?
        && (log.is_full(log.current)? || copy::is_idle_and_needed_by_nobody(log.current)?)
    {
        log.open(empty)?;
        swept.more = true;
    }
    Ok(swept)
}

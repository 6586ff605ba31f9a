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

use super::event::{KEPT, SEGMENTS};
use super::{batch, delivery, receipt};
use crate::error::Result;
use crate::janitor::{self, Swept, Tables};
use crate::patience::Patience;
use crate::table::{self, Snapshot};
use crate::trylock::TryLock;
use log::Log;

pub const TASK: &str = "outbox_retire";

/// In the extension's lock space, beside series.rs: the session that does this.
const LOCK: u64 = 2;

/// What it writes, but for the segments: what these are truncated by cannot be deferred.
const TABLES: Tables = Tables {
    written: &[
        batch::TABLE,
        receipt::TABLE,
        delivery::TABLE,
        KEPT.table,
        log::TABLE,
    ],
    read: &[],
};

/// Copies, truncates and deletes; at most `max` of each kind of row. None: another session is at it.
pub fn sweep(max: i64, patience: &Patience) -> Result<Option<Swept>> {
    let Some(lock) = TryLock::acquire(LOCK) else {
        return Ok(None);
    };
    // To the end of the transaction: until then nobody sees what was done here.
    lock.keep();
    if let Err(failure) = janitor::lock_tables(&TABLES, patience)? {
        return Ok(Some(Swept::failure(1, &failure)));
    }
    let swept = patience.attempt(|| work(max, patience))?;
    Ok(Some(
        swept.unwrap_or_else(|failure| Swept::failure(1, &failure)),
    ))
}

fn work(max: i64, patience: &Patience) -> Result<Swept> {
    // A subscriber that is not committed yet may need what nobody else does, and cannot be seen.
    let all_seen = patience.attempt(|| table::lock_against_writers(&[c"subscriber"]))?;
    if let Err(failure) = all_seen {
        // Nothing is given back until that transaction ends: whoever watches the sweeps has to see it.
        let waits =
            format!("{failure}: an open transaction has made, changed or dropped a subscriber");
        return Ok(Swept::failure(1, &waits));
    }
    let mut all = Swept::default();
    let steps: [fn(i64) -> Result<Swept>; 5] = [
        copy::sweep,
        tidy::kept,
        tidy::batches,
        |_| truncate(),
        |_| rotate(),
    ];
    for step in steps {
        match patience.attempt(|| step(max))? {
            Ok(swept) => all.add(swept),
            Err(failure) => all.add(Swept::failure(1, &failure)),
        }
    }
    Ok(all)
}

/// Truncates the drained segments that nobody can miss any more.
fn truncate() -> Result<Swept> {
    let mut swept = Swept::default();
    let log = Log::look(&Snapshot::latest())?;
    for segment in 0..SEGMENTS.len() {
        if log.is_ripe(segment)? {
            swept.add(log::truncate(segment, &log)?);
        }
    }
    Ok(swept)
}

/// Moves on to an empty segment when the current one is large, or nobody has needed anything of it for a while.
fn rotate() -> Result<Swept> {
    let log = Log::look(&Snapshot::latest())?;
    let mut swept = Swept::default();
    if let Some(empty) = log.empty()?
        && (log.is_full(log.current)? || copy::is_idle_and_needed_by_nobody(log.current)?)
    {
        log.open(empty)?;
        swept.more = true;
    }
    Ok(swept)
}

//! The series of events that this incarnation writes. A transaction id is valid only in the incarnation that assigned
//! it. So a restored database begins a new series, and all events of the older series count as committed.

use crate::error::{Error, Result};
use crate::incarnation;
use crate::spi::{self, Kept};
use crate::table::{self, Name, Recalled, Slot, Snapshot, Table};
use crate::trylock::{self, TryLock};
use pgrx::pg_sys::{Datum, INT8OID};

const TABLE: Name = c"series";

static PRESENT: Recalled<Option<i32>> = Recalled::new(TABLE);
static BEGIN: Kept = Kept::new(
    c"INSERT INTO once.series (series, incarnation)
      SELECT coalesce(max(series), 0) + 1, $1 FROM once.series",
    &[INT8OID],
);
/// Makes new event ids larger than the restored ones, even if the sequence was not restored.
static GO_ON: Kept = Kept::new(
    c"SELECT setval('once.event_id', greatest(last.id, (SELECT last_value FROM once.event_id)))
        FROM (SELECT max(id) AS id
                FROM (SELECT max(event_id) AS id FROM once.event_0
                      UNION ALL SELECT max(event_id) FROM once.event_1
                      UNION ALL SELECT max(event_id) FROM once.event_2
                      UNION ALL SELECT max(event_id) FROM once.event_3
                      UNION ALL SELECT max(event_id) FROM once.event_kept
                      UNION ALL SELECT max(event_id) FROM once.retry
                      UNION ALL SELECT max(event_id) FROM once.dead
                      UNION ALL SELECT max(last_id) FROM once.batch) ids) last
       WHERE last.id IS NOT NULL",
    &[],
);

/// The last series, and whether this incarnation began it.
fn last(snapshot: &Snapshot) -> Result<Option<(i32, bool)>> {
    let table = Table::to_read(TABLE)?;
    let last = table.find_last(c"series_pkey", &mut [], snapshot)?;
    let number = |slot: &Slot, i| slot.column(i).map_or(0, |d: Datum| d.value() as i64);
    let present = incarnation::present()?;
    Ok(last.map(|slot| (number(&slot, 1) as i32, number(&slot, 2) == present)))
}

/// The last series, if this incarnation began it, else None. New events are written only to the last series. A lane may
/// have been read up to the last series, and would skip new events of an earlier series.
pub fn begun(snapshot: &Snapshot) -> Result<Option<i32>> {
    Ok(last(snapshot)?.and_then(|(series, ours)| ours.then_some(series)))
}

/// The series of this incarnation, or the series that [`current`] would begin; writes nothing.
pub fn present(snapshot: &Snapshot) -> Result<i32> {
    Ok(match last(snapshot)? {
        Some((series, true)) => series,
        Some((series, false)) => series + 1,
        None => 1,
    })
}

/// The series of this incarnation; the first call begins it.
pub fn current() -> Result<i32> {
    if let Some(series) = *PRESENT.get(b"", || begun(&Snapshot::latest()))? {
        return Ok(series);
    }
    TryLock::wait(trylock::OUTBOX_SERIES).keep();
    if begun(&Snapshot::latest())?.is_none() {
        spi::query_latest(&GO_ON, &[])?;
        spi::query_latest(&BEGIN, &[Some(Datum::from(incarnation::present()?))])?;
        table::tell_all(&[TABLE])?;
    }
    begun(&Snapshot::latest())?
        .ok_or_else(|| Error::internal("the outbox's series could not begin"))
}

//! The time at which the next pass over this database can have something to do, unless somebody writes earlier.
//!
//! Each task finds its due rows by an index. The earliest time at which a row may be due is read from these indexes. It
//! may be in the past, because rows that the last sweep found locked are included.
//!
//! A pass over an idle database comes after [`settings::longest_pause`]. Three kinds of work can wait for that pass and
//! are left out of the answer. These are the task outbox_retire, the closing of orphaned teardowns, and the deletion of
//! the moves of machines that have no `history` now.

use crate::clock;
use crate::error::Result;
use crate::key::abandon;
use crate::machine::history;
use crate::outbox::due as outbox;
use crate::settings;
use crate::spi::{self, Kept};
use std::ffi::CStr;

// LEAST leaves out NULL: a table without rows.
const FIRST_DUE: &CStr = c"
    SELECT LEAST(
           (SELECT min(l.look_at)
              FROM once.machine m CROSS JOIN LATERAL (
                   SELECT a.look_at FROM once.action_lease a WHERE a.machine = m.machine ORDER BY a.look_at LIMIT 1) l),
           (SELECT min(k.reap_at) FROM once.key k WHERE k.reap_stage = '0'),
           (SELECT min(k.reap_at) FROM once.key k WHERE k.reap_stage = '1'),
           (SELECT min(i.expires_at) FROM once.inbox i),
           (SELECT min(d.until) FROM once.dedupe d),
           (SELECT min(d.died_at + s.dead_for_us * interval '1 microsecond')
              FROM once.subscriber s CROSS JOIN LATERAL (
                   SELECT l.died_at FROM once.dead l WHERE l.subscriber_id = s.subscriber_id
                    ORDER BY l.died_at LIMIT 1) d))";

static NEXT_DUE: Kept = Kept::new(FIRST_DUE, &[]);

/// The next due time by the real clock. None: nothing is due until somebody writes.
pub fn next_due() -> Result<Option<i64>> {
    if settings::fake_now()?.is_some() {
        // A test may set the clock at any time.
        return Ok(Some(clock::real_us()));
    }
    let rows = settings::by_index(|| spi::query(&NEXT_DUE, &[]))?;
    let times = [
        spi::first(&rows).map(|d| d.value() as i64),
        abandon::next_look()?,
        outbox::next_lease_end()?,
        history::next_due()?,
    ];
    Ok(times.into_iter().flatten().min())
}

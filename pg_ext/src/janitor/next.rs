//! The time at which the next pass over this database can have something to do, unless somebody writes earlier.
//!
//! The answer is the earliest time at which a row may be due, read from the index that the task's sweep reads. It may
//! be in the past, because rows that the last sweep found locked are included. Moves of machines without `history`,
//! orphaned teardowns and outbox_retire do not count: a pass after the longest pause is soon enough for them.

use super::task::Task;
use crate::clock;
use crate::error::Result;
use crate::key::abandon;
use crate::machine::history;
use crate::outbox::due as outbox;
use crate::settings;
use crate::spi::{self, Kept};
use std::ffi::CStr;

const LEASES: &CStr = c"
    SELECT min(l.look_at)
      FROM once.machine m CROSS JOIN LATERAL (
           SELECT a.look_at FROM once.action_lease a WHERE a.machine = m.machine ORDER BY a.look_at LIMIT 1) l";

const KEYS: &CStr = c"SELECT min(k.reap_at) FROM once.key k WHERE k.reap_stage = '0'";

const LARGE_KEYS: &CStr = c"SELECT min(k.reap_at) FROM once.key k WHERE k.reap_stage = '1'";

const MESSAGES: &CStr = c"SELECT min(i.expires_at) FROM once.inbox i";

const DEDUPES: &CStr = c"SELECT min(d.until) FROM once.dedupe d";

const LETTERS: &CStr = c"
    SELECT min(d.died_at + s.dead_for_us * interval '1 microsecond')
      FROM once.subscriber s CROSS JOIN LATERAL (
           SELECT l.died_at FROM once.dead l WHERE l.subscriber_id = s.subscriber_id ORDER BY l.died_at LIMIT 1) d";

static LETTER: Kept = Kept::new(LETTERS, &[]);
static LEASE: Kept = Kept::new(LEASES, &[]);
static NEXT_KEY: Kept = Kept::new(KEYS, &[]);
static NEXT_LARGE: Kept = Kept::new(LARGE_KEYS, &[]);
static MESSAGE: Kept = Kept::new(MESSAGES, &[]);
static DEDUPE: Kept = Kept::new(DEDUPES, &[]);

/// The next due time by the real clock. None: nothing is due until somebody writes.
pub fn next_due() -> Result<Option<i64>> {
    if settings::fake_now()?.is_some() {
        // A test may set the clock at any time.
        return Ok(Some(clock::real_us()));
    }
    let mut first = None;
    for task in Task::ALL {
        first = first.into_iter().chain(next_of(task)?).min();
    }
    Ok(first)
}

fn next_of(task: Task) -> Result<Option<i64>> {
    match task {
        Task::ActionRelease => found(&LEASE),
        Task::KeyAbandon => abandon::next_look(),
        Task::KeyReap => found(&NEXT_KEY),
        Task::KeyTombstone => found(&NEXT_LARGE),
        Task::OutboxRequeue => outbox::next_lease_end(),
        Task::InboxReap => found(&MESSAGE),
        Task::DedupeReap => found(&DEDUPE),
        Task::DeadReap => found(&LETTER),
        Task::HistoryReap => history::next_due(),
        Task::OutboxRetire => Ok(None),
    }
}

fn found(statement: &'static Kept) -> Result<Option<i64>> {
    let rows = settings::by_index(|| spi::query(statement, &[]))?;
    Ok(spi::first(&rows).map(|d| d.value() as i64))
}

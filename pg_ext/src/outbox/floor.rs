//! Where the due rows of a lane begin, as far as this backend knows.
//!
//! While somebody holds an old snapshot the index keeps an entry for every time that a row was ever due, and a
//! look from the beginning reads them all: a million retries would slow down every take after them, of fresh
//! events too. So a look that was slow notes from which time on there is anything, and the next ones begin there.
//!
//! Invariant: nothing due is hidden. A row that a look could not see is written by a transaction that had not
//! ended then, and whoever writes once.retry gets its transaction id first and reads the clock after that. So of a
//! moment when `next_xid` was the next id to be given out, transactions from that id on write no due_at before
//! it; those with a smaller id that had not ended are listed in the note, which holds only while all of them are
//! still running. One that was open for long ends once, and costs one look further back: a note has a level for
//! each of some earlier moments, each about twice as long ago as the one before.
//!
//! What is changed by hand (a superuser's UPDATE of due_at) is found by the next look from the beginning.

use crate::clock;
use crate::error::Result;
use crate::settings;
use crate::table::{self, Snapshot};
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

/// A look that took longer is worth a note.
const SLOW_US: i64 = 200;
/// How far a level stays behind its moment, for clocks that are not quite even.
const MARGIN_US: i64 = 1_000_000;
/// A clock that was moved by more makes all notes worthless.
const STEP_US: i64 = MARGIN_US / 2;
/// Moments are at least that far apart.
const TICK_US: i64 = 250_000;
/// From then on after a look from the beginning there is another one.
const LONGEST_US: i64 = 10_000_000;

/// A note does not list more transactions.
const MOST: i64 = 1_000;

/// Subscriber, lane, suspects or others.
pub type DuePlace = (i32, i32, bool);

/// Transactions from `next_xid` on began to write after `at`.
struct XidMoment {
    at: i64,
    next_xid: i64,
}

/// Nothing was due before `due_at`, but for what these transactions may bring.
struct DueFloor {
    due_at: i64,
    unseen: Vec<i64>,
}

/// What is known of a place, the latest moment first.
struct FloorNote {
    levels: Vec<DueFloor>,
    until: i64,
}

struct FloorMemory {
    /// Both clocks at one time.
    clocks: (Instant, i64),
    /// The longest ago first.
    moments: Vec<XidMoment>,
    notes: HashMap<DuePlace, FloorNote>,
}

thread_local! {
    static MEMORY: RefCell<FloorMemory> = RefCell::new(FloorMemory {
        clocks: (Instant::now(), clock::real_us()),
        moments: Vec::new(),
        notes: HashMap::new(),
    });
}

impl FloorMemory {
    /// Notes the present moment, and forgets everything if somebody has moved the clock.
    fn tick(&mut self, now: i64) {
        let passed = self.clocks.0.elapsed().as_micros() as i64;
        if (now - self.clocks.1 - passed).abs() > STEP_US {
            self.moments.clear();
            self.notes.clear();
        }
        let last = self.moments.last().map_or(i64::MIN, |m| m.at);
        if now.saturating_sub(last) >= TICK_US {
            self.clocks = (Instant::now(), clock::real_us());
            // In this order: an id that is given out later comes after `at`.
            let at = clock::real_us();
            let next_xid = table::next_xid();
            self.moments.push(XidMoment { at, next_xid });
            let bits = |m: &mut XidMoment| (((at - m.at) / TICK_US) as u64 + 1).ilog2();
            self.moments.dedup_by_key(bits);
        }
    }

    /// From where a look with this snapshot may begin.
    fn begin_of(&self, place: &DuePlace, now: i64, snapshot: &Snapshot) -> Option<i64> {
        let note = self.notes.get(place).filter(|note| now < note.until)?;
        let (running, xmax) = snapshot.running();
        let is_open = |xid: &i64| *xid >= xmax || running.contains(xid);
        let holds = |level: &&DueFloor| level.unseen.iter().all(is_open);
        note.levels.iter().find(holds).map(|level| level.due_at)
    }

    /// Nothing before `first` is visible to this snapshot.
    fn levels(&self, first: i64, snapshot: &Snapshot) -> Vec<DueFloor> {
        let level = |moment: &XidMoment| {
            Some(DueFloor {
                due_at: first.min(moment.at - MARGIN_US),
                unseen: snapshot.unended_before(moment.next_xid, MOST)?,
            })
        };
        self.moments.iter().rev().filter_map(level).collect()
    }
}

/// A look at what is due.
pub struct DueLook {
    place: DuePlace,
    began: i64,
    /// From this time on; None: from the beginning.
    pub from: Option<i64>,
}

impl DueLook {
    /// Begins a look with this snapshot.
    pub fn begin(place: DuePlace, snapshot: &Snapshot) -> Result<DueLook> {
        let began = clock::real_us();
        let from = MEMORY.with(|memory| {
            let memory = &mut *memory.borrow_mut();
            memory.tick(began);
            memory.begin_of(&place, began, snapshot)
        });
        // A pretended clock makes it worthless.
        let from = match from {
            Some(_) if settings::fake_now()?.is_some() => None,
            from => from,
        };
        Ok(DueLook { place, began, from })
    }

    /// The look has come to the first row that is there; None: there is none up to `now`.
    pub fn found(self, first: Option<i64>, now: i64, snapshot: &Snapshot) -> Result<()> {
        let slow = clock::real_us() - self.began >= SLOW_US;
        // What this transaction has changed may yet be undone.
        if !slow || table::own_xid_if_any().is_some() || settings::fake_now()?.is_some() {
            return Ok(());
        }
        MEMORY.with(|memory| {
            let memory = &mut *memory.borrow_mut();
            let levels = memory.levels(first.unwrap_or(now).min(now), snapshot);
            let until = match (self.from, memory.notes.get(&self.place)) {
                (Some(_), Some(note)) => note.until,
                _ => self.began.saturating_add(LONGEST_US),
            };
            memory.notes.insert(self.place, FloorNote { levels, until });
        });
        Ok(())
    }
}

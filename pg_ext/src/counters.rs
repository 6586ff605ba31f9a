//! Shared memory that counts, for each database, the claims by outcome and the uncommitted steps.
//!
//! The counts need shared_preload_libraries: only a library on that list may reserve shared memory. If pg_once is not
//! on the list, nothing is counted. Counting a claim is one relaxed addition to a cache line that an eighth of the
//! database's backends share. Rolled-back calls are counted, too. A restart or a crash resets all counts.
//!
//! A database keeps a slot from its first use until the server restarts. If none is free, the database is not counted.
//! Rates come from samples that `metrics()` and `doctor()` store in the slot, so no claim reads the clock for them.

use crate::clock;
use pgrx::{PGRXSharedMemory, PgAtomic, pg_sys};
use std::cell::Cell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};

/// Up to this many databases are counted.
pub const DATABASES: usize = 64;
/// Backends of a database are spread over this many stripes.
const STRIPES: usize = 8;
/// The least time between two samples.
const WINDOW_US: i64 = 300_000_000;

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    Claimed,
    Resumed,
    Replayed,
    InProgress,
    Mismatched,
    Gone,
    Parked,
}

impl ClaimOutcome {
    pub const ALL: [ClaimOutcome; 7] = [
        ClaimOutcome::Claimed,
        ClaimOutcome::Resumed,
        ClaimOutcome::Replayed,
        ClaimOutcome::InProgress,
        ClaimOutcome::Mismatched,
        ClaimOutcome::Gone,
        ClaimOutcome::Parked,
    ];

    /// The outcome's name in the result of `key_claim`.
    pub fn name(self) -> &'static str {
        match self {
            ClaimOutcome::Claimed => "claimed",
            ClaimOutcome::Resumed => "resumed",
            ClaimOutcome::Replayed => "replayed",
            ClaimOutcome::InProgress => "in_progress",
            ClaimOutcome::Mismatched => "mismatched",
            ClaimOutcome::Gone => "gone",
            ClaimOutcome::Parked => "parked",
        }
    }
}

pub type Counts = [u64; ClaimOutcome::ALL.len()];

/// Claims of some backends of a database. Fills two cache lines of 64 bytes, because some processors fetch two at once.
#[repr(align(128))]
struct Stripe([AtomicU64; ClaimOutcome::ALL.len()]);

impl Stripe {
    const fn new() -> Stripe {
        Stripe([const { AtomicU64::new(0) }; ClaimOutcome::ALL.len()])
    }
}

type Sample = [AtomicU64; ClaimOutcome::ALL.len()];

/// The counts of one database.
struct Slot {
    stripes: [Stripe; STRIPES],
    /// Steps that began and ended in one transaction, and the time of the last such step.
    uncommitted_steps: AtomicU64,
    last_uncommitted_step: AtomicI64,
    /// When the newer sample was taken.
    sampled_at: AtomicI64,
    /// The totals at `sampled_at`, and the totals at least [`WINDOW_US`] earlier.
    newer: Sample,
    older: Sample,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            stripes: [const { Stripe::new() }; STRIPES],
            uncommitted_steps: AtomicU64::new(0),
            last_uncommitted_step: AtomicI64::new(i64::MIN),
            sampled_at: AtomicI64::new(i64::MIN),
            newer: [const { AtomicU64::new(0) }; ClaimOutcome::ALL.len()],
            older: [const { AtomicU64::new(0) }; ClaimOutcome::ALL.len()],
        }
    }

    fn totals(&self) -> Counts {
        let of = |i: usize| self.stripes.iter().map(|s| s.0[i].load(Relaxed)).sum();
        std::array::from_fn(of)
    }

    /// Claims since the sample `older`. If a new sample is due, `older` gets the counts of `newer`, and `newer` gets
    /// `totals`, one count after another. Another session that reads `older` meanwhile finds old and new counts in it.
    fn lately(&self, now: i64, totals: &Counts) -> Counts {
        let at = self.sampled_at.load(Relaxed);
        let is_due = now.saturating_sub(at) >= WINDOW_US;
        let swap = || self.sampled_at.compare_exchange(at, now, AcqRel, Acquire);
        if is_due && swap().is_ok() {
            for ((older, newer), total) in self.older.iter().zip(&self.newer).zip(totals) {
                older.store(newer.swap(*total, Relaxed), Relaxed);
            }
        }
        std::array::from_fn(|i| totals[i].saturating_sub(self.older[i].load(Relaxed)))
    }
}

/// The shared memory.
struct Board {
    /// The database of each slot; 0: free.
    owners: [AtomicU32; DATABASES],
    slots: [Slot; DATABASES],
}

impl Board {
    const fn new() -> Board {
        Board {
            owners: [const { AtomicU32::new(0) }; DATABASES],
            slots: [const { Slot::new() }; DATABASES],
        }
    }

    /// The slot of a database. If it has none, takes a free slot.
    fn slot(&self, database: u32) -> Option<&Slot> {
        for (owner, slot) in self.owners.iter().zip(&self.slots) {
            match owner.compare_exchange(0, database, AcqRel, Acquire) {
                Err(present) if present != database => {}
                _ => return Some(slot),
            }
        }
        None
    }
}

// SAFETY: atomics only, no pointers; every process may share it.
unsafe impl PGRXSharedMemory for Board {}

// SAFETY: the name is ours alone.
static BOARD: PgAtomic<Board> = unsafe { PgAtomic::new(c"pg_once claims") };
/// Whether the postmaster has asked for the shared memory; every backend inherits this value.
static PRELOADED: AtomicBool = AtomicBool::new(false);

/// Where this backend adds its counts.
#[derive(Clone, Copy)]
enum Mine {
    Unknown,
    Nothing,
    At(&'static Slot, &'static Stripe),
}

thread_local! {
    static MINE: Cell<Mine> = const { Cell::new(Mine::Unknown) };
}

/// Asks the server for the memory, if the library is being loaded by shared_preload_libraries.
#[allow(
    unexpected_cfgs,
    reason = "pgrx's macro asks for server versions that this crate has no feature for"
)]
pub fn register() {
    // SAFETY: a variable of the postmaster.
    if unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        PRELOADED.store(true, Relaxed);
        pgrx::pg_shmem_init!(BOARD = Board::new());
    }
}

/// Whether the library was loaded by shared_preload_libraries.
pub fn is_preloaded() -> bool {
    PRELOADED.load(Relaxed)
}

/// Counts a claim of this backend's database.
pub fn count(outcome: ClaimOutcome) {
    if let Mine::At(_, stripe) = mine() {
        stripe.0[outcome as usize].fetch_add(1, Relaxed);
    }
}

/// Counts a step that began and ended in one transaction.
pub fn count_uncommitted_step() {
    if let Mine::At(slot, _) = mine() {
        slot.uncommitted_steps.fetch_add(1, Relaxed);
        slot.last_uncommitted_step.store(clock::real_us(), Relaxed);
    }
}

/// The number of uncommitted steps since the server started, and the time of the last one; None: nothing is counted.
pub fn uncommitted_steps() -> Option<(u64, i64)> {
    let Mine::At(slot, _) = mine() else {
        return None;
    };
    let last = slot.last_uncommitted_step.load(Relaxed);
    Some((slot.uncommitted_steps.load(Relaxed), last))
}

/// The claims since the server started, and the claims since the older sample. That sample is five to ten minutes old;
/// it is older if `claims` is rarely called. None: nothing is counted.
pub fn claims() -> Option<(Counts, Counts)> {
    let Mine::At(slot, _) = mine() else {
        return None;
    };
    let totals = slot.totals();
    Some((totals, slot.lately(clock::real_us(), &totals)))
}

fn mine() -> Mine {
    match MINE.get() {
        Mine::Unknown => {
            let mine = find();
            MINE.set(mine);
            mine
        }
        known => known,
    }
}

fn find() -> Mine {
    // SAFETY: variables of this backend.
    let (database, process) = unsafe { (pg_sys::MyDatabaseId, pg_sys::MyProcPid) };
    if !is_preloaded() || database == pg_sys::InvalidOid {
        return Mine::Nothing;
    }
    match BOARD.get().slot(u32::from(database)) {
        Some(slot) => Mine::At(slot, &slot.stripes[process as usize % STRIPES]),
        None => Mine::Nothing,
    }
}

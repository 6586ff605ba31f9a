//! Shared memory between the launcher, its workers and `doctor()`.
//!
//! Each running worker has a slot of its own. The launcher writes the slot before it starts the worker, and reads it
//! after the worker's end. A worker that cannot connect, or does not finish its pass, stores no answer.

use crate::counters;
use crate::settings::MOST_WORKERS;
use pgrx::{PGRXSharedMemory, PgAtomic};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU32};

pub const SLOTS: usize = MOST_WORKERS as usize;

/// How a pass ended.
#[derive(Clone, Copy)]
pub enum Answer {
    /// More is due now.
    More,
    /// Nothing is due before this time, unless somebody writes.
    NothingBefore(i64),
}

/// `PassSlot::answer` holds a time, or one of these two values.
const NO_ANSWER: i64 = i64::MIN;
const MORE: i64 = i64::MIN + 1;

/// Failures of a database's tasks, a bit for each task.
#[derive(Clone, Copy, Default)]
pub struct Troubles {
    /// Tasks that failed at their last turn.
    pub failing: u32,
    /// Tasks whose present failure was logged.
    pub logged: u32,
    /// Tasks that this pass skips.
    pub resting: u32,
}

/// The slot of a running worker.
pub struct PassSlot {
    answer: AtomicI64,
    failing: AtomicU32,
    logged: AtomicU32,
    resting: AtomicU32,
}

impl PassSlot {
    const fn new() -> PassSlot {
        PassSlot {
            answer: AtomicI64::new(NO_ANSWER),
            failing: AtomicU32::new(0),
            logged: AtomicU32::new(0),
            resting: AtomicU32::new(0),
        }
    }

    /// Stores the failures and clears the answer; called by the launcher before the worker starts.
    pub fn prepare(&self, troubles: Troubles) {
        self.put_troubles(troubles);
        self.answer.store(NO_ANSWER, Relaxed);
    }

    pub fn troubles(&self) -> Troubles {
        Troubles {
            failing: self.failing.load(Relaxed),
            logged: self.logged.load(Relaxed),
            resting: self.resting.load(Relaxed),
        }
    }

    fn put_troubles(&self, troubles: Troubles) {
        self.failing.store(troubles.failing, Relaxed);
        self.logged.store(troubles.logged, Relaxed);
        self.resting.store(troubles.resting, Relaxed);
    }

    /// Stores how the pass ended; the worker calls this last.
    pub fn put_answer(&self, answer: Answer, troubles: Troubles) {
        self.put_troubles(troubles);
        let stored = match answer {
            Answer::More => MORE,
            Answer::NothingBefore(at) => at.max(MORE + 1),
        };
        self.answer.store(stored, Relaxed);
    }

    /// None: the pass did not end.
    pub fn answer(&self) -> Option<Answer> {
        match self.answer.load(Relaxed) {
            NO_ANSWER => None,
            MORE => Some(Answer::More),
            at => Some(Answer::NothingBefore(at)),
        }
    }
}

struct Board {
    slots: [PassSlot; SLOTS],
    /// When a database last waited too long for a worker.
    late_at: AtomicI64,
}

// SAFETY: atomics only, no pointers; every process may share it.
unsafe impl PGRXSharedMemory for Board {}

// SAFETY: the name is ours alone.
static BOARD: PgAtomic<Board> = unsafe { PgAtomic::new(c"pg_once janitor") };

/// Requests the shared memory while the server preloads libraries.
#[allow(
    unexpected_cfgs,
    reason = "pgrx's macro asks for server versions that this crate has no feature for"
)]
pub fn register() {
    pgrx::pg_shmem_init!(
        BOARD = Board {
            slots: [const { PassSlot::new() }; SLOTS],
            late_at: AtomicI64::new(i64::MIN),
        }
    );
}

pub fn slot(number: usize) -> Option<&'static PassSlot> {
    BOARD.get().slots.get(number)
}

/// Records that a database waits too long for a worker.
pub fn note_late(now: i64) {
    BOARD.get().late_at.store(now, Relaxed);
}

/// When a database last waited too long for a worker; i64::MIN: never since the server's start, or not preloaded.
pub fn late_at() -> i64 {
    match counters::is_preloaded() {
        true => BOARD.get().late_at.load(Relaxed),
        false => i64::MIN,
    }
}

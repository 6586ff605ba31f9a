//! Waits for locks whose waiter is nearly always the first to find a deadlock: whoever else is in the circle goes on.
//!
//! The server looks for a circle once in each wait, after deadlock_timeout, and who finds himself in one is its victim. Here
//! its own alert is given again every few milliseconds. A look keeps the lock manager from everybody, and takes long where
//! many wait for one row: invariant: looks take no more than a small part of the time.

use crate::error::Result;
use crate::settings;
use crate::subxact;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

/// In milliseconds: the first time, since our wait may itself close a circle with somebody who is about to look, and then.
const FIRST: i64 = 1;
const EVERY: c_int = 5;
/// Looks take one in so many parts of the time, at most.
const PARTS: i64 = 12;

/// log_lock_waits would tell of each look.
const QUIET: &[(&CStr, &CStr)] = &[(c"log_lock_waits", c"off")];
/// Circles that we leave are no deadlocks (pg_stat_database).
const UNCOUNTED: &[(&CStr, &CStr)] = &[(c"track_counts", c"off")];

/// From the server's own reasons for a timeout on: it gives one out that is nobody's.
const NEW_REASON: c_int = 1_000;

unsafe extern "C-unwind" {
    fn RegisterTimeout(id: c_int, handler: Option<unsafe extern "C-unwind" fn()>) -> c_int;
    fn enable_timeout_every(id: c_int, first: pg_sys::TimestampTz, every_ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
    fn CheckDeadLockAlert();
}

thread_local! {
    static REASON: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// Alerts that were given in the last wait.
static LOOKS: AtomicU32 = AtomicU32::new(0);
/// When the last alert was given, and how long this process had computed by then, in microseconds.
static GIVEN_AT: AtomicI64 = AtomicI64::new(NEVER);
static COMPUTED: AtomicI64 = AtomicI64::new(0);
const NEVER: i64 = i64::MIN / 2;

/// Works so. The server's 40P01: a wait of ours closed a circle, or somebody's did. A failure leaves settings to the
/// subtransaction's end.
pub fn watched<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    settings::under(QUIET, || {
        let _alerts = Alerts::begin();
        work()
    })
}

/// The same in a subtransaction, which a circle ends. None: there was one, and what it had waited in is left to the others.
pub fn unless_in_a_circle<T>(work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    let work = AssertUnwindSafe(work);
    subxact::kept_if(Option::is_some, || {
        pgrx::PgTryBuilder::new(move || {
            let work = work;
            settings::under(UNCOUNTED, || watched(work.0).map(Some))
        })
        .catch_when(Code::ERRCODE_T_R_DEADLOCK_DETECTED, |_| Ok(None))
        .execute()
    })
}

/// How often the server has looked in the last wait: a circle that was there already is found by the first look.
pub fn looks() -> u32 {
    LOOKS.load(Relaxed)
}

/// Given until it is dropped.
struct Alerts {
    reason: c_int,
}

impl Alerts {
    fn begin() -> Alerts {
        GIVEN_AT.store(NEVER, Relaxed);
        LOOKS.store(0, Relaxed);
        // SAFETY: the handler may run at any time; no more than one is registered in a backend, of ten that there is room for.
        let reason = REASON
            .get()
            .unwrap_or_else(|| unsafe { RegisterTimeout(NEW_REASON, Some(alert)) });
        REASON.set(Some(reason));
        // SAFETY: registered; a time, and milliseconds.
        unsafe {
            let first = pg_sys::GetCurrentTimestamp() + FIRST * 1_000;
            enable_timeout_every(reason, first, EVERY);
        }
        Alerts { reason }
    }
}

impl Drop for Alerts {
    fn drop(&mut self) {
        // SAFETY: registered.
        unsafe { disable_timeout(self.reason, false) };
    }
}

/// Has the server look, unless the last look has taken too long for that. Who waits does nothing else: what this process has
/// computed since is what the look took. In a signal handler.
unsafe extern "C-unwind" fn alert() {
    let (now, computed) = (
        us(libc::CLOCK_MONOTONIC),
        us(libc::CLOCK_PROCESS_CPUTIME_ID),
    );
    let took = computed.wrapping_sub(COMPUTED.load(Relaxed));
    if now.wrapping_sub(GIVEN_AT.load(Relaxed)) < took.wrapping_mul(PARTS) {
        return;
    }
    GIVEN_AT.store(now, Relaxed);
    COMPUTED.store(computed, Relaxed);
    LOOKS.fetch_add(1, Relaxed);
    // SAFETY: the server's own handler, which sets a flag and a latch.
    unsafe { CheckDeadLockAlert() };
}

/// What a clock shows, in microseconds; 0 where it shows nothing.
fn us(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to what it is given; may be called in a signal handler.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec
        .wrapping_mul(1_000_000)
        .wrapping_add(time.tv_nsec / 1_000)
}

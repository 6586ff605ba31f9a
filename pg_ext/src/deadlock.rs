//! Waits for locks whose waiter is the first to find a deadlock: whoever else is in the circle goes on.
//!
//! The server looks for a circle once in each wait, after deadlock_timeout, and who finds himself in one is its victim. Here
//! its own alert is given again every few milliseconds, so that only who looks within these may come before us.

use crate::error::Result;
use crate::settings;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::{CStr, c_int};

/// In milliseconds: the first time, since our wait may itself close a circle with somebody who is about to look, and then.
const FIRST: i64 = 1;
const EVERY: c_int = 5;

/// log_lock_waits would tell of each look, and track_counts of each circle that we leave (pg_stat_database.deadlocks).
const QUIET: &[(&CStr, &CStr)] = &[(c"log_lock_waits", c"off"), (c"track_counts", c"off")];

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

/// Works so. The server's 40P01: a wait of ours closed a circle, or somebody's did. A failure leaves settings to the
/// subtransaction's end.
pub fn watched<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    settings::under(QUIET, || {
        let _alert = Alert::begin();
        work()
    })
}

/// Given until it is dropped.
struct Alert {
    reason: c_int,
}

impl Alert {
    fn begin() -> Alert {
        // SAFETY: the handler is the server's own, which sets a flag and a latch; no more is registered in a backend than one
        // of ten that the server has room for.
        let reason = REASON
            .get()
            .unwrap_or_else(|| unsafe { RegisterTimeout(NEW_REASON, Some(CheckDeadLockAlert)) });
        REASON.set(Some(reason));
        // SAFETY: registered; a time, and milliseconds.
        unsafe {
            let first = pg_sys::GetCurrentTimestamp() + FIRST * 1_000;
            enable_timeout_every(reason, first, EVERY);
        }
        Alert { reason }
    }
}

impl Drop for Alert {
    fn drop(&mut self) {
        // SAFETY: registered.
        unsafe { disable_timeout(self.reason, false) };
    }
}

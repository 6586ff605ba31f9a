//! The clock of all functions, and intervals in microseconds.
//!
//! Each timestamp that decides an outcome is read here: from the server's real clock, or from `once.fake_now` in
//! tests. Tokens always come from the real clock (`real_us`), so moving the clock in a test never repeats a token.

use crate::error::Result;
use crate::settings;
use pgrx::pg_sys::{self, Datum};
use std::ffi::{CStr, CString};

/// The longest accepted interval: a thousand years. The present time plus two of them cannot overflow a timestamptz.
pub const LONGEST_US: i64 = 1_000 * 365 * DAY_US;
/// 24 hours.
pub const DAY_US: i64 = 86_400_000_000;

/// `timestamptz` infinity.
pub const INFINITY: i64 = i64::MAX;

/// Microseconds since 2000 of the server's real clock.
pub fn real_us() -> i64 {
    // SAFETY: reads the clock; no arguments, no failure.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// Waits for a millisecond; if the query was cancelled, raises its error instead.
pub fn nap() {
    pgrx::check_for_interrupts!();
    // SAFETY: sleeps.
    unsafe { pg_sys::pg_usleep(1_000) };
}

/// A new lease's token: the real clock in microseconds, but at least the previous token plus one.
pub fn next_token(previous: i64) -> i64 {
    real_us().max(previous.saturating_add(1))
}

/// The time that decides outcomes: `once.fake_now` if set, else the real clock.
pub fn now_us() -> Result<i64> {
    match settings::fake_now()? {
        Some(us) => Ok(us),
        None => Ok(real_us()),
    }
}

/// The microseconds of a positive finite interval; a month has 30 days. Err: what is wrong with the interval.
pub fn positive_us(interval: Datum) -> std::result::Result<i64, &'static str> {
    match interval_us(interval)? {
        0 => Err("must be positive, not zero"),
        us if us < 0 => Err("must be positive, not negative"),
        us => Ok(us),
    }
}

/// The microseconds of a finite interval; a month has 30 days. Err: what is wrong with the interval.
pub fn interval_us(interval: Datum) -> std::result::Result<i64, &'static str> {
    // SAFETY: the datum is a non-null interval; the server stores it as this structure.
    let i = unsafe { &*interval.cast_mut_ptr::<pg_sys::Interval>() };
    let infinite = (i.month, i.day, i.time) == (i32::MAX, i32::MAX, i64::MAX)
        || (i.month, i.day, i.time) == (i32::MIN, i32::MIN, i64::MIN);
    if infinite {
        return Err("must be finite");
    }
    let us = i128::from(i.month) * 30 * i128::from(DAY_US)
        + i128::from(i.day) * i128::from(DAY_US)
        + i128::from(i.time);
    if us > i128::from(LONGEST_US) {
        return Err("is longer than 1000 years");
    }
    Ok(us.max(i128::from(i64::MIN)) as i64)
}

/// An interval datum of `us` microseconds.
pub fn interval_datum(us: i64) -> Datum {
    // SAFETY: allocates one Interval in the current memory context and fills all of it.
    unsafe {
        let i: *mut pg_sys::Interval =
            pg_sys::palloc(std::mem::size_of::<pg_sys::Interval>()).cast();
        *i = pg_sys::Interval {
            time: us,
            day: 0,
            month: 0,
        };
        Datum::from(i)
    }
}

/// Parses an interval as PostgreSQL does. None: the text is not an interval.
pub fn parse_interval(text: &[u8]) -> Option<Datum> {
    let text = CString::new(text).ok()?;
    read(&text, pg_sys::interval_in)
}

/// Parses a timestamptz as PostgreSQL does, into microseconds since 2000. None: the text is not a timestamptz.
pub fn parse_timestamptz(text: &CStr) -> Option<i64> {
    read(text, pg_sys::timestamptz_in).map(|d| d.value() as i64)
}

type InputFunction = unsafe fn(pg_sys::FunctionCallInfo) -> Datum;

fn read(text: &CStr, input: InputFunction) -> Option<Datum> {
    pgrx::PgTryBuilder::new(|| {
        // SAFETY: an input function of the server takes a C string, an unused oid and a typmod. It only computes, so
        // its error leaves nothing to clean up.
        unsafe {
            let args = [
                Datum::from(text.as_ptr()),
                Datum::from(0),
                Datum::from(-1i32),
            ];
            pgrx::direct_function_call_as_datum(input, &args.map(Some))
        }
    })
    .catch_others(|_| None)
    .execute()
}

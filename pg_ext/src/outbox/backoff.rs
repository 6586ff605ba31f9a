//! A failed event is due again after the backoff or at the time that its nack sets, or it is dead.

use super::leave::{Fate, HeldEvent, Leaving};
use super::topic::Subscriber;
use pgrx::pg_sys;

/// Counts one more failure. The event is dead at max_attempts; otherwise it is due at `retry_at` or after the backoff.
pub fn failed(sub: &Subscriber, event: HeldEvent, retry_at: Option<i64>, now: i64) -> Leaving {
    let failures = event.failures.saturating_add(1);
    let fate = match failures >= sub.max_attempts {
        true => Fate::Dead,
        false => Fate::Due(retry_at.unwrap_or_else(|| next_retry_at(sub, failures, now))),
    };
    Leaving {
        event: HeldEvent { failures, ..event },
        counted: true,
        fate,
    }
}

/// When the retry after the nth failure is due: now + `min(cap, base * 2^(n-1))` * a random number from 0.5 to 1.
fn next_retry_at(sub: &Subscriber, failures: i32, now: i64) -> i64 {
    let doublings = failures.saturating_sub(1).clamp(0, 63);
    let longest = (i128::from(sub.base_us) << doublings).min(sub.cap_us.into());
    // SAFETY: the random state of this backend, seeded when it started.
    let random = unsafe { pg_sys::pg_prng_double(&raw mut pg_sys::pg_global_prng_state) };
    now.saturating_add((longest as f64 * (0.5 + 0.5 * random)) as i64)
}

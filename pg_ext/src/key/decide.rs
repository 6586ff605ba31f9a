//! Decides how a claim is answered for an existing key. It uses only its arguments: the row, the time, the scope's
//! options, the request and the holder. It reads and writes no table. `claim.rs` inserts a new key, answers in_progress
//! for races, and answers claimed or resumed if the caller has the lease.

use super::fingerprint::Request;
use super::record::{Col, KeyRow, KeyStatus};
use super::scope::ScopeOptions;
use crate::error::Result;
use crate::settings::LEAST_RETRY_US;

/// What to do about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDecision {
    /// The key counts as new: its ttl and gone_for are over.
    Fresh,
    /// The call begins the next attempt, at the last recovery point.
    TakeOver,
    /// The caller is the holder.
    Held,
    Replayed,
    InProgress {
        /// None: released, and not due yet.
        lease_left_us: Option<i64>,
        retry_after_us: i64,
    },
    Mismatched,
    Gone,
    Parked,
}

pub fn decide(
    row: &KeyRow,
    now: i64,
    options: &ScopeOptions,
    request: &Request,
    holder: Option<&[u8]>,
) -> Result<KeyDecision> {
    if options.is_over(row, now) {
        return Ok(KeyDecision::Fresh);
    }
    if !request.matches(row.bytes(Col::Fingerprint))? {
        return Ok(KeyDecision::Mismatched);
    }
    Ok(match row.status() {
        _ if row.is_gone(now) => KeyDecision::Gone,
        KeyStatus::Completed | KeyStatus::Aborted => KeyDecision::Replayed,
        KeyStatus::Running if now < row.i64(Col::LeaseUntil) && is_holder(row, holder) => {
            KeyDecision::Held
        }
        _ => unfinished(row, now, options),
    })
}

/// Decides for an unfinished key and a caller who does not hold its lease; completers use it, too.
pub fn unfinished(row: &KeyRow, now: i64, options: &ScopeOptions) -> KeyDecision {
    let due = row.i64(Col::LeaseUntil);
    match row.status() {
        KeyStatus::Running if now < due => KeyDecision::InProgress {
            lease_left_us: Some(due - now),
            retry_after_us: options.retry_after(due - now),
        },
        KeyStatus::Running if options.park_on_expiry => KeyDecision::Parked,
        KeyStatus::Running | KeyStatus::Released if attempts_used_up(row, options) => {
            KeyDecision::Parked
        }
        KeyStatus::Released if now < due => KeyDecision::InProgress {
            lease_left_us: None,
            retry_after_us: (due - now).max(LEAST_RETRY_US),
        },
        KeyStatus::Running | KeyStatus::Released => KeyDecision::TakeOver,
        _ => KeyDecision::Parked,
    }
}

fn is_holder(row: &KeyRow, holder: Option<&[u8]>) -> bool {
    holder.is_some() && holder == row.bytes(Col::Holder)
}

fn attempts_used_up(row: &KeyRow, options: &ScopeOptions) -> bool {
    let used = row.i32(Col::Attempt) - row.i32(Col::AttemptBase);
    options.max_attempts.is_some_and(|most| used >= most)
}

//! What a claim answers, from the row, the scope's options and the clock alone: no reads, no writes.

use super::fingerprint::Request;
use super::record::{Col, Record, Status};
use super::scope::Options;
use crate::error::Result;
use crate::settings::LEAST_RETRY_US;

/// What to do about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The row counts as new: expired, and gone_for is over.
    Fresh,
    /// Go on where the last holder stopped.
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

/// Decides for one claim.
pub fn decide(
    row: &Record,
    now: i64,
    options: &Options,
    request: &Request,
    holder: Option<&[u8]>,
) -> Result<Decision> {
    if row.status().finished() && now >= row.expires_at().saturating_add(options.gone_for_us) {
        return Ok(Decision::Fresh);
    }
    if !request.matches(row.bytes(Col::Fingerprint))? {
        return Ok(Decision::Mismatched);
    }
    Ok(match row.status() {
        _ if row.status().finished() && now >= row.expires_at() => Decision::Gone,
        Status::Completed | Status::Aborted => Decision::Replayed,
        Status::Running if now < row.i64(Col::LeaseUntil) && is_holder(row, holder) => {
            Decision::Held
        }
        _ => unfinished(row, now, options),
    })
}

/// Decides for an unfinished key when nobody claims to hold it: a completer's view, too.
pub fn unfinished(row: &Record, now: i64, options: &Options) -> Decision {
    let due = row.i64(Col::LeaseUntil);
    match row.status() {
        Status::Running if now < due => Decision::InProgress {
            lease_left_us: Some(due - now),
            retry_after_us: options.retry_after(due - now),
        },
        Status::Running if options.park_on_expiry => Decision::Parked,
        Status::Running | Status::Released if attempts_used_up(row, options) => Decision::Parked,
        Status::Released if now < due => Decision::InProgress {
            lease_left_us: None,
            retry_after_us: (due - now).max(LEAST_RETRY_US),
        },
        Status::Running | Status::Released => Decision::TakeOver,
        _ => Decision::Parked,
    }
}

fn is_holder(row: &Record, holder: Option<&[u8]>) -> bool {
    holder.is_some() && holder == row.bytes(Col::Holder)
}

fn attempts_used_up(row: &Record, options: &Options) -> bool {
    let used = row.i32(Col::Attempt) - row.i32(Col::AttemptBase);
    options.max_attempts.is_some_and(|most| used >= most)
}

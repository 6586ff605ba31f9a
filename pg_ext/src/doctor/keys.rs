//! Requests that nobody finishes.

use super::{Report, Severity};
use crate::error::Result;
use crate::metrics::leases::KeyLeases;

/// A client that is alive asks again before this.
const LONG_US: i64 = 600_000_000;

pub fn ask(report: &Report) -> Result<()> {
    let keys = KeyLeases::count()?;
    let more = if keys.cut_short { " or more" } else { "" };
    if keys.overdue > 0 && keys.oldest_us > LONG_US {
        report.add(
            Severity::Warning,
            format!("{}{more} unfinished requests wait for somebody to go on", keys.overdue),
            format!("the oldest for {} s", keys.oldest_us / 1_000_000),
            "Their clients have not come back. Run a completer: once.key_take_abandoned(scope), or the client crate's completer loop.",
        );
    }
    if keys.parked > 0 {
        report.add(
            Severity::Info,
            format!("{}{more} keys are parked", keys.parked),
            "nobody knows the outcome of their last attempt, or their attempts are used up; claims answer parked",
            "Find out what happened outside, and give the verdict: once.key_resolve(scope, key, attempt, verdict).",
        );
    }
    Ok(())
}

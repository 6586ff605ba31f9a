//! Unfinished requests that nobody resumes, and parked keys.

use super::{Report, Severity};
use crate::error::Result;
use crate::metrics::leases::KeyLeases;

/// A live client retries earlier.
const LONG_US: i64 = 600_000_000;

pub fn ask(report: &Report) -> Result<()> {
    let keys = KeyLeases::count()?;
    let more = if keys.cut_short { " or more" } else { "" };
    if keys.overdue > 0 && keys.oldest_us > LONG_US {
        report.add(
            Severity::Warning,
            format!("{}{more} unfinished requests wait to be resumed", keys.overdue),
            format!("the oldest for {} s", keys.oldest_us / 1_000_000),
            "Their clients have not retried. Run a completer: once.key_take_abandoned(scope), or the client crate's completer loop.",
        );
    }
    for (scope, key) in keys.too_long {
        report.add(
            Severity::Warning,
            format!("the lease of key \"{key}\" in scope \"{scope}\" ends later than max_lease_life from now"),
            "the clock has gone back, or max_lease_life is shorter than it was at the claim",
            format!("If its holder is dead: SELECT once.key_expire({}, {}).", literal(&scope), literal(&key)),
        );
    }
    if keys.parked > 0 {
        report.add(
            Severity::Info,
            format!("{}{more} keys are parked", keys.parked),
            "the outcome of their last attempt is unknown, or their attempts are used up; claims answer parked",
            "Find out the outcome of the foreign call, and give the verdict: once.key_resolve(scope, key, attempt, verdict).",
        );
    }
    Ok(())
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

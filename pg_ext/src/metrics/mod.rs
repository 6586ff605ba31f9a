//! `metrics`: numbers for an exporter that calls it every few seconds.
//!
//! Invariant: a call reads no history. It reads the end of an index or a bounded number of index entries, or makes one
//! probe for each lane. A count above its bound stops there or is estimated; the metric's help text says which. If a
//! lock is not free within once.sweep_lock_timeout, the call skips the part that needs it; pg_once_metrics_failed shows
//! which part. A call writes nothing and checks no owner: it shows numbers and names, no payload and no scope.

mod backlog;
pub mod dead;
mod effects;
mod estimate;
pub mod leases;
mod refunds;
mod tables;
pub mod topics;

use crate::call::{Call, from_utf8};
use crate::counters::{self, ClaimOutcome};
use crate::error::Result;
use crate::json;
use crate::raise;
use crate::row::{self, Rows};
use crate::subxact;
use pgrx::pg_sys::Datum;

/// The rows of the answer.
pub struct Sheet {
    rows: Rows,
}

impl Sheet {
    fn put(&self, name: &str, labels: &[(&str, &str)], value: f64, help: &str) -> Result<()> {
        let labels: serde_json::Map<String, serde_json::Value> = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).into()))
            .collect();
        let labels = serde_json::Value::from(labels).to_string();
        self.rows.push(&[
            Some(row::text(name.as_bytes())),
            Some(json::to_jsonb(&from_utf8(&labels))?),
            Some(Datum::from(value.to_bits())),
            Some(row::text(help.as_bytes())),
        ]);
        Ok(())
    }
}

/// How many index entries a search for `rows` rows may read. Some may be of deleted rows that an old snapshot keeps.
fn entries_for(rows: usize) -> usize {
    const EACH: usize = 3;
    rows.saturating_mul(EACH)
}

type Fill = fn(&Sheet) -> Result<()>;

/// Each part runs in a subtransaction of its own: after a failure, only rows of that part are missing.
const PARTS: &[(&str, Fill)] = &[
    ("claims", claims),
    ("keys", leases::keys),
    ("actions", leases::actions),
    ("outbox", backlog::outbox),
    ("dead letters", dead::letters),
    ("side effects", effects::failures),
    ("sweeps", tables::sweeps),
    ("refunds", refunds::refunds),
    ("sizes", tables::sizes),
];

/// `once.metrics`.
pub fn metrics(call: &Call) -> Result<Datum> {
    let sheet = Sheet {
        rows: Rows::begin(call),
    };
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    sheet.put(
        "pg_once_info",
        &version,
        1.0,
        "Always 1. The label version has the version of the loaded library.",
    )?;
    for (of, fill) in PARTS {
        let filled = subxact::attempt_briefly(|| fill(&sheet))?;
        if let Err(failure) = &filled {
            raise::warn(
                format!("metrics of {of}: {}", failure.message),
                "metrics() has the other rows.",
            );
        }
        sheet.put(
            "pg_once_metrics_failed",
            &[("of", of)],
            f64::from(u8::from(filled.is_err())),
            "1: rows of this part are missing, because a table is locked or damaged; 0: none is missing.",
        )?;
    }
    Ok(call.return_null())
}

/// A replayed claim writes to no table, so the claims are counted in shared memory. Without
/// shared_preload_libraries nothing is counted, and this part adds no rows.
fn claims(sheet: &Sheet) -> Result<()> {
    let Some((totals, lately)) = counters::claims() else {
        return Ok(());
    };
    for outcome in ClaimOutcome::ALL {
        sheet.put(
            "pg_once_claims_total",
            &[("outcome", outcome.name())],
            totals[outcome as usize] as f64,
            "Calls of key_claim by outcome since the server started; a claim that was rolled back counts as a call. Only with shared_preload_libraries.",
        )?;
    }
    let (uncommitted, _) = counters::uncommitted_steps().unwrap_or_default();
    sheet.put(
        "pg_once_uncommitted_steps_total",
        &[],
        uncommitted as f64,
        "Calls of key_step_done in the transaction that began the step (the commit after key_step is missing), since the server started. Only with shared_preload_libraries.",
    )?;
    let all: u64 = lately.iter().sum();
    let share = |outcome: ClaimOutcome| match all {
        0 => 0.0,
        all => lately[outcome as usize] as f64 / all as f64,
    };
    sheet.put(
        "idempotency_reuse_rate",
        &[],
        share(ClaimOutcome::Replayed),
        "Share of the claims of the last five to ten minutes (longer where metrics was called less often) that were answered from a stored response; 0 without claims. Only with shared_preload_libraries.",
    )?;
    sheet.put(
        "idempotency_409_rate",
        &[],
        share(ClaimOutcome::Mismatched),
        "Share of the claims of the last five to ten minutes (longer where metrics was called less often) whose key stands for a different request (mismatched); 0 without claims. Only with shared_preload_libraries.",
    )?;
    sheet.put(
        "idempotency_in_progress_rate",
        &[],
        share(ClaimOutcome::InProgress),
        "Share of the claims of the last five to ten minutes (longer where metrics was called less often) that were answered in_progress; 0 without claims. Only with shared_preload_libraries.",
    )
}

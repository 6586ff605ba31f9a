//! `metrics`: numbers to watch, for an exporter that asks every few seconds.
//!
//! Invariant: nothing here reads history. What is looked at is the end of an index, one probe a lane, a bounded
//! number of index entries (those of rows that are over count, too, because an old snapshot may keep a million of
//! them); where a count would go on, it stops at a bound or is estimated, and its help says so. Of more subscribers
//! than have rows, those with the worst numbers have them (worst.rs). Nobody is waited for but for a moment: what is
//! locked is left out, and a row says so. Nothing is written, owners are not asked (numbers and names only, no
//! payload), and no label is a tenant's.

mod backlog;
pub mod dead;
mod effects;
mod estimate;
mod late;
pub mod leases;
mod refunds;
mod stored;
mod tables;
mod worst;

use crate::call::{Call, from_utf8};
use crate::counters::{self, Outcome};
use crate::error::Result;
use crate::json;
use crate::outbox::topic::{Subscriber, all_subscribers};
use crate::raise;
use crate::row::{self, Rows};
use crate::subxact;
use pgrx::pg_sys::Datum;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Rows of the answer as they come.
pub struct Sheet {
    rows: Rows,
    subscribers: OnceCell<Vec<Subscriber>>,
}

impl Sheet {
    /// Of all topics, as they were when one of the parts asked first.
    fn subscribers(&self) -> Result<&[Subscriber]> {
        if let Some(known) = self.subscribers.get() {
            return Ok(known);
        }
        let all = all_subscribers()?;
        Ok(self.subscribers.get_or_init(|| all))
    }

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

/// Index entries that a look for so many rows may read, so that some of rows that are over hide nothing.
fn entries_for(rows: usize) -> usize {
    const EACH: usize = 3;
    rows.saturating_mul(EACH)
}

type Tell = fn(&Sheet) -> Result<()>;

/// Each by itself: what one of them meets keeps no other from being told.
const PARTS: &[(&str, Tell)] = &[
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
        subscribers: OnceCell::new(),
    };
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    sheet.put(
        "pg_once_info",
        &version,
        1.0,
        "Always 1; version: of the library that is loaded.",
    )?;
    for (of, tell) in PARTS {
        let told = subxact::attempt_briefly(|| tell(&sheet))?;
        if let Err(failure) = &told {
            warn(of, &failure.message);
        }
        sheet.put(
            "pg_once_metrics_failed",
            &[("of", of)],
            f64::from(u8::from(told.is_err())),
            "1: rows of these are missing, because somebody keeps a table locked or it is damaged; 0: they are told.",
        )?;
    }
    Ok(call.return_null())
}

/// Why a part is missing, for the log: seldom, since exporters ask again and again, some of them many times a scrape.
fn warn(of: &'static str, failure: &str) {
    const SELDOM: Duration = Duration::from_secs(60);
    thread_local! {
        static WARNED: RefCell<BTreeMap<&'static str, Instant>> = const { RefCell::new(BTreeMap::new()) };
    }
    let is_due = WARNED.with_borrow_mut(|warned| {
        let is_due = warned.get(of).is_none_or(|at| at.elapsed() >= SELDOM);
        if is_due {
            warned.insert(of, Instant::now());
        }
        is_due
    });
    if is_due {
        raise::warn(
            format!("metrics of {of}: {failure}"),
            "The other rows are told. A session says this once a minute at most.",
        );
    }
}

/// Only where they are counted: replays write nothing, so there is nothing else to count them by.
fn claims(sheet: &Sheet) -> Result<()> {
    let Some((totals, lately)) = counters::told() else {
        return Ok(());
    };
    for outcome in Outcome::ALL {
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
    let share = |outcome: Outcome| match all {
        0 => 0.0,
        all => lately[outcome as usize] as f64 / all as f64,
    };
    sheet.put(
        "idempotency_reuse_rate",
        &[],
        share(Outcome::Replayed),
        "Share of the claims of the last five minutes (or since the call of metrics before that) that were answered from a stored response; 0 without claims. Only with shared_preload_libraries.",
    )?;
    sheet.put(
        "idempotency_409_rate",
        &[],
        share(Outcome::Mismatched),
        "Share of the claims of the last five minutes (or since the call of metrics before that) whose key stands for a different request (mismatched); 0 without claims. Only with shared_preload_libraries.",
    )?;
    sheet.put(
        "idempotency_in_progress_rate",
        &[],
        share(Outcome::InProgress),
        "Share of the claims of the last five minutes (or since the call of metrics before that) that met somebody at work (in_progress); 0 without claims. Only with shared_preload_libraries.",
    )
}

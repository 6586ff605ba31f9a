//! `doctor`: what a person who is responsible should know, and what to do about it.
//!
//! `check` is machine_check and machine_assert. Each other file asks about one thing, by itself: what cannot be looked
//! at (a table that somebody has locked) is a row, and hides nothing else. Invariant: nothing is written and nobody
//! waited for but for a moment, so it works in a READ ONLY transaction and on a standby; a new database that is well
//! gives no row but `info`. What is told are names, numbers and times, no payload and no text of a query. Times are
//! compared with the clock that a test can move.

pub mod check;
mod horizon;
mod janitor;
mod keys;
mod locks;
mod machines;
mod outbox;
mod owners;
mod schema;
mod settings;

use crate::call::{Call, from_utf8};
use crate::error::Result;
use crate::row::{self, Rows};
use crate::spi::{self, Kept, column};
use crate::subxact;
use pgrx::pg_sys::Datum;
use std::thread::LocalKey;

/// How bad it is.
#[derive(Clone, Copy)]
pub enum Severity {
    /// Something is wrong now.
    Error,
    /// Something will be, if nobody does anything.
    Warning,
    /// Good to know.
    Info,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// What was found.
struct Report {
    rows: Rows,
}

impl Report {
    fn add(
        &self,
        level: Severity,
        problem: impl AsRef<str>,
        detail: impl AsRef<str>,
        hint: impl AsRef<str>,
    ) {
        let text = |t: &str| Some(row::text(&from_utf8(t)));
        let (problem, detail, hint) = (problem.as_ref(), detail.as_ref(), hint.as_ref());
        self.rows
            .push(&[text(level.name()), text(problem), text(detail), text(hint)]);
    }

    /// The rows of a statement that tells level, problem, detail and hint by itself.
    fn ask(&self, statement: &'static LocalKey<Kept>, args: &[Option<Datum>]) -> Result<()> {
        for found in spi::query(statement, args)? {
            let found: Vec<_> = (0..4).map(|i| column(&found, i)).collect();
            self.rows.push(&found);
        }
        Ok(())
    }
}

type Ask = fn(&Report) -> Result<()>;

/// What is asked about, and by whom.
const QUESTIONS: &[(&str, Ask)] = &[
    ("settings", settings::ask),
    ("tables and indexes", schema::ask),
    ("the janitor", janitor::ask),
    ("machines", machines::ask),
    ("keys", keys::ask),
    ("dead letters", outbox::ask),
    ("locks", locks::ask),
    ("old transactions", horizon::ask),
    ("owners", owners::ask),
];

/// `once.doctor`.
pub fn doctor(call: &Call) -> Result<Datum> {
    let report = Report {
        rows: Rows::begin(call),
    };
    for (what, ask) in QUESTIONS {
        if let Err(failure) = subxact::attempt_briefly(|| ask(&report))? {
            report.add(
                Severity::Warning,
                format!("{what} could not be looked at"),
                failure.message,
                "Somebody keeps a table locked (pg_locks, pg_stat_activity), or it is damaged. Ask again; the other rows tell the rest.",
            );
        }
    }
    Ok(call.return_null())
}

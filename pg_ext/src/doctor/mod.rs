//! `doctor`: the problems of a database, and the next step for each.
//!
//! `check` and `orphans` have machine_check and machine_assert, `verify` has once.verify. The other files ask the
//! questions of doctor, each question in a subtransaction of its own. So a question that fails adds a row, and the
//! others are still answered. Invariant: doctor waits for each lock at most once.sweep_lock_timeout. It writes nothing,
//! so it works in a READ ONLY transaction and on a standby. A healthy database gives only rows with level `info`.
//! doctor shows error messages, names, numbers and times, but no payload and no query text.

pub mod check;
mod horizon;
mod janitor;
mod keys;
mod leases;
mod locks;
mod machines;
mod orphans;
mod outbox;
mod owners;
mod schema;
mod settings;
pub mod verify;

use crate::call::{Call, from_utf8};
use crate::error::Result;
use crate::row::{self, Rows};
use crate::spi::{self, Kept, column};
use crate::subxact;
use pgrx::pg_sys::Datum;

#[derive(Clone, Copy)]
pub enum Severity {
    /// A problem now.
    Error,
    /// A problem soon.
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

    /// Adds the rows of a statement with the columns level, problem, detail and hint.
    fn ask(&self, statement: &'static Kept, args: &[Option<Datum>]) -> Result<()> {
        for found in spi::query_once(statement, args)? {
            let found: Vec<_> = (0..4).map(|i| column(&found, i)).collect();
            self.rows.push(&found);
        }
        Ok(())
    }
}

type Ask = fn(&Report) -> Result<()>;

/// The questions, each with its name for the row that reports its failure.
const QUESTIONS: &[(&str, Ask)] = &[
    ("settings", settings::ask),
    ("tables and indexes", schema::ask),
    ("the janitor", janitor::ask),
    ("machines", machines::ask),
    ("keys", keys::ask),
    ("scopes", keys::undeclared),
    ("shards", keys::foreign),
    ("dead letters", outbox::ask),
    ("leases", leases::ask),
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
                "A table is locked (pg_locks, pg_stat_activity) or damaged. Call doctor again; the other rows are complete.",
            );
        }
    }
    Ok(call.return_null())
}

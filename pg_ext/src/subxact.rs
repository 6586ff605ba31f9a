//! A subtransaction around work whose failure must not end the caller's transaction: one batch of a sweep, one check of
//! a definition, one part of doctor or metrics.

use crate::error::{Error, Kind, Result};
use crate::settings;
use crate::table::above_read_committed;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use std::panic::AssertUnwindSafe;

/// The error of work that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    /// The work waited too long for a lock (55P03).
    pub is_wait: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure {
            is_wait: matches!(error.kind, Kind::LockNotAvailable),
            message: error.message,
        }
    }
}

impl Failure {
    /// The failure for an error of the server.
    pub fn of(caught: &CaughtError) -> Failure {
        let report = report(caught);
        Failure {
            // pgrx puts U+FFFD for a byte that is not UTF-8; not every encoding has that character.
            message: report.message().replace('\u{fffd}', "?"),
            is_wait: report.sql_error_code() == Code::ERRCODE_LOCK_NOT_AVAILABLE,
        }
    }
}

fn report(caught: &CaughtError) -> &ErrorReportWithLevel {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic {
        ereport: report, ..
    }) = caught;
    report
}

/// An error inside the subtransaction.
enum Raised {
    Ours(Error),
    /// An error of the server, as `sorted` classifies it.
    Caught(Result<Failure>),
}

/// Runs `work` in a subtransaction. A failure undoes the writes of `work` and is the inner result. An error for the
/// whole transaction (a cancelled query, a shutdown, a lost race above READ COMMITTED) is the outer result. After a
/// failure, no code may use a pin or an open relation of `work`: the rollback has released them.
pub fn attempt<T>(work: impl FnOnce() -> Result<T>) -> Result<std::result::Result<T, Failure>> {
    match inside(work) {
        Ok(value) => Ok(Ok(value)),
        Err(Raised::Ours(error)) if stops(error.kind) => Err(error),
        Err(Raised::Ours(error)) => Ok(Err(error.into())),
        Err(Raised::Caught(failure)) => failure.map(Err),
    }
}

/// Like [`attempt`], with once.sweep_lock_timeout, for a part of a sweep or a report.
pub fn attempt_briefly<T>(
    work: impl FnOnce() -> Result<T>,
) -> Result<std::result::Result<T, Failure>> {
    attempt(|| settings::with_sweep_lock_timeout(work))
}

/// Runs `work` in the subtransaction; the text of an error is copied into the caller's memory context.
fn inside<T>(work: impl FnOnce() -> Result<T>) -> std::result::Result<T, Raised> {
    // SAFETY: plain reads; both are set again below, as PL/pgSQL does around an exception block.
    let (memory, owner) = unsafe { (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner) };
    // SAFETY: paired with exactly one release or rollback below.
    unsafe {
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(memory);
    }
    let work = AssertUnwindSafe(work);
    let ended = pgrx::PgTryBuilder::new(move || {
        let work = work;
        (work.0)().map_err(Raised::Ours)
    })
    .catch_others(move |caught| {
        // SAFETY: the context from before the subtransaction.
        unsafe { pg_sys::MemoryContextSwitchTo(memory) };
        Err(Raised::Caught(sorted(&caught)))
    })
    .execute();
    // SAFETY: an error does not end the subtransaction begun above. It is still the current one.
    unsafe {
        match ended {
            Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
            Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(memory);
        pg_sys::CurrentResourceOwner = owner;
    }
    ended
}

/// Whether an error of ours, raised by an inner [`attempt`] or by `work` itself, ends the whole transaction.
fn stops(kind: Kind) -> bool {
    match kind {
        Kind::Cancelled | Kind::Shutdown => true,
        Kind::RetryTransaction => above_read_committed(),
        _ => false,
    }
}

/// Decides whether an error of the server ends the whole transaction (Err) or only the work (Ok). A trigger may raise
/// any SQLSTATE, but a real cancellation comes from postgres.c. After the rollback of the subtransaction the caller
/// raises an Err again.
fn sorted(caught: &CaughtError) -> Result<Failure> {
    let report = report(caught);
    // The file is pg_once if a trigger called a function of ours, which raised the cancellation again.
    let by_server = report.file().ends_with("postgres.c") || report.file() == "pg_once";
    let stops = match report.sql_error_code() {
        Code::ERRCODE_QUERY_CANCELED if by_server => Some(Kind::Cancelled),
        Code::ERRCODE_ADMIN_SHUTDOWN if by_server => Some(Kind::Shutdown),
        Code::ERRCODE_T_R_SERIALIZATION_FAILURE if above_read_committed() => {
            Some(Kind::RetryTransaction)
        }
        _ => None,
    };
    match stops {
        Some(kind) => Err(Error::new(kind, Failure::of(caught).message)),
        None => Ok(Failure::of(caught)),
    }
}

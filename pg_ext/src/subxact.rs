//! A subtransaction around work whose failure must not end the caller's transaction: one batch of a sweep,
//! one look at a definition.

use crate::error::{Error, Kind, Result};
use crate::settings;
use crate::table::above_read_committed;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use std::panic::AssertUnwindSafe;

/// What the server or we said when the work failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    /// It wanted a lock that somebody has (55P03).
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
    /// Of an error of the server.
    pub fn of(caught: &CaughtError) -> Failure {
        let report = report(caught);
        Failure {
            message: report.message().to_owned(),
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

/// Why work came to nothing.
enum Raised {
    Ours(Error),
    /// What an error of the server means.
    Caught(Result<Failure>),
}

/// Runs `work` in a subtransaction. A failure undoes what it wrote and is told; but for those that are meant
/// for the whole transaction (a cancelled query, a shutdown, a lost race above READ COMMITTED), which go on
/// once the subtransaction is rolled back. Nothing with a pin or an open relation may outlive `work` when it
/// fails.
pub fn attempt<T>(work: impl FnOnce() -> Result<T>) -> Result<std::result::Result<T, Failure>> {
    match inside(work) {
        Ok(value) => Ok(Ok(value)),
        Err(Raised::Ours(error)) if stops(error.kind) => Err(error),
        Err(Raised::Ours(error)) => Ok(Err(error.into())),
        Err(Raised::Caught(told)) => told.map(Err),
    }
}

/// The same for a part of a sweep, or a look that must not wait: with once.sweep_lock_timeout.
pub fn attempt_briefly<T>(
    work: impl FnOnce() -> Result<T>,
) -> Result<std::result::Result<T, Failure>> {
    attempt(|| settings::with_sweep_lock_timeout(work))
}

/// The subtransaction, and the caller's memory context for what is told of an error.
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
        // SAFETY: the context of before the subtransaction.
        unsafe { pg_sys::MemoryContextSwitchTo(memory) };
        Err(Raised::Caught(told(&caught)))
    })
    .execute();
    // SAFETY: the subtransaction begun above is the current one; an error in it left it to be rolled back.
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

/// Meant for the whole transaction; an attempt within this one was stopped by it, or it is raised here.
fn stops(kind: Kind) -> bool {
    match kind {
        Kind::Cancelled | Kind::Shutdown => true,
        Kind::RetryTransaction => above_read_committed(),
        _ => false,
    }
}

/// What an error of the server means. A trigger may raise any code it likes: a cancellation is one that the
/// server's own loop raised. It is raised anew by whoever called, once the subtransaction is rolled back.
fn told(caught: &CaughtError) -> Result<Failure> {
    let report = report(caught);
    // A function of ours that a trigger called raises anew what stopped it: under the library's name, which no other has.
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
        Some(kind) => Err(Error::new(kind, report.message())),
        None => Ok(Failure::of(caught)),
    }
}

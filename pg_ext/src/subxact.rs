//! A subtransaction around work whose failure must not end the caller's transaction: one batch of a sweep,
//! one look at a definition.

use crate::error::{Error, Kind, Result};
use crate::table::above_read_committed;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;

/// What the server or we said when the work failed.
pub type Failure = String;

/// How the work ended.
enum Ended<T> {
    Well(T),
    Failed(Failure),
    /// Meant for the whole transaction.
    Stopped(Error),
}

/// Runs `work` in a subtransaction. A failure undoes what it wrote and is told; but for those that are meant
/// for the whole transaction (a cancelled query, a shutdown, a lost race above READ COMMITTED), which go on
/// once the subtransaction is rolled back. Nothing with a pin or an open relation may outlive `work` when it
/// fails.
pub fn attempt<T>(work: impl FnOnce() -> Result<T>) -> Result<std::result::Result<T, Failure>> {
    // SAFETY: plain reads; both are set again below, as PL/pgSQL does around an exception block.
    let (memory, owner) = unsafe { (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner) };
    // SAFETY: paired with exactly one release or rollback below.
    unsafe {
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(memory);
    }
    let work = std::panic::AssertUnwindSafe(work);
    let ended = pgrx::PgTryBuilder::new(move || {
        let work = work;
        match (work.0)() {
            Ok(value) => Ended::Well(value),
            Err(error) if stops(error.kind) => Ended::Stopped(error),
            Err(Error { message, .. }) => Ended::Failed(message),
        }
    })
    .catch_others(|caught| told(&caught))
    .execute();
    // SAFETY: the subtransaction begun above is the current one; an error in it left it to be rolled back.
    unsafe {
        match ended {
            Ended::Well(_) => pg_sys::ReleaseCurrentSubTransaction(),
            _ => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(memory);
        pg_sys::CurrentResourceOwner = owner;
    }
    match ended {
        Ended::Well(value) => Ok(Ok(value)),
        Ended::Failed(failure) => Ok(Err(failure)),
        Ended::Stopped(error) => Err(error),
    }
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
fn told<T>(caught: &CaughtError) -> Ended<T> {
    use pgrx::PgSqlErrorCode as Code;
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic {
        ereport: report, ..
    }) = caught;
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
        Some(kind) => Ended::Stopped(Error::new(kind, report.message())),
        None => Ended::Failed(report.message().to_owned()),
    }
}

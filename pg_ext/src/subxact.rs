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
    Stopped(Stop),
}

enum Stop {
    Ours(Error),
    Servers(CaughtError),
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
            Err(error) if error.kind == Kind::RetryTransaction && above_read_committed() => {
                Ended::Stopped(Stop::Ours(error))
            }
            Err(Error { message, .. }) => Ended::Failed(message),
        }
    })
    .catch_others(|caught| match told(&caught) {
        Some(message) => Ended::Failed(message),
        None => Ended::Stopped(Stop::Servers(caught)),
    })
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
        Ended::Stopped(Stop::Ours(error)) => Err(error),
        // The server has forgotten the error by now: it is raised anew from its report.
        Ended::Stopped(Stop::Servers(CaughtError::PostgresError(report))) => {
            CaughtError::ErrorReport(report).rethrow()
        }
        Ended::Stopped(Stop::Servers(caught)) => caught.rethrow(),
    }
}

/// What an error of the server says; None for one that is meant for the whole transaction. A trigger may
/// raise any code it likes: a cancellation is one that the server's own loop raised.
fn told(caught: &CaughtError) -> Option<Failure> {
    use pgrx::PgSqlErrorCode as Code;
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic {
        ereport: report, ..
    }) = caught;
    let by_server = || report.file().ends_with("postgres.c");
    let stops = match report.sql_error_code() {
        Code::ERRCODE_QUERY_CANCELED
        | Code::ERRCODE_ADMIN_SHUTDOWN
        | Code::ERRCODE_CRASH_SHUTDOWN
        | Code::ERRCODE_CANNOT_CONNECT_NOW => by_server(),
        Code::ERRCODE_T_R_SERIALIZATION_FAILURE => above_read_committed(),
        _ => false,
    };
    (!stops).then(|| report.message().to_owned())
}

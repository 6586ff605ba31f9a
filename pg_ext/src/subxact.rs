//! A subtransaction around work whose failure must not end the caller's transaction: one batch of a sweep,
//! one look at a definition.

use crate::error::{Error, Kind, Result};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;

/// What the server or we said when the work failed.
pub type Failure = String;

/// Runs `work` in a subtransaction. A failure undoes what it wrote and is told; but for those that are meant
/// for the whole transaction (a cancelled query, a shutdown, a lost race above READ COMMITTED), which go on.
/// Nothing with a pin or an open relation may outlive `work` when it fails.
pub fn attempt<T>(work: impl FnOnce() -> Result<T>) -> Result<std::result::Result<T, Failure>> {
    // SAFETY: plain reads; both are set again below, as PL/pgSQL does around an exception block.
    let (memory, owner) = unsafe { (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner) };
    // SAFETY: paired with exactly one release or rollback below.
    unsafe {
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(memory);
    }
    let work = std::panic::AssertUnwindSafe(work);
    let outcome = pgrx::PgTryBuilder::new(move || {
        let work = work;
        match (work.0)() {
            Ok(value) => Ok(Ok(value)),
            Err(error) if error.kind == Kind::RetryTransaction => Err(error),
            Err(Error { message, .. }) => Ok(Err(message)),
        }
    })
    .catch_others(|caught| {
        let report = match &caught {
            CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic {
                ereport: report, ..
            } => report,
        };
        if meant_for_transaction(report.sql_error_code()) {
            caught.rethrow()
        }
        Ok(Err(report.message().to_owned()))
    })
    .execute();
    // SAFETY: the subtransaction begun above is the current one; an error in it left it to be rolled back.
    unsafe {
        match outcome {
            Ok(Ok(_)) => pg_sys::ReleaseCurrentSubTransaction(),
            _ => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(memory);
        pg_sys::CurrentResourceOwner = owner;
    }
    outcome
}

fn meant_for_transaction(code: pgrx::PgSqlErrorCode) -> bool {
    use pgrx::PgSqlErrorCode as Code;
    matches!(
        code,
        Code::ERRCODE_QUERY_CANCELED
            | Code::ERRCODE_ADMIN_SHUTDOWN
            | Code::ERRCODE_CRASH_SHUTDOWN
            | Code::ERRCODE_CANNOT_CONNECT_NOW
            | Code::ERRCODE_T_R_SERIALIZATION_FAILURE
    )
}

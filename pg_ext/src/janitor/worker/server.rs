//! The server's side of a background process: signals, sleep, connections, transactions.

use super::schedule::{Present, RowsChanged};
use crate::call::shown;
use crate::error::Result;
use crate::subxact::Failure;
use pgrx::pg_sys::{self, Oid};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

#[cfg(not(feature = "pg18"))]
use pg_sys::pqsignal;
#[cfg(feature = "pg18")]
use pg_sys::pqsignal_be as pqsignal;

// The server's own signal handlers, which `begin` passes to pqsignal. They only set flags and wake the process.
unsafe extern "C-unwind" {
    fn die(signal: c_int);
    fn SignalHandlerForConfigReload(signal: c_int);
}

const SIGHUP: c_int = 1;
const SIGTERM: c_int = 15;

/// A worker's settings. They replace settings of the database or role that could change or stop a sweep.
const PINNED: &[(&CStr, &CStr)] = &[
    (c"role", c"none"),
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"session_replication_role", c"origin"),
    (c"row_security", c"on"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
    (c"statement_timeout", c"0"),
    (c"idle_in_transaction_session_timeout", c"0"),
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    (c"transaction_timeout", c"0"),
    (c"plan_cache_mode", c"auto"),
    (c"jit", c"off"),
    (c"application_name", c"pg_once janitor"),
];

/// Makes the process react to signals; must be called first.
pub fn begin() {
    // SAFETY: handlers of the server, set before signals are unblocked. A shutdown ends the running statement, as in
    // any session.
    unsafe {
        pqsignal(SIGTERM, Some(die));
        pqsignal(SIGHUP, Some(SignalHandlerForConfigReload));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Connects without a database, so only the shared catalogs can be read.
pub fn connect_to_none() {
    // SAFETY: called once, before any transaction.
    unsafe { pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0) };
}

/// Connects as the bootstrap superuser, with the settings PINNED.
pub fn connect(database: Oid) {
    // SAFETY: called once, before any transaction; the settings are the server's own, with values that they take.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
        for (name, value) in PINNED {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
}

/// Whether the server has asked this process to end.
pub fn is_told_to_stop() -> bool {
    // SAFETY: a flag that a signal handler sets.
    unsafe { (&raw const pg_sys::ProcDiePending).read_volatile() != 0 }
}

/// Sleeps until a signal arrives, a worker starts or ends, or `most` has passed. After SIGHUP reads the settings again.
/// False: this process has to end.
pub fn nap(most: Option<Duration>) -> bool {
    let timeout = most.map_or(-1, |d| {
        i64::try_from(d.as_millis()).unwrap_or(i64::MAX).max(1)
    });
    let until = match most {
        Some(_) => pg_sys::WL_LATCH_SET | pg_sys::WL_EXIT_ON_PM_DEATH | pg_sys::WL_TIMEOUT,
        None => pg_sys::WL_LATCH_SET | pg_sys::WL_EXIT_ON_PM_DEATH,
    };
    // SAFETY: this process's own latch; flags that signal handlers set. DROP DATABASE signals every process and waits
    // for all of them. check_for_interrupts answers that signal.
    unsafe {
        let timeout = timeout.min(i64::from(i32::MAX));
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            until as c_int,
            timeout,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
        if is_told_to_stop() {
            return false;
        }
        pgrx::check_for_interrupts!();
        let reload = &raw mut pg_sys::ConfigReloadPending;
        if reload.read_volatile() != 0 {
            reload.write_volatile(0);
            read_settings();
        }
    }
    true
}

/// Reads the server's configuration file.
pub fn read_settings() {
    // SAFETY: no transaction is open. The server's own background processes make the same call after SIGHUP.
    unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
}

/// Ends this process. After a code other than 0 the server starts the launcher again.
pub fn exit(code: i32) {
    // SAFETY: no transaction is open, and nothing here has a destructor that matters.
    unsafe { pg_sys::proc_exit(code) };
}

/// Runs `work` in a transaction of its own. An error rolls it back and is returned.
pub fn transaction<T>(work: impl FnOnce() -> Result<T>) -> std::result::Result<T, Failure> {
    let work = AssertUnwindSafe(work);
    let done = pgrx::PgTryBuilder::new(move || {
        let work = work;
        // SAFETY: no transaction is open; it is committed here or aborted below.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let value = (work.0)()?;
        // SAFETY: pushed and begun above.
        unsafe {
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
        }
        Ok(value)
    })
    .catch_others(|caught| Err(Failure::of(&caught)))
    .execute();
    if done.is_err() {
        // SAFETY: ends the transaction that failed.
        unsafe { pg_sys::AbortCurrentTransaction() };
    }
    done
}

/// Shows the present task in pg_stat_activity.
pub fn show_work(what: &str) {
    let what = CString::new(what).unwrap_or_default();
    // SAFETY: copies the text.
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, what.as_ptr()) };
}

/// Whether the extension is installed in this database. Needs a transaction.
pub fn is_installed() -> bool {
    // SAFETY: looks into the catalog.
    unsafe { pg_sys::get_extension_oid(c"pg_once".as_ptr(), true) != pg_sys::InvalidOid }
}

/// The name of the database that this process serves, in UTF-8. Needs a transaction.
pub fn database_name() -> String {
    // SAFETY: looks into the catalog; null or a string.
    let name = unsafe {
        let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
        if name.is_null() {
            return String::new();
        }
        CStr::from_ptr(name)
    };
    shown(name.to_bytes())
}

/// The wanted databases that accept connections, by name. Needs a transaction.
pub fn databases(wanted: &[Vec<u8>]) -> HashMap<Vec<u8>, Present> {
    let mut found = HashMap::new();
    // SAFETY: opens, scans and closes a catalog of the server; its rows begin with this structure and are read while
    // the scan holds them. A connection limit below -1 marks a database whose DROP was interrupted.
    unsafe {
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let table = pg_sys::table_open(pg_sys::DatabaseRelationId, lock);
        let scan = pg_sys::table_beginscan_catalog(table, 0, std::ptr::null_mut());
        loop {
            let row = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if row.is_null() {
                break;
            }
            let database: *const pg_sys::FormData_pg_database = pg_sys::GETSTRUCT(row).cast();
            let name = CStr::from_ptr((*database).datname.data.as_ptr()).to_bytes();
            let is_open = (*database).datallowconn && (*database).datconnlimit >= -1;
            if is_open && wanted.iter().any(|w| w == name) {
                let oid = (*database).oid;
                let changed = rows_changed(oid);
                found.insert(name.to_vec(), Present { oid, changed });
            }
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(table, lock);
    }
    found
}

/// The server's counts of changed rows in a database. Needs a transaction, which caches them. None: no counts.
fn rows_changed(database: Oid) -> Option<RowsChanged> {
    // SAFETY: a setting; null or a structure that lives until the end of the transaction.
    unsafe {
        if !pg_sys::pgstat_track_counts {
            return None;
        }
        let counts = pg_sys::pgstat_fetch_stat_dbentry(database).as_ref()?;
        let counted_since = counts.stat_reset_timestamp;
        #[cfg(feature = "pg15")]
        return Some(RowsChanged {
            inserted: counts.n_tuples_inserted,
            updated: counts.n_tuples_updated,
            deleted: counts.n_tuples_deleted,
            counted_since,
        });
        #[cfg(not(feature = "pg15"))]
        return Some(RowsChanged {
            inserted: counts.tuples_inserted,
            updated: counts.tuples_updated,
            deleted: counts.tuples_deleted,
            counted_since,
        });
    }
}

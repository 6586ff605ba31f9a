//! The process of a worker, as the launcher sees it.

use super::NAME;
use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::pg_sys::{self, BgwHandleStatus, Datum, Oid};
use std::ptr;

/// The longest title in bytes; the server takes up to 95.
const LONGEST_NAME: usize = 90;

/// The handle of a started worker.
pub struct WorkerProcess {
    handle: *mut pg_sys::BackgroundWorkerHandle,
}

impl WorkerProcess {
    /// None: the server has no room for another background worker.
    pub fn start(name: &[u8], database: Oid, slot: usize) -> Option<WorkerProcess> {
        let mut title = format!("{NAME}: {}", String::from_utf8_lossy(name));
        while title.len() > LONGEST_NAME {
            title.pop();
        }
        let builder = BackgroundWorkerBuilder::new(&title)
            .set_type(NAME)
            .set_library("pg_once")
            .set_function("pg_once_worker")
            .set_argument(Some(argument(database, slot)))
            // SAFETY: a variable of this process.
            .set_notify_pid(unsafe { pg_sys::MyProcPid })
            .enable_spi_access();
        let mut worker: pg_sys::BackgroundWorker = (&builder).into();
        let mut handle = ptr::null_mut();
        // SAFETY: the handle is allocated in TopMemoryContext, where it lives until drop frees it.
        let started = unsafe {
            let before = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            let started = pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle);
            pg_sys::MemoryContextSwitchTo(before);
            started
        };
        match started {
            true => Some(WorkerProcess { handle }),
            false => None,
        }
    }

    pub fn has_ended(&self) -> bool {
        let mut pid = 0;
        // SAFETY: the handle of a started worker.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(self.handle, &mut pid) };
        !matches!(
            status,
            BgwHandleStatus::BGWH_STARTED | BgwHandleStatus::BGWH_NOT_YET_STARTED
        )
    }

    pub fn stop(&self) {
        // SAFETY: the handle of a started worker.
        unsafe { pg_sys::TerminateBackgroundWorker(self.handle) };
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // SAFETY: allocated in start, and used by nobody else.
        unsafe { pg_sys::pfree(self.handle.cast()) };
    }
}

fn argument(database: Oid, slot: usize) -> Datum {
    Datum::from(u64::from(u32::from(database)) | (slot as u64) << u32::BITS)
}

/// The database and the slot of the worker that was started with this argument.
pub fn of_argument(argument: Datum) -> (Oid, usize) {
    let value = argument.value() as u64;
    (Oid::from(value as u32), (value >> u32::BITS) as usize)
}

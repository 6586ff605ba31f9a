//! worker: the background workers, which run the sweep's tasks.
//!
//! With `shared_preload_libraries = 'pg_once'` the server starts one launcher; a standby starts it only after a
//! promotion. The launcher starts a worker for each database of `once.janitor_databases` that is due (schedule.rs). The
//! worker runs one pass and ends, so that nothing stays connected to a database. If the database does not have the
//! extension, the worker does nothing. A worker reports to the launcher in shared memory how its pass ended (board.rs).
//!
//! Invariant: between two tasks a worker holds no transaction, no snapshot and no lock. Each batch is a transaction of
//! its own, so a worker that is killed loses one batch at most.

mod board;
mod launcher;
mod names;
mod process;
mod schedule;
mod serve;
mod server;

pub use board::late_at;

use crate::settings;
use crate::swept;
use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::pg_sys::{self, Datum};
use std::time::Duration;

/// The name of a worker in pg_stat_activity and once.janitor.
pub const NAME: &str = "pg_once janitor";
const LAUNCHER: &str = "pg_once launcher";

/// The pause after an error before the server starts the launcher again.
const RESTART: Duration = Duration::from_secs(5);

/// The databases of once.janitor_databases.
pub fn databases() -> Vec<Vec<u8>> {
    names::parse(&settings::janitor_databases())
}

/// Registers the launcher while the server preloads libraries. Not during pg_upgrade.
pub fn register() {
    // SAFETY: both are variables that the server sets before it loads libraries.
    let wanted =
        unsafe { pg_sys::process_shared_preload_libraries_in_progress && !pg_sys::IsBinaryUpgrade };
    if wanted {
        board::register();
        BackgroundWorkerBuilder::new(LAUNCHER)
            .set_library("pg_once")
            .set_function("pg_once_launcher")
            .enable_spi_access()
            .set_restart_time(Some(RESTART))
            .load();
    }
}

#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pg_once_launcher(_none: Datum) {
    launcher::main();
}

#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pg_once_worker(argument: Datum) {
    swept::serve_as(NAME);
    let (database, slot) = process::of_argument(argument);
    serve::main(database, slot);
}

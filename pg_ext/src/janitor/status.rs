//! `janitor_status()`: what once.janitor says, for those who may not read the table. What went wrong with a machine
//! that has another owner is not told: an error may quote a row.

use super::task::Task;
use crate::call::Call;
use crate::error::Result;
use crate::machine::stored;
use crate::row::{self, Rows};
use crate::spi::{self, Kept};
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

const STATUS: &CStr = c"
    SELECT t.task, NULLIF(j.machine, ''), j.last_end, COALESCE(j.done, 0), COALESCE(j.failed, 0),
           CASE WHEN j.machine = ANY ($2) AND j.last_error IS NOT NULL THEN $3 ELSE j.last_error END, j.served_by
      FROM unnest($1) WITH ORDINALITY t (task, n) LEFT JOIN once.janitor j ON j.task = t.task
     ORDER BY t.n, j.machine";

thread_local! {
    static RUNS: Kept = const { Kept::new(
        STATUS,
        &[pg_sys::TEXTARRAYOID, pg_sys::TEXTARRAYOID, pg_sys::TEXTOID],
    ) };
}

/// `once.janitor_status`.
pub fn janitor_status(call: &Call) -> Result<Datum> {
    let rows = Rows::begin(call);
    let tasks = Task::ALL.map(|task| task.name().as_bytes());
    let args = [
        Some(row::texts(&tasks)),
        Some(stored::closed_to_caller()?),
        Some(row::text(stored::NOT_TOLD.as_bytes())),
    ];
    for run in spi::query(&RUNS, &args)? {
        rows.push(&run);
    }
    Ok(call.return_null())
}

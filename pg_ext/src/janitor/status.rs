//! `janitor_status()`: what once.janitor says, for those who may not read the table.

use super::task::Task;
use crate::call::Call;
use crate::error::Result;
use crate::row::{self, Rows};
use crate::spi::{self, Kept};
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

const STATUS: &CStr = c"
    SELECT t.task, NULLIF(j.machine, ''), j.last_end, COALESCE(j.done, 0), COALESCE(j.failed, 0), j.last_error,
           j.served_by
      FROM unnest($1) WITH ORDINALITY t (task, n) LEFT JOIN once.janitor j ON j.task = t.task
     ORDER BY t.n, j.machine";

thread_local! {
    static RUNS: Kept = const { Kept::new(STATUS, &[pg_sys::TEXTARRAYOID]) };
}

/// `once.janitor_status`.
pub fn janitor_status(call: &Call) -> Result<Datum> {
    let rows = Rows::begin(call);
    let tasks = Task::ALL.map(|task| task.name().as_bytes());
    for run in spi::query(&RUNS, &[Some(row::texts(&tasks))])? {
        rows.push(&run);
    }
    Ok(call.return_null())
}

//! What stands in small tables and catalogs: the sweeps' record, and the size of the extension's tables.

use super::Sheet;
use crate::call::{shown, varlena};
use crate::clock;
use crate::error::Result;
use crate::spi::{self, Kept, column};
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

const SWEEPS: &CStr = c"
    SELECT j.task, j.machine, j.done::double precision, j.failed::double precision,
           pg_catalog.date_part('epoch', $1 - j.last_end)
      FROM once.janitor j ORDER BY j.task, j.machine";

const SIZES: &CStr = c"
    SELECT c.relname::text, pg_catalog.pg_total_relation_size(c.oid)::double precision
      FROM pg_catalog.pg_class c
     WHERE c.relnamespace = 'once'::pg_catalog.regnamespace AND c.relkind = 'r' ORDER BY c.relname";

thread_local! {
    static OF_SWEEPS: Kept = const { Kept::new(SWEEPS, &[pg_sys::TIMESTAMPTZOID]) };
    static OF_TABLES: Kept = const { Kept::new(SIZES, &[]) };
}

pub fn text(row: &spi::Row, i: usize) -> String {
    column(row, i)
        .map(|d| shown(varlena(d)))
        .unwrap_or_default()
}

pub fn float(row: &spi::Row, i: usize) -> Option<f64> {
    column(row, i).map(|d: Datum| f64::from_bits(d.value() as u64))
}

/// What the sweeps did.
pub fn sweeps(sheet: &Sheet) -> Result<()> {
    let now = [Some(Datum::from(clock::now_us()?))];
    for row in spi::query(&OF_SWEEPS, &now)? {
        let (task, machine) = (text(&row, 0), text(&row, 1));
        let labels = [("task", task.as_str()), ("machine", machine.as_str())];
        sheet.put(
            "pg_once_sweep_done_total",
            &labels,
            float(&row, 2).unwrap_or(0.0),
            "Rows that the sweeps of this task (and, of action_release, of this machine) have dealt with.",
        )?;
        sheet.put(
            "pg_once_sweep_failed_total",
            &labels,
            float(&row, 3).unwrap_or(0.0),
            "Failures of the sweeps of this task (and machine): rows, batches, tables or the task itself.",
        )?;
        if let Some(age) = float(&row, 4) {
            sheet.put(
                "pg_once_sweep_age_seconds",
                &labels,
                age.max(0.0),
                "Time since a sweep of this task (and machine) last ended; up to 30 seconds too large where there was nothing to do.",
            )?;
        }
    }
    Ok(())
}

/// Disk use.
pub fn sizes(sheet: &Sheet) -> Result<()> {
    for row in spi::query(&OF_TABLES, &[])? {
        sheet.put(
            "pg_once_table_bytes",
            &[("table", &text(&row, 0))],
            float(&row, 1).unwrap_or(0.0),
            "Bytes of a table of the extension with its indexes and out-of-line values; event_0 to event_3: the segments of the log.",
        )?;
    }
    Ok(())
}

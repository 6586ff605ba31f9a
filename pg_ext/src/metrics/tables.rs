//! Numbers from small tables and catalogs: the results of the sweeps, and the size of the extension's tables.

use super::Sheet;
use crate::clock;
use crate::error::Result;
use crate::janitor::Task;
use crate::spi::{self, Kept, float, text};
use pgrx::pg_sys::{Datum, TIMESTAMPTZOID};
use std::collections::BTreeSet;
use std::ffi::CStr;

const SWEEPS: &CStr = c"
    SELECT j.task, j.machine, j.done::double precision, j.failed::double precision,
           COALESCE(pg_catalog.date_part('epoch', $1 - j.last_end), 'Infinity')
      FROM once.janitor j ORDER BY j.task, j.machine";

const SIZES: &CStr = c"
    SELECT c.relname::text, pg_catalog.pg_total_relation_size(c.oid)::double precision
      FROM pg_catalog.pg_class c
     WHERE c.relnamespace = 'once'::pg_catalog.regnamespace AND c.relkind = 'r' ORDER BY c.relname";

static OF_SWEEPS: Kept = Kept::new(SWEEPS, &[TIMESTAMPTZOID]);
static OF_TABLES: Kept = Kept::new(SIZES, &[]);

/// The totals of each sweep task; a task that has never run has rows, too.
pub fn sweeps(sheet: &Sheet) -> Result<()> {
    let now = [Some(Datum::from(clock::now_us()?))];
    let mut never: BTreeSet<&str> = Task::ALL.iter().map(|task| task.name()).collect();
    for row in spi::query(&OF_SWEEPS, &now)? {
        let (task, machine) = (text(&row, 0), text(&row, 1));
        if machine.is_empty() {
            never.remove(task.as_str());
        }
        let number = |i| float(&row, i);
        of_task(sheet, [&task, &machine], [number(2), number(3), number(4)])?;
    }
    for task in never {
        of_task(sheet, [task, ""], [0.0, 0.0, f64::INFINITY])?;
    }
    Ok(())
}

fn of_task(sheet: &Sheet, of: [&str; 2], counts: [f64; 3]) -> Result<()> {
    let labels = [("task", of[0]), ("machine", of[1])];
    let [done, failed, age] = counts;
    sheet.put(
        "pg_once_sweep_done_total",
        &labels,
        done,
        "Rows that the sweeps of this task have handled. action_release counts them by machine.",
    )?;
    sheet.put(
        "pg_once_sweep_failed_total",
        &labels,
        failed,
        "Failures of the sweeps of this task (and machine): 1 for each failed try of a row, for each due row whose table could not be locked, for each failed subscriber, and for each failure of a whole task.",
    )?;
    sheet.put(
        "pg_once_sweep_age_seconds",
        &labels,
        age.max(0.0),
        "Time since the last sweep of this task (and machine) ended; Infinity: no sweep has ended yet. Up to 30 seconds too large if the last sweeps found nothing to do.",
    )
}

pub fn sizes(sheet: &Sheet) -> Result<()> {
    for row in spi::query(&OF_TABLES, &[])? {
        sheet.put(
            "pg_once_table_bytes",
            &[("table", &text(&row, 0))],
            float(&row, 1),
            "Bytes of a table of the extension with its indexes and out-of-line values; event_0 to event_3: the segments of the log.",
        )?;
    }
    Ok(())
}

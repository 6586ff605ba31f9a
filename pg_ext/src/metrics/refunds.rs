//! Refunds and teardowns of each machine.

use super::tables::float;
use super::{Sheet, entries_for};
use crate::call::shown;
use crate::cancel::record::{BY_OPEN, REFUNDS, REFUNDS_BY_ROW, RefundCol, TABLE, TeardownCol};
use crate::clock;
use crate::error::Result;
use crate::machine::stored;
use crate::row;
use crate::spi::{self, Kept};
use crate::table::{Name, ScanKey, Snapshot, Step, Table};
use pgrx::pg_sys;
use std::ffi::CStr;

/// Refunds, and teardowns, that are counted one by one: of all machines together, and of each.
const COUNTED: usize = 10_000;
const EXACT: usize = 1_000;
const LEAST: usize = 50;

// What the planner knows: the table's rows, and the machine's share of them.
const SHARE: &CStr = c"
    SELECT c.reltuples::double precision * COALESCE(f.frequency, 0)
      FROM pg_catalog.pg_class c
           LEFT JOIN LATERAL (
               SELECT u.frequency::double precision
                 FROM pg_catalog.pg_stats s
                      CROSS JOIN LATERAL ROWS FROM (
                          pg_catalog.unnest(s.most_common_vals::text::text[]),
                          pg_catalog.unnest(s.most_common_freqs)) u (machine, frequency)
                WHERE s.schemaname = 'once' AND s.tablename = 'refund' AND s.attname = 'machine'
                  AND u.machine = $1) f ON true
     WHERE c.oid = 'once.refund'::pg_catalog.regclass";

thread_local! {
    static OF_MACHINE: Kept = const { Kept::new(SHARE, &[pg_sys::TEXTOID]) };
}

/// What a bounded look at a machine's rows has found.
#[derive(Default)]
struct CountedRows {
    rows: usize,
    sum: i64,
    first: Option<i64>,
}

fn count_rows(
    table: Name,
    index: Name,
    keys: &mut [ScanKey],
    column: usize,
    most: usize,
) -> Result<CountedRows> {
    let (table, snapshot) = (Table::to_read(table)?, Snapshot::now());
    let mut scan = table.scan(index, keys, &snapshot)?;
    let mut looks = entries_for(most);
    let mut found = CountedRows::default();
    while found.rows < most
        && let Step::Row(slot) = scan.step(&mut looks)
    {
        let number = slot.column(column).map_or(0, |d| d.value() as i64);
        found.rows += 1;
        found.sum = found.sum.saturating_add(number);
        found.first = found.first.or(Some(number));
    }
    Ok(found)
}

/// Refunds by machine.
pub fn refunds(sheet: &Sheet) -> Result<()> {
    let now = clock::now_us()?;
    let machines = stored::names()?;
    let most = (COUNTED / machines.len().max(1)).clamp(LEAST, EXACT);
    for name in machines {
        let machine = shown(&name);
        let labels = [("machine", machine.as_str())];
        let by_machine = || ScanKey::text(1, row::text(&name));
        let column = RefundCol::Items as usize;
        let refunds = count_rows(REFUNDS, REFUNDS_BY_ROW, &mut [by_machine()], column, most)?;
        let mut count = refunds.rows as f64;
        let items = refunds.sum as f64 / count.max(1.0);
        if refunds.rows >= most {
            let rows = spi::query(&OF_MACHINE, &[Some(row::text(&name))])?;
            count = count.max(rows.first().and_then(|r| float(r, 0)).unwrap_or(0.0));
        }
        sheet.put(
            "pg_once_machine_refunds",
            &labels,
            count,
            "Calls of cancel_refund that gave something back or marked something; exact below 1000 (fewer where there are more than ten machines), then what the planner estimates since the last ANALYZE.",
        )?;
        sheet.put(
            "pg_once_machine_refund_items",
            &labels,
            count * items,
            "Items that these refunds marked; exact below 1000 refunds (fewer where there are more than ten machines), then an estimate.",
        )?;
        let open = &mut [by_machine(), ScanKey::bool(2, true)];
        let column = TeardownCol::RequestedAt as usize;
        let teardowns = count_rows(TABLE, BY_OPEN, open, column, most)?;
        sheet.put(
            "pg_once_machine_teardowns_open",
            &labels,
            teardowns.rows as f64,
            "Rows whose cancellation was asked for and that are not cancelled yet; 1000 (fewer where there are more than ten machines) means at least so many.",
        )?;
        let age = teardowns
            .first
            .map_or(0, |at| now.saturating_sub(at))
            .max(0);
        sheet.put(
            "pg_once_machine_teardown_oldest_seconds",
            &labels,
            age as f64 / 1e6,
            "How long ago the oldest of these cancellations was asked for; 0: none.",
        )?;
    }
    Ok(())
}

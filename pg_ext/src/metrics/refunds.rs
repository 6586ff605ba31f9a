//! Refunds and teardowns of each machine.

use super::Sheet;
use crate::clock;
use crate::error::Result;
use crate::settings;
use crate::spi::{self, Kept, float, text};
use pgrx::pg_sys::{Datum, INT8OID, TIMESTAMPTZOID};
use std::ffi::CStr;

/// Limit: up to this many refunds, and this many open teardowns, of a machine are counted one by one.
const MOST_REFUNDS: i64 = 1_000;

// $1 now, $2 the bound. Beyond the bound the refunds are estimated from the planner's statistics: the number of rows of
// once.refund times the frequency of the machine.
const MACHINES: &CStr = c"
    SELECT m.machine, c.refunds::double precision, c.refunds::double precision * r.items / GREATEST(r.refunds, 1),
           o.teardowns::double precision, COALESCE(pg_catalog.date_part('epoch', $1 - o.first), 0)
      FROM once.machine m
           CROSS JOIN LATERAL (
               SELECT pg_catalog.count(*), COALESCE(sum(f.items), 0)::double precision
                 FROM (SELECT x.items FROM once.refund x WHERE x.machine = m.machine LIMIT $2) f) r (refunds, items)
           CROSS JOIN LATERAL (
               SELECT CASE WHEN r.refunds < $2 THEN r.refunds ELSE GREATEST(r.refunds, (
                   SELECT t.reltuples::double precision * u.frequency
                     FROM pg_catalog.pg_class t, pg_catalog.pg_stats s,
                          ROWS FROM (pg_catalog.unnest(s.most_common_vals::text::text[]),
                                     pg_catalog.unnest(s.most_common_freqs)) u (machine, frequency)
                    WHERE t.oid = 'once.refund'::pg_catalog.regclass AND s.schemaname = 'once'
                      AND s.tablename = 'refund' AND s.attname = 'machine' AND u.machine = m.machine)) END) c (refunds)
           CROSS JOIN LATERAL (
               SELECT pg_catalog.count(*), min(d.requested_at)
                 FROM (SELECT x.requested_at FROM once.cancel x WHERE x.machine = m.machine AND x.open
                        ORDER BY x.requested_at LIMIT $2) d) o (teardowns, first)
     ORDER BY m.machine";

static OF_MACHINES: Kept = Kept::new(MACHINES, &[TIMESTAMPTZOID, INT8OID]);

const NUMBERS: [(&str, &str); 4] = [
    (
        "pg_once_machine_refunds",
        "Calls of cancel_refund that marked something; exact below 1000, then an estimate from the statistics of the last ANALYZE.",
    ),
    (
        "pg_once_machine_refund_items",
        "Items that the refunds of pg_once_machine_refunds marked; exact below 1000 refunds, then an estimate.",
    ),
    (
        "pg_once_machine_teardowns_open",
        "Rows with a cancellation that was requested and is not finished; 1000 means 1000 or more.",
    ),
    (
        "pg_once_machine_teardown_oldest_seconds",
        "Time since the oldest open cancellation (pg_once_machine_teardowns_open) was requested; 0: none.",
    ),
];

pub fn refunds(sheet: &Sheet) -> Result<()> {
    let args = [clock::now_us()?, MOST_REFUNDS].map(|n| Some(Datum::from(n)));
    for row in settings::by_index(|| spi::query(&OF_MACHINES, &args))? {
        let machine = text(&row, 0);
        for (i, (name, help)) in (1..).zip(NUMBERS) {
            let value = float(&row, i).max(0.0);
            sheet.put(name, &[("machine", &*machine)], value, help)?;
        }
    }
    Ok(())
}

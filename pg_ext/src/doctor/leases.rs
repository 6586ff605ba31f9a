//! Action leases that end more than a day from now, perhaps because the clock was set back. If the holder is dead, the
//! row waits until the lease ends. keys.rs reports leases of keys that end more than max_lease_life from now.

use super::Report;
use crate::clock::{self, DAY_US};
use crate::error::Result;
use crate::spi::Kept;
use pgrx::pg_sys::{Datum, INT8OID, TIMESTAMPTZOID};
use std::ffi::CStr;

// $1 now, $2 a day.
const ACTIONS: &CStr = c"
    SELECT 'info', pg_catalog.format('the lease of row %s of machine \"%s\" ends at %s', l.row_id, l.machine, l.lease_until),
           'that is later than a day from now',
           pg_catalog.format('If its holder is dead, or the clock was wrong: SELECT once.action_expire(%L, %L).', l.machine, l.row_id)
      FROM once.machine m
           CROSS JOIN LATERAL (SELECT * FROM once.action_lease o
                                WHERE o.machine = m.machine AND o.look_at > $1 + $2 * interval '1 microsecond'
                                  AND o.state = 'h' AND o.lease_until > $1 + $2 * interval '1 microsecond'
                                LIMIT 20) l
     LIMIT 20";

static LONG_LEASES: Kept = Kept::new(ACTIONS, &[TIMESTAMPTZOID, INT8OID]);

pub fn ask(report: &Report) -> Result<()> {
    let args = [
        Some(Datum::from(clock::now_us()?)),
        Some(Datum::from(DAY_US)),
    ];
    report.ask(&LONG_LEASES, &args)
}

//! Leases that end later than the longest life from now: of a holder that died with a long lease, or after the clock
//! went back.

use super::Report;
use crate::clock::{self, DAY_US};
use crate::error::Result;
use crate::spi::Kept;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

// One probe for each scope, of 1000. $1 now, $2 the default of max_lease_life.
const KEYS: &CStr = c"
    WITH RECURSIVE scopes (scope, n) AS (
        SELECT (SELECT k.scope FROM once.key k ORDER BY k.scope LIMIT 1), 1
        UNION ALL
        SELECT (SELECT k.scope FROM once.key k WHERE k.scope > s.scope ORDER BY k.scope LIMIT 1), s.n + 1
          FROM scopes s WHERE s.scope IS NOT NULL AND s.n < 1000)
    SELECT 'warning', pg_catalog.format('the lease of key \"%s\" in scope \"%s\" ends at %s', k.key, k.scope, k.lease_until),
           pg_catalog.format('that is later than max_lease_life from now (%s)', o.life),
           pg_catalog.format('If its holder is dead, or the clock was wrong: SELECT once.key_expire(%L, %L).', k.scope, k.key)
      FROM scopes s
           LEFT JOIN once.scope c ON c.scope = s.scope
           CROSS JOIN LATERAL (SELECT COALESCE(c.max_lease_life_us, $2) * interval '1 microsecond') o (life)
           CROSS JOIN LATERAL (SELECT * FROM once.key l
                                WHERE l.scope = s.scope AND l.look_lane IN ('0', '1') AND l.look_at > $1 + o.life
                                  AND l.status = 'r' AND l.lease_until > $1 + o.life
                                LIMIT 20) k
     LIMIT 20";

// An action's lease has no longest life: a day from now is told.
const ACTIONS: &CStr = c"
    SELECT 'warning', pg_catalog.format('the lease of row %s of machine \"%s\" ends at %s', l.row_id, l.machine, l.lease_until),
           'that is later than a day from now',
           pg_catalog.format('If its holder is dead, or the clock was wrong: SELECT once.action_expire(%L, %L).', l.machine, l.row_id)
      FROM once.machine m
           CROSS JOIN LATERAL (SELECT * FROM once.action_lease o
                                WHERE o.machine = m.machine AND o.look_at > $1 + $2 * interval '1 microsecond'
                                  AND o.state = 'h' AND o.lease_until > $1 + $2 * interval '1 microsecond'
                                LIMIT 20) l
     LIMIT 20";

thread_local! {
    static LONG_KEYS: Kept = const { Kept::new(KEYS, &[pg_sys::TIMESTAMPTZOID, pg_sys::INT8OID]) };
    static LONG_ACTIONS: Kept = const { Kept::new(ACTIONS, &[pg_sys::TIMESTAMPTZOID, pg_sys::INT8OID]) };
}

pub fn ask(report: &Report) -> Result<()> {
    let args = [
        Some(Datum::from(clock::now_us()?)),
        Some(Datum::from(DAY_US)),
    ];
    report.ask(&LONG_KEYS, &args)?;
    report.ask(&LONG_ACTIONS, &args)
}

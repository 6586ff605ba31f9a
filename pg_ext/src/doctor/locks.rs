//! Backends that hold row locks for a long time, or a lock on an overdue lease. A sweep skips these rows; a worker's
//! writes wait for the locks.

use super::Report;
use crate::clock;
use crate::error::Result;
use crate::spi::Kept;
use pgrx::pg_sys::{Datum, TIMESTAMPTZOID};
use std::ffi::CStr;

// A worker's transactions are normally short. If one is open for a minute, its worker often waits for a foreign call.
const HOLDERS: &CStr = c"
    SELECT 'warning',
           pg_catalog.format('backend %s keeps rows locked', a.pid),
           pg_catalog.format('of %s; its transaction is open since %s, state %s, role %s, application \"%s\"',
                             pg_catalog.string_agg(DISTINCT l.relation::pg_catalog.regclass::text, ', '),
                             a.xact_start, a.state, a.usename, a.application_name),
           pg_catalog.format('Commit before a foreign call. SELECT pg_terminate_backend(%s) frees the rows; set idle_in_transaction_session_timeout.', a.pid)
      FROM pg_catalog.pg_locks l
           JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
     WHERE l.locktype = 'relation' AND l.granted
       AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
       AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                      'AccessExclusiveLock')
       AND l.relation IN (SELECT m.relation FROM once.machine m
                          UNION ALL SELECT n.name::pg_catalog.regclass
                            FROM (VALUES ('once.key'), ('once.action_lease'), ('once.batch'), ('once.retry'),
                                         ('once.inbox'), ('once.cancel')) n (name))
       AND a.xact_start < $1 - interval '1 minute' AND a.pid <> pg_catalog.pg_backend_pid()
     GROUP BY a.pid, a.xact_start, a.state, a.usename, a.application_name
     ORDER BY a.xact_start LIMIT 20";

// The sweep skips an overdue lease that is locked, even if the locking transaction has just begun.
const OVERDUE: &CStr = c"
    SELECT 'error',
           pg_catalog.format('backend %s keeps an overdue lease locked: row %s of machine \"%s\"', a.pid, l.row_id,
                             l.machine),
           pg_catalog.format('the lease expired at %s; the transaction is open since %s, state %s, role %s, application \"%s\"',
                             l.lease_until, a.xact_start, a.state, a.usename, a.application_name),
           pg_catalog.format('SELECT pg_terminate_backend(%s), and the next sweep reverts the row. Set idle_in_transaction_session_timeout.', a.pid)
      FROM once.machine m
           CROSS JOIN LATERAL (
               SELECT o.machine, o.row_id, o.lease_until, o.state, o.xmax AS locker
                 FROM once.action_lease o
                WHERE o.machine = m.machine AND o.look_at <= $1 ORDER BY o.look_at LIMIT 1000) l
           JOIN pg_catalog.pg_locks x
             ON x.locktype = 'transactionid' AND x.granted AND x.transactionid = l.locker
           JOIN pg_catalog.pg_stat_activity a ON a.pid = x.pid
     WHERE l.state = 'h' AND l.lease_until <= $1
     ORDER BY l.lease_until LIMIT 20";

static KEEP_OVERDUE: Kept = Kept::new(OVERDUE, &[TIMESTAMPTZOID]);
static KEEP: Kept = Kept::new(HOLDERS, &[TIMESTAMPTZOID]);

pub fn ask(report: &Report) -> Result<()> {
    let now = [Some(Datum::from(clock::now_us()?))];
    report.ask(&KEEP_OVERDUE, &now)?;
    report.ask(&KEEP, &now)
}

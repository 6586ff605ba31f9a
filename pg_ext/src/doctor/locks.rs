//! Backends that hold locks on rows for long: a sweep skips these rows, a worker waits for them.

use super::Report;
use crate::clock;
use crate::error::Result;
use crate::spi::Kept;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

// Every phase is one short transaction. One that is open for a minute often waits for a foreign call.
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

thread_local! {
    static KEEP: Kept = const { Kept::new(HOLDERS, &[pg_sys::TIMESTAMPTZOID]) };
}

pub fn ask(report: &Report) -> Result<()> {
    let now = [Some(Datum::from(clock::now_us()?))];
    report.ask(&KEEP, &now)
}

//! Old snapshots and transactions. They hold back vacuum, and keep segments of the event log from being truncated.

use super::Report;
use crate::clock;
use crate::error::Result;
use crate::spi::Kept;
use pgrx::pg_sys::{Datum, TIMESTAMPTZOID};
use std::ffi::CStr;

// Reports only sessions of this database, because vacuum here looks at no others. `ELSEWHERE` reports old transactions
// that write in other databases.
const SNAPSHOTS: &CStr = c"
    SELECT 'warning',
           pg_catalog.format('an old transaction holds back vacuum: backend %s', a.pid),
           pg_catalog.format('open since %s, state %s, role %s, application \"%s\"',
                             a.xact_start, a.state, a.usename, a.application_name),
           pg_catalog.format('End it, or SELECT pg_terminate_backend(%s). Set idle_in_transaction_session_timeout, and do not keep transactions open during foreign calls.', a.pid)
      FROM pg_catalog.pg_stat_activity a
     WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
       AND a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid()
       AND a.backend_type NOT IN ('autovacuum worker', 'walsender')
       AND a.xact_start < $1 - interval '10 minutes'
     ORDER BY a.xact_start LIMIT 20";

const PREPARED: &CStr = c"
    SELECT 'warning',
           pg_catalog.format('a prepared transaction holds back vacuum: %s', p.gid),
           pg_catalog.format('prepared at %s by role %s; its locks stay', p.prepared, p.owner),
           pg_catalog.format('COMMIT PREPARED %L, or ROLLBACK PREPARED %L.', p.gid, p.gid)
      FROM pg_catalog.pg_prepared_xacts p
     WHERE p.database = pg_catalog.current_database() AND p.prepared < $1 - interval '10 minutes'
     ORDER BY p.prepared LIMIT 20";

// A transaction that has an id, in any database, blocks the truncation of segments that are drained while it is open.
const ELSEWHERE: &CStr = c"
    SELECT 'info',
           pg_catalog.format('an old transaction that writes in database %s keeps the log from being emptied: %s', t.database, t.who),
           pg_catalog.format('open since %s; segments of the log grow', t.since),
           t.remedy
      FROM (SELECT a.datname, pg_catalog.format('backend %s', a.pid), a.xact_start,
                   pg_catalog.format('End it, or SELECT pg_terminate_backend(%s).', a.pid)
              FROM pg_catalog.pg_stat_activity a
             WHERE a.backend_xid IS NOT NULL AND a.backend_type <> 'autovacuum worker'
            UNION ALL
            SELECT p.database, pg_catalog.format('prepared as %s', p.gid), p.prepared,
                   pg_catalog.format('In that database: COMMIT PREPARED %L, or ROLLBACK PREPARED %L.', p.gid, p.gid)
              FROM pg_catalog.pg_prepared_xacts p) t (database, who, since, remedy)
     WHERE t.database <> pg_catalog.current_database() AND t.since < $1 - interval '10 minutes'
     ORDER BY t.since LIMIT 20";

// An unused slot is reported at a lower age, because it does not advance by itself.
const SLOTS: &CStr = c"
    SELECT 'warning',
           pg_catalog.format('replication slot %s holds back %s', s.slot_name,
                             CASE WHEN s.xmin IS NOT NULL THEN 'vacuum' ELSE 'vacuum of the catalogs' END),
           pg_catalog.format('%s, %s transactions old', CASE WHEN s.active THEN 'in use' ELSE 'unused' END, x.age),
           pg_catalog.format('Bring its consumer back, or SELECT pg_drop_replication_slot(%L).', s.slot_name)
      FROM pg_catalog.pg_replication_slots s
           CROSS JOIN LATERAL (SELECT GREATEST(pg_catalog.age(s.xmin), pg_catalog.age(s.catalog_xmin))) x (age)
     WHERE (s.database IS NULL OR s.database = pg_catalog.current_database())
       AND x.age > CASE WHEN s.active THEN 1000000 ELSE 100000 END
     ORDER BY x.age DESC LIMIT 20";

const STANDBYS: &CStr = c"
    SELECT 'warning',
           pg_catalog.format('a standby holds back vacuum by its feedback: %s', r.application_name),
           pg_catalog.format('%s, its oldest snapshot is %s transactions old', COALESCE(r.client_addr::text, 'local'),
                             pg_catalog.age(r.backend_xmin)),
           'End the long query or open transaction on the standby, or turn hot_standby_feedback off there.'
      FROM pg_catalog.pg_stat_replication r
     WHERE pg_catalog.age(r.backend_xmin) > 1000000 LIMIT 20";

// pg_stat_activity shows a session's details only to members of its role and of pg_read_all_stats.
const BLIND: &CStr = c"
    SELECT 'info', 'old transactions and locks of other roles cannot be seen',
           pg_catalog.format('the owner of the extension, %I, may not read all of pg_stat_activity', CURRENT_USER),
           pg_catalog.format('GRANT pg_read_all_stats TO %I;', CURRENT_USER)
     WHERE NOT pg_catalog.pg_has_role(CURRENT_USER, 'pg_read_all_stats', 'USAGE')";

static IS_BLIND: Kept = Kept::new(BLIND, &[]);
static OLD: Kept = Kept::new(SNAPSHOTS, &[TIMESTAMPTZOID]);
static LEFT: Kept = Kept::new(PREPARED, &[TIMESTAMPTZOID]);
static IN_OTHER_DATABASES: Kept = Kept::new(ELSEWHERE, &[TIMESTAMPTZOID]);
static OF_SLOTS: Kept = Kept::new(SLOTS, &[]);
static OF_STANDBYS: Kept = Kept::new(STANDBYS, &[]);

pub fn ask(report: &Report) -> Result<()> {
    let now = [Some(Datum::from(clock::now_us()?))];
    report.ask(&IS_BLIND, &[])?;
    report.ask(&OLD, &now)?;
    report.ask(&LEFT, &now)?;
    report.ask(&IN_OTHER_DATABASES, &now)?;
    report.ask(&OF_SLOTS, &[])?;
    report.ask(&OF_STANDBYS, &[])
}

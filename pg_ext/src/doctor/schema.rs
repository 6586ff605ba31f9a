//! The extension's own objects: its version, its indexes, what others have put on its tables, and tables that are full of
//! dead rows.

use super::Report;
use crate::clock;
use crate::error::Result;
use crate::row;
use crate::spi::Kept;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

/// Every index of the extension: most are looked for by name.
const INDEXES: &str = "\
    action_lease_look action_lease_pkey batch_lane batch_pkey batch_redelivered cancel_open cancel_pkey dead_died \
    dead_pkey dedupe_pkey dedupe_until delivery_at delivery_pkey event_0_position event_0_xid event_1_position \
    event_1_xid event_2_position event_2_xid event_3_position event_3_xid event_kept_position event_kept_xid \
    inbox_pkey inbox_reap janitor_pkey key_locked_pkey key_look key_mark_pkey key_pkey key_reap key_step_pkey machine_pkey \
    receipt_pkey refund_row retry_due retry_key retry_pkey role_grant_pkey scope_pkey \
    segment_pkey series_pkey subscriber_name subscriber_pkey topic_name topic_pkey";

const MISSING: &CStr = c"
    SELECT 'error', pg_catalog.format('index once.%s is missing', n.name),
           'calls that need it fail with 55000, or read whole tables',
           'Create it as the extension''s script (sql/ of its version) says.'
      FROM pg_catalog.unnest($1) n (name)
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c
                        WHERE c.relnamespace = 'once'::pg_catalog.regnamespace AND c.relkind = 'i'
                          AND c.relname = n.name::name)
     ORDER BY n.name";

const INVALID: &CStr = c"
    SELECT 'error', pg_catalog.format('index %s is invalid', x.indexrelid::pg_catalog.regclass),
           'a concurrent build or reindex of it did not end; it may not hold every row',
           pg_catalog.format('REINDEX INDEX CONCURRENTLY %s, or DROP it if another has taken its place.',
                             x.indexrelid::pg_catalog.regclass)
      FROM pg_catalog.pg_index x
           JOIN pg_catalog.pg_class c ON c.oid = x.indrelid
     WHERE c.relnamespace = 'once'::pg_catalog.regnamespace AND NOT (x.indisvalid AND x.indisready)
     ORDER BY 2";

// $1 the library's version.
const VERSION: &CStr = c"
    SELECT CASE WHEN v.sql > v.library THEN 'error' ELSE 'warning' END,
           CASE WHEN v.sql > v.library
                THEN pg_catalog.format('the library (%s) is older than the extension''s SQL (%s)', $1, e.extversion)
                ELSE pg_catalog.format('the extension''s SQL (%s) is older than the library (%s)', e.extversion, $1) END,
           'what the newer one brings is not there in this database',
           CASE WHEN v.sql > v.library THEN 'Install the newer library, and restart the server where it is preloaded.'
                ELSE 'ALTER EXTENSION pg_once UPDATE;' END
      FROM pg_catalog.pg_extension e
           CROSS JOIN LATERAL (
               SELECT pg_catalog.string_to_array(pg_catalog.regexp_replace(e.extversion, '[^0-9.].*', ''), '.')::integer[],
                      pg_catalog.string_to_array(pg_catalog.regexp_replace($1, '[^0-9.].*', ''), '.')::integer[])
               v (sql, library)
     WHERE e.extname = 'pg_once' AND v.sql <> v.library";

// A foreign key that points here has triggers here, too.
const FOREIGN: &CStr = c"
    SELECT 'warning',
           pg_catalog.format('table once.%s has triggers, rules or foreign keys that are not pg_once''s', c.relname),
           pg_catalog.string_agg(DISTINCT x.name, ', ' ORDER BY x.name),
           'Drop them: most writes of pg_once do not fire them, and a BEFORE ROW trigger or a rule fails the task that meets it.'
      FROM (SELECT t.tgrelid,
                   CASE WHEN k.contype = 'f' THEN pg_catalog.format('foreign key %I of %s', k.conname, k.conrelid::pg_catalog.regclass)
                        ELSE pg_catalog.format('trigger %I', t.tgname) END
              FROM pg_catalog.pg_trigger t LEFT JOIN pg_catalog.pg_constraint k ON k.oid = t.tgconstraint
             WHERE t.tgenabled IN ('O', 'A')
            UNION ALL
            SELECT r.ev_class, pg_catalog.format('rule %I', r.rulename)
              FROM pg_catalog.pg_rewrite r WHERE r.ev_enabled IN ('O', 'A')) x (relation, name)
           JOIN pg_catalog.pg_class c ON c.oid = x.relation
     WHERE c.relnamespace = 'once'::pg_catalog.regnamespace AND c.relkind = 'r'
     GROUP BY c.relname
     ORDER BY c.relname";

// Autovacuum looks once a minute; a table that it did not come to in ten has a reason.
const BLOAT: &CStr = c"
    SELECT 'warning', pg_catalog.format('table once.%s is full of dead rows', s.relname),
           pg_catalog.format('%s dead rows beside %s live ones; last vacuum: %s', s.n_dead_tup, s.n_live_tup,
                             COALESCE(GREATEST(s.last_vacuum, s.last_autovacuum)::text, 'never')),
           pg_catalog.format('End what holds back vacuum (see the other rows), then VACUUM once.%I; let autovacuum work. Not pg_repack: its triggers see few of our writes.', s.relname)
      FROM pg_catalog.pg_stat_all_tables s
     WHERE s.schemaname = 'once' AND s.n_dead_tup > 50000 AND s.n_dead_tup > s.n_live_tup
       AND COALESCE(GREATEST(s.last_vacuum, s.last_autovacuum), '-infinity') < $1 - interval '10 minutes'
     ORDER BY s.relname";

const UNVACUUMED: &CStr = c"
    SELECT 'warning', 'autovacuum is off',
           COALESCE('for ' || pg_catalog.string_agg('once.' || c.relname, ', ' ORDER BY c.relname), 'for the whole server'),
           'Turn it on: these tables are made of updates.'
      FROM (SELECT pg_catalog.current_setting('autovacuum') = 'off'
                   OR pg_catalog.current_setting('track_counts') = 'off') o (off)
           LEFT JOIN pg_catalog.pg_class c
             ON NOT o.off AND c.relnamespace = 'once'::pg_catalog.regnamespace AND c.relkind = 'r'
            AND pg_catalog.array_to_string(c.reloptions, ',') ~ 'autovacuum_enabled=(off|false|no|0)'
    HAVING bool_or(o.off) OR pg_catalog.count(c.oid) > 0";

thread_local! {
    static ARE_MISSING: Kept = const { Kept::new(MISSING, &[pg_sys::TEXTARRAYOID]) };
    static ARE_INVALID: Kept = const { Kept::new(INVALID, &[]) };
    static VERSIONS: Kept = const { Kept::new(VERSION, &[pg_sys::TEXTOID]) };
    static ARE_FOREIGN: Kept = const { Kept::new(FOREIGN, &[]) };
    static BLOATED: Kept = const { Kept::new(BLOAT, &[pg_sys::TIMESTAMPTZOID]) };
    static NOT_VACUUMED: Kept = const { Kept::new(UNVACUUMED, &[]) };
}

pub fn ask(report: &Report) -> Result<()> {
    let library = row::text(env!("CARGO_PKG_VERSION").as_bytes());
    report.ask(&VERSIONS, &[Some(library)])?;
    let names: Vec<&[u8]> = INDEXES.split(' ').map(str::as_bytes).collect();
    report.ask(&ARE_MISSING, &[Some(row::texts(&names))])?;
    report.ask(&ARE_INVALID, &[])?;
    report.ask(&ARE_FOREIGN, &[])?;
    report.ask(&BLOATED, &[Some(Datum::from(clock::now_us()?))])?;
    report.ask(&NOT_VACUUMED, &[])
}

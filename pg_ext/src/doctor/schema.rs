//! The extension's own objects: its version, missing or invalid indexes, and tables full of dead rows.

use super::Report;
use crate::clock;
use crate::error::Result;
use crate::row;
use crate::spi::Kept;
use pgrx::pg_sys::{Datum, TEXTARRAYOID, TEXTOID, TIMESTAMPTZOID};
use std::ffi::CStr;

/// All indexes of the extension's tables except the indexes of constraints, which DROP INDEX cannot remove.
const INDEXES: &str = "\
    action_lease_look batch_lane cancel_open dead_died dedupe_until delivery_at event_0_position \
    event_0_xid event_1_position event_1_xid event_2_position event_2_xid event_3_position event_3_xid \
    event_kept_position event_kept_xid inbox_reap key_look key_reap machine_move_at refund_row retry_due retry_key";

// $1 the names of these indexes.
const MISSING: &CStr = c"
    SELECT 'error', pg_catalog.format('index once.%s is missing', n.name),
           'calls that need it fail with 55000 or read whole tables',
           'Copy its CREATE INDEX from the extension''s install script.'
      FROM pg_catalog.unnest($1) n (name)
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c
                        WHERE c.relnamespace = 'once'::pg_catalog.regnamespace AND c.relkind = 'i'
                          AND c.relname = n.name::name)
     ORDER BY n.name";

const INVALID: &CStr = c"
    SELECT 'error', pg_catalog.format('index %s is invalid', x.indexrelid::pg_catalog.regclass),
           'a concurrent build or reindex of it did not end; it may not hold every row',
           pg_catalog.format('REINDEX INDEX CONCURRENTLY %s, or DROP it if another index has taken its place.',
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
           'functions that only the newer one has do not work in this database',
           CASE WHEN v.sql > v.library THEN 'Install the newer library, and restart the server where it is preloaded.'
                ELSE 'ALTER EXTENSION pg_once UPDATE;' END
      FROM pg_catalog.pg_extension e
           CROSS JOIN LATERAL (
               SELECT pg_catalog.string_to_array(pg_catalog.regexp_replace(e.extversion, '[^0-9.].*', ''), '.')::integer[],
                      pg_catalog.string_to_array(pg_catalog.regexp_replace($1, '[^0-9.].*', ''), '.')::integer[])
               v (sql, library)
     WHERE e.extname = 'pg_once' AND v.sql <> v.library";

// Autovacuum checks tables once a minute by default. If no vacuum ended within ten minutes, something may prevent it.
const BLOAT: &CStr = c"
    SELECT 'warning', pg_catalog.format('table once.%s is full of dead rows', s.relname),
           pg_catalog.format('%s dead rows beside %s live ones; last vacuum: %s', s.n_dead_tup, s.n_live_tup,
                             COALESCE(GREATEST(s.last_vacuum, s.last_autovacuum)::text, 'never')),
           pg_catalog.format('End what holds back vacuum (see the other rows), then VACUUM once.%I; turn autovacuum on. Do not use pg_repack: its triggers see few writes of pg_once.', s.relname)
      FROM pg_catalog.pg_stat_all_tables s
     WHERE s.schemaname = 'once' AND s.n_dead_tup > 50000 AND s.n_dead_tup > s.n_live_tup
       AND COALESCE(GREATEST(s.last_vacuum, s.last_autovacuum), '-infinity') < $1 - interval '10 minutes'
     ORDER BY s.relname";

static ARE_MISSING: Kept = Kept::new(MISSING, &[TEXTARRAYOID]);
static ARE_INVALID: Kept = Kept::new(INVALID, &[]);
static VERSIONS: Kept = Kept::new(VERSION, &[TEXTOID]);
static BLOATED: Kept = Kept::new(BLOAT, &[TIMESTAMPTZOID]);

pub fn ask(report: &Report) -> Result<()> {
    let library = row::text(env!("CARGO_PKG_VERSION").as_bytes());
    report.ask(&VERSIONS, &[Some(library)])?;
    let names: Vec<&[u8]> = INDEXES.split(' ').map(str::as_bytes).collect();
    report.ask(&ARE_MISSING, &[Some(row::texts(&names))])?;
    report.ask(&ARE_INVALID, &[])?;
    report.ask(&BLOATED, &[Some(Datum::from(clock::now_us()?))])
}

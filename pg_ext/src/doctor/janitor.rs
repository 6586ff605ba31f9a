//! Sweeps that do not run, and sweeps that fail.

use super::{Report, Severity};
use crate::call::{shown, varlena};
use crate::clock;
use crate::counters;
use crate::error::Result;
use crate::janitor::{self, Task, waited_us};
use crate::row;
use crate::settings;
use crate::spi::{self, Kept, column};
use pgrx::pg_sys::{BOOLOID, Datum, INT8OID, TEXTARRAYOID, TEXTOID, TIMESTAMPTZOID};
use std::collections::BTreeSet;
use std::ffi::CStr;

// Reads only the tasks' rows (machine = ''). machine_check reports the machines' rows.
const STOPPED: &CStr = c"
    SELECT 'warning',
           pg_catalog.format('the janitor is not running: %s',
                             pg_catalog.string_agg(j.task, ', ' ORDER BY j.task)),
           pg_catalog.format('their last runs ended between %s and %s, longer ago than once.janitor_grace',
                             min(j.last_end), max(j.last_end)),
           $3
      FROM once.janitor j
     WHERE j.machine = '' AND j.last_end < $1 - $2 * interval '1 microsecond'
    HAVING pg_catalog.count(*) > 0";

const FAILING: &CStr = c"
    SELECT 'warning',
           CASE j.machine WHEN '' THEN pg_catalog.format('the sweep task %s fails', j.task)
                ELSE pg_catalog.format('the sweep task %s fails for machine \"%s\"', j.task, j.machine) END,
           pg_catalog.format('last success: %s; %s failures so far; the last error: %s',
                             COALESCE(j.good_end::text, 'never'), j.failed,
                             j.last_error),
           'Remove the cause that the last error names (once.machine_check() compares a machine with its tables). The sweeps retry a failed task or table in a later pass, and a failed row with backoff. They work as the table''s owner with search_path pg_catalog: give a trigger''s function a SET search_path, and the owner the rights that it needs.'
      FROM once.janitor j
     WHERE j.failed > 0 AND (j.good_end IS NULL OR j.good_end < j.last_end)
     ORDER BY j.task, j.machine LIMIT 100";

// $1: the library was preloaded; $2: the names in once.janitor_databases.
const REMEDY: &CStr = c"
    SELECT CASE WHEN $1 AND pg_catalog.current_database() = ANY ($2) THEN
           'once.janitor_databases names this database: search the server''s log for pg_once, and check that the launcher runs: SELECT * FROM pg_stat_activity WHERE backend_type = ''pg_once launcher''. If no worker was free, raise max_worker_processes by once.janitor_workers plus one.'
           ELSE
           'Load pg_once by shared_preload_libraries and name this database in once.janitor_databases, or schedule SELECT * FROM once.sweep() every few seconds.' END";

// The tasks that have run. once.janitor has rows for tasks and, for action_release, for machines: '' stands for those.
const RUN: &CStr =
    c"SELECT DISTINCT CASE j.machine WHEN '' THEN j.task ELSE '' END FROM once.janitor j";

// $1: the library was preloaded; $2: the names in once.janitor_databases.
const DATABASES: &CStr = c"
    WITH named AS MATERIALIZED (SELECT n.name FROM pg_catalog.unnest($2) n (name))
    SELECT 'warning',
           pg_catalog.format('once.janitor_databases names database \"%s\", which does not exist', n.name),
           'the background workers look for it after every nap', 'Take the name out, or create the database.'
      FROM named n
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_database d WHERE d.datname = n.name)
    UNION ALL
    SELECT 'info', 'the background worker does not serve this database',
           'once.janitor_databases does not name it',
           'Add its name, and SELECT pg_reload_conf(); or schedule once.sweep().'
     WHERE $1 AND NOT EXISTS (SELECT FROM named n WHERE n.name = pg_catalog.current_database())
    UNION ALL
    SELECT 'warning', 'once.janitor_databases is set, but there is no background worker',
           'pg_once was not loaded by shared_preload_libraries',
           'Add pg_once to shared_preload_libraries and restart the server.'
     WHERE NOT $1 AND EXISTS (SELECT FROM named)";

// $1: when a database last waited too long for a worker; $2: the earliest time that is reported.
const LATE: &CStr = c"
    SELECT 'warning', 'the background workers are too few for the databases of once.janitor_databases',
           pg_catalog.format('at %s a database had waited for longer than once.janitor_naptime (%s); once.janitor_workers is %s',
                             $1, pg_catalog.current_setting('once.janitor_naptime'),
                             pg_catalog.current_setting('once.janitor_workers')),
           'Raise once.janitor_workers and reload. If the server''s log says that no background worker is free, raise max_worker_processes, too, and restart.'
     WHERE $1 >= $2";

static HAS_STOPPED: Kept = Kept::new(STOPPED, &[TIMESTAMPTZOID, INT8OID, TEXTOID]);
static FAILS: Kept = Kept::new(FAILING, &[]);
static WHAT_TO_DO: Kept = Kept::new(REMEDY, &[BOOLOID, TEXTARRAYOID]);
static HAVE_RUN: Kept = Kept::new(RUN, &[]);
static IS_LATE: Kept = Kept::new(LATE, &[TIMESTAMPTZOID, TIMESTAMPTZOID]);
static SERVED: Kept = Kept::new(DATABASES, &[BOOLOID, TEXTARRAYOID]);

pub fn ask(report: &Report) -> Result<()> {
    let now = clock::now_us()?;
    let grace = settings::janitor_grace_us();
    let named = janitor::databases();
    let named: Vec<&[u8]> = named.iter().map(Vec::as_slice).collect();
    let served = [
        Some(Datum::from(counters::is_preloaded())),
        Some(row::texts(&named)),
    ];
    let remedy = spi::query_once(&WHAT_TO_DO, &served)?;
    let remedy = remedy.first().and_then(|found| column(found, 0));
    let args = [Some(Datum::from(now)), Some(Datum::from(grace)), remedy];
    report.ask(&HAS_STOPPED, &args)?;
    report.ask(&FAILS, &[])?;
    report.ask(&SERVED, &served)?;
    let since = clock::real_us().saturating_sub(grace);
    let late = [janitor::late_at(), since].map(|at| Some(Datum::from(at)));
    report.ask(&IS_LATE, &late)?;
    // `never` is called last: it reads tables of the tasks that have never run, and one of these tables may be locked.
    never(report, now, grace, &shown(remedy.map_or(b"", varlena)))
}

/// Reports tasks that have never run. If work for one of them has waited for once.janitor_grace or longer, the level is
/// warning.
fn never(report: &Report, now: i64, grace: i64, remedy: &str) -> Result<()> {
    let run: BTreeSet<String> = (spi::query_once(&HAVE_RUN, &[])?.iter())
        .filter_map(|row| column(row, 0).map(|task| shown(varlena(task))))
        .collect();
    let mut missing = Task::ALL.to_vec();
    missing.retain(|task| !run.contains(task.name()));
    if missing.is_empty() {
        return Ok(());
    }
    let mut level = Severity::Info;
    for task in &missing {
        if waited_us(*task, now)?.is_some_and(|waited| waited >= grace) {
            level = Severity::Warning;
            break;
        }
    }
    let missing: Vec<_> = missing.iter().map(|task| task.name()).collect();
    let (problem, detail) = match run.is_empty() {
        true => (
            "the janitor is not running: no sweep has ever run in this database".to_owned(),
            "rows of dead workers would stay in their claim states, and no space is given back",
        ),
        false => (
            format!(
                "the janitor is not running: these tasks have never run: {}",
                missing.join(", ")
            ),
            "their rows stay as they are",
        ),
    };
    report.add(level, problem, detail, remedy);
    Ok(())
}

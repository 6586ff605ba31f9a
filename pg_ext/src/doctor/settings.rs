//! Settings that change what is promised, and counters that are not there.

use super::{Report, Severity};
use crate::clock::{self, DAY_US};
use crate::counters;
use crate::error::Result;
use crate::settings;
use crate::spi::Kept;
use std::ffi::CStr;

// Of this database, whoever connects; and of roles.
const STORED: &CStr = c"
    SELECT CASE o.name WHEN 'once.fake_now' THEN 'error' ELSE 'warning' END,
           CASE o.name WHEN 'once.fake_now' THEN 'a pretended clock is set' ELSE 'synchronous_commit is off' END,
           pg_catalog.format('ALTER %s SET %s', w.whom, c.setting),
           CASE o.name WHEN 'once.fake_now' THEN pg_catalog.format('ALTER %s RESET once.fake_now; it is for tests only.', w.whom)
                ELSE pg_catalog.format('After a crash acknowledged claims can be gone and run again. ALTER %s RESET synchronous_commit, or live with it: derived keys stay the same.', w.whom) END
      FROM pg_catalog.pg_db_role_setting s
           CROSS JOIN LATERAL pg_catalog.unnest(s.setconfig) c (setting)
           CROSS JOIN LATERAL (SELECT pg_catalog.split_part(c.setting, '=', 1)) o (name)
           LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole
           CROSS JOIN LATERAL (
               SELECT pg_catalog.concat_ws(' ', CASE WHEN s.setrole <> 0 THEN 'ROLE ' || pg_catalog.quote_ident(r.rolname) END,
                          CASE WHEN s.setdatabase <> 0 AND s.setrole <> 0 THEN 'IN' END,
                          CASE WHEN s.setdatabase <> 0
                               THEN 'DATABASE ' || pg_catalog.quote_ident(pg_catalog.current_database()) END)) w (whom)
     WHERE (s.setdatabase = 0 OR s.setdatabase = (SELECT d.oid FROM pg_catalog.pg_database d
                                                   WHERE d.datname = pg_catalog.current_database()))
       AND (o.name = 'once.fake_now' AND c.setting <> 'once.fake_now='
            OR c.setting ~ '^synchronous_commit=(off|false|no|0)$')
     ORDER BY 3";

const COMMITS: &CStr = c"
    SELECT 'warning', 'synchronous_commit is off',
           'in this session' || CASE s.source WHEN 'configuration file' THEN ', by the server''s configuration file'
                                              ELSE '' END,
           'After a crash acknowledged claims can be gone and run again. Turn it on, or live with it: derived keys stay the same.'
      FROM pg_catalog.pg_settings s
     WHERE s.name = 'synchronous_commit' AND s.setting = 'off' AND s.source NOT IN ('database', 'user', 'database user')";

thread_local! {
    static ARE_STORED: Kept = const { Kept::new(STORED, &[]) };
    static COMMIT: Kept = const { Kept::new(COMMITS, &[]) };
}

pub fn ask(report: &Report) -> Result<()> {
    if settings::fake_now()?.is_some() {
        report.add(
            Severity::Error,
            "a pretended clock is set",
            "once.fake_now, in this session",
            "RESET once.fake_now; it is for tests only.",
        );
    }
    report.ask(&ARE_STORED, &[])?;
    report.ask(&COMMIT, &[])?;
    if !counters::is_preloaded() {
        report.add(
            Severity::Info,
            "claims are not counted",
            "pg_once was not loaded by shared_preload_libraries: metrics() has no pg_once_claims_total, idempotency_reuse_rate, idempotency_409_rate and idempotency_in_progress_rate",
            "Add pg_once to shared_preload_libraries and restart the server.",
        );
    } else if counters::told().is_none() {
        report.add(
            Severity::Warning,
            "claims of this database are not counted",
            format!(
                "{} databases were counted since the server started, and that is all there is room for",
                counters::DATABASES
            ),
            "A restart begins anew; count only where it matters.",
        );
    }
    if let Some((count, last)) = counters::uncommitted_steps()
        && clock::real_us() < last.saturating_add(DAY_US)
    {
        report.add(
            Severity::Warning,
            "steps begin and end in one transaction",
            format!("{count} since the server started, the last one within a day"),
            "Commit after key_step, before the foreign call: a process that dies at the call leaves no trace of it. Drivers such as psycopg do not commit by themselves.",
        );
    }
    Ok(())
}

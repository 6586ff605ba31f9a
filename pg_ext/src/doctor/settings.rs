//! Settings that weaken a guarantee, claims that are not counted, and steps that begin and end in one transaction.

use super::{Report, Severity};
use crate::clock::{self, DAY_US};
use crate::counters;
use crate::error::Result;
use crate::spi::Kept;
use std::ffi::CStr;

const SET: &CStr = c"
    SELECT o.level, o.problem, pg_catalog.format('%s of this session; it comes from: %s', s.name, s.source), o.hint
      FROM pg_catalog.pg_settings s
           JOIN (VALUES
               ('once.fake_now', 'error', 'a pretended clock is set',
                'It is for tests only: RESET once.fake_now in this session, or ALTER DATABASE or ALTER ROLE ... RESET once.fake_now.'),
               ('synchronous_commit', 'warning', 'synchronous_commit is off',
                'A crash can lose committed claims, and their requests run again with the same derived keys. Turn synchronous_commit on, or accept this.'))
               o (name, level, problem, hint) ON o.name = s.name
     WHERE s.setting = 'off' OR s.name = 'once.fake_now' AND s.setting <> ''
     ORDER BY s.name";

static ARE_SET: Kept = Kept::new(SET, &[]);

pub fn ask(report: &Report) -> Result<()> {
    report.ask(&ARE_SET, &[])?;
    if counters::claims().is_none() {
        let why = match counters::is_preloaded() {
            false => "pg_once was not loaded by shared_preload_libraries".to_owned(),
            true => format!(
                "{} other databases have taken all places in shared memory",
                counters::DATABASES
            ),
        };
        report.add(
            Severity::Info,
            "claims of this database are not counted",
            format!("{why}: metrics() has no pg_once_claims_total and no idempotency_*_rate"),
            "Add pg_once to shared_preload_libraries where it is missing, and restart the server.",
        );
    }
    if let Some((count, last)) = counters::uncommitted_steps()
        && clock::real_us() < last.saturating_add(DAY_US)
    {
        report.add(
            Severity::Warning,
            "steps begin and end in one transaction",
            format!("{count} since the server started, the last one within a day"),
            "Commit after key_step, before the foreign call: otherwise a process that dies in the call leaves no trace of the call. Drivers such as psycopg do not commit by themselves.",
        );
    }
    Ok(())
}

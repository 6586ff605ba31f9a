//! Findings of machine_check, and rows that a sweep could not revert.

use super::check;
use super::{Report, Severity};
use crate::call::shown;
use crate::error::Result;
use crate::machine::stored;
use crate::metrics::leases::ActionLeases;
use crate::subxact;

/// Up to this many leases of each machine are read: held leases, and ended ones, which are kept for a day.
const MOST_LEASES: usize = 1_000_000;

pub fn ask(report: &Report) -> Result<()> {
    stored::each_stored(&mut |stored| {
        let name = stored.name();
        let machine = shown(name);
        // If one machine cannot be checked, the others are still checked.
        match subxact::attempt(|| check::findings(name, stored))? {
            Ok(found) => {
                for finding in found {
                    let problem = format!("machine \"{machine}\": {}", finding.problem);
                    report.add(
                        finding.level,
                        problem,
                        "once.machine_check() shows it, too",
                        finding.hint,
                    );
                }
            }
            Err(failure) => report.add(
                Severity::Error,
                format!("machine \"{machine}\" cannot be checked"),
                &failure.message,
                "SELECT * FROM once.machine_check(machine) as a superuser.",
            ),
        }
        let actions = ActionLeases::count(name, MOST_LEASES)?;
        if actions.deferred > 0 {
            report.add(
                Severity::Warning,
                format!("machine \"{machine}\": {} rows could not be reverted and are deferred", actions.deferred),
                format!("the last error of one of them: {}", actions.note.as_deref().unwrap_or_default()),
                "Remove the cause (a trigger, a constraint, a lock, a right that the table's owner lacks); the sweep tries again with backoff, or at once after once.action_expire(machine, id). A sweep works as the table's owner with search_path pg_catalog: give a trigger's function a SET search_path, and the owner the rights that it needs (once.grant_role(owner, 'use') to emit).",
            );
        }
        Ok(())
    })
}

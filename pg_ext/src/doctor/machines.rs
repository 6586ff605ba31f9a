//! Findings of machine_check, and rows that a sweep could not revert.

use super::check;
use super::{Report, Severity};
use crate::call::shown;
use crate::error::Result;
use crate::machine::stored::{self, StoredMachine};
use crate::metrics::leases::ActionLeases;
use crate::subxact;

/// Leases of a machine that are read.
const LOOKS: usize = 1_000;

pub fn ask(report: &Report) -> Result<()> {
    stored::each_stored(&mut |stored| {
        let name = stored.name();
        let machine = shown(name);
        // A machine that cannot be checked hides no other.
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
                text_of(stored, Some(&failure.message)),
                "SELECT * FROM once.machine_check(machine) as a superuser.",
            ),
        }
        let actions = ActionLeases::count(name, LOOKS)?;
        if actions.deferred > 0 {
            report.add(
                Severity::Warning,
                format!("machine \"{machine}\": {} rows could not be reverted and are deferred", actions.deferred),
                format!("the sweep said of one of them: {}", text_of(stored, actions.note.as_deref())),
                "Remove the cause (a trigger, a constraint, a lock, a right that the table's owner lacks); the sweep tries again with backoff.",
            );
        }
        Ok(())
    })
}

/// An error of a machine, for callers that may use it: it may quote a row.
fn text_of(stored: &StoredMachine, error: Option<&str>) -> String {
    let text = match stored.is_open() {
        true => error.unwrap_or_default(),
        false => stored::NOT_TOLD,
    };
    text.to_owned()
}

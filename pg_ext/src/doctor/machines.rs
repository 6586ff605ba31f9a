//! Machines that do not fit their tables any more, claim states that nobody sweeps, rows that cannot be reverted.

use super::check;
use super::{Report, Severity};
use crate::call::shown;
use crate::error::Result;
use crate::machine::stored::{self, StoredMachine};
use crate::metrics::leases::ActionLeases;
use crate::subxact;

/// Leases of a machine that are looked at.
const LOOKS: usize = 1_000;

pub fn ask(report: &Report) -> Result<()> {
    stored::each_stored(&mut |stored| {
        let name = stored.name();
        let machine = shown(name);
        // One that cannot be looked at does not hide the others.
        match subxact::attempt(|| check::findings(name, stored))? {
            Ok(found) => {
                for finding in found {
                    let problem = format!("machine \"{machine}\": {}", finding.problem);
                    report.add(
                        finding.level,
                        problem,
                        "once.machine_check() tells it, too",
                        finding.hint,
                    );
                }
            }
            Err(failure) => report.add(
                Severity::Error,
                format!("machine \"{machine}\" cannot be checked"),
                told(stored, Some(&failure.message)),
                "Look at it with once.machine_check(machine) as a superuser.",
            ),
        }
        let actions = ActionLeases::count(name, LOOKS)?;
        if actions.put_off > 0 {
            report.add(
                Severity::Warning,
                format!("machine \"{machine}\": {} rows could not be reverted and were put off", actions.put_off),
                format!("the sweep said of one of them: {}", told(stored, actions.note.as_deref())),
                "Mend what keeps the row back (a trigger, a constraint, a lock); the sweep tries again by itself.",
            );
        }
        Ok(())
    })
}

/// What went wrong with a machine, for those who may use it: an error may quote a row.
fn told(stored: &StoredMachine, error: Option<&str>) -> String {
    let told = match stored.is_open() {
        true => error.unwrap_or_default(),
        false => stored::NOT_TOLD,
    };
    told.to_owned()
}

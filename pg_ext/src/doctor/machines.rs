//! Machines that do not fit their tables any more, claim states that nobody sweeps, rows that cannot be reverted.

use super::{Level, Report};
use crate::call::{shown, varlena};
use crate::error::Result;
use crate::machine::check::{self, Weight};
use crate::machine::stored::{self, Stored};
use crate::metrics::leases::Actions;
use crate::subxact;

/// Leases of a machine that are looked at.
const LOOKS: usize = 1_000;
/// Machines that are named in one row.
const NAMED: usize = 10;

pub fn ask(report: &Report) -> Result<()> {
    let mut unread = Vec::new();
    stored::each_stored(&mut |stored| {
        let name = stored.column(stored::Col::Machine).map(varlena);
        let name = name.unwrap_or_default();
        let machine = shown(name);
        // One that cannot be looked at does not hide the others.
        match subxact::attempt(|| check::findings(name, stored))? {
            Ok(found) => {
                for finding in found {
                    let level = match finding.weight {
                        Weight::Heavy => Level::Error,
                        Weight::Plain => Level::Warning,
                        Weight::Note => Level::Info,
                        Weight::Light => {
                            unread.push(machine.clone());
                            continue;
                        }
                    };
                    let problem = format!("machine \"{machine}\": {}", finding.problem);
                    report.add(
                        level,
                        problem,
                        "once.machine_check() tells it, too",
                        finding.hint,
                    );
                }
            }
            Err(failure) => report.add(
                Level::Error,
                format!("machine \"{machine}\" cannot be checked"),
                told(stored, Some(&failure.message)),
                "Look at it with once.machine_check(machine) as a superuser.",
            ),
        }
        let actions = Actions::look(name, LOOKS)?;
        if actions.put_off > 0 {
            report.add(
                Level::Warning,
                format!("machine \"{machine}\": {} rows could not be reverted and were put off", actions.put_off),
                format!("the sweep said of one of them: {}", told(stored, actions.note.as_deref())),
                "Mend what keeps the row back (a trigger, a constraint, a lock); the sweep tries again by itself.",
            );
        }
        Ok(())
    })?;
    tell_unread(report, &unread);
    Ok(())
}

/// For who may only observe these are all machines.
fn tell_unread(report: &Report, machines: &[String]) {
    if machines.is_empty() {
        return;
    }
    let named = machines.iter().take(NAMED).cloned();
    let mut named = named.collect::<Vec<_>>().join(", ");
    if machines.len() > NAMED {
        named += &format!(" and {} more", machines.len() - NAMED);
    }
    report.add(
        Level::Info,
        format!("rows in a claim state without a lease could not be looked for in the tables of {} machines", machines.len()),
        format!("no right to read the tables of {named}"),
        "GRANT SELECT ON these tables to the role that asks, or ask as one that has it. Everything else was looked at.",
    );
}

/// What went wrong with a machine, for those who may use it: an error may quote a row.
fn told(stored: &Stored, error: Option<&str>) -> String {
    let told = match stored.is_open() {
        true => error.unwrap_or_default(),
        false => stored::NOT_TOLD,
    };
    told.to_owned()
}

//! `machine_check` and `machine_assert`: problems of a machine's definition, tables, guard and rows, and claim states
//! that no sweep covers.

use super::{Severity, orphans};
use crate::call::{Call, SCOPE_MAX, from_utf8, shown, varlena};
use crate::error::{Error, Kind, Result};
use crate::guard::install;
use crate::guard::standing::guard_standing;
use crate::machine::definition::Definition;
use crate::machine::model::Machine;
use crate::machine::shape;
use crate::machine::stored::{self, StoredMachine};
use crate::machine::validate;
use crate::outbox::topic::Topic;
use crate::row::{self, Rows};
use crate::spi::{self, Kept, column};
use crate::subxact;
use crate::swept;
use pgrx::pg_sys::{Datum, INT2OID, OIDOID};
use std::collections::BTreeSet;
use std::ffi::CStr;

const LABELS: &CStr = c"
    SELECT e.enumlabel::pg_catalog.text FROM pg_catalog.pg_enum e WHERE e.enumtypid = $1
     ORDER BY e.enumsortorder";

const INDEXED: &CStr = c"
    SELECT 1 FROM pg_catalog.pg_index x
      JOIN pg_catalog.pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
     WHERE x.indrelid = $1 AND a.attnum = $2 AND x.indisvalid AND x.indpred IS NULL LIMIT 1";

static ENUM_LABELS: Kept = Kept::new(LABELS, &[OIDOID]);
static HAS_INDEX: Kept = Kept::new(INDEXED, &[OIDOID, INT2OID]);

/// `once.machine_check`.
pub fn machine_check(call: &Call) -> Result<Datum> {
    let only = call.opt_text(0, "machine", SCOPE_MAX)?;
    let rows = Rows::begin(call);
    let list = |stored: &StoredMachine| -> Result<()> {
        let name = stored.name();
        for found in findings(name, stored)? {
            rows.push(&[
                Some(row::text(name)),
                Some(row::text(&from_utf8(&found.problem))),
                Some(row::text(&from_utf8(&found.hint))),
            ]);
        }
        Ok(())
    };
    match only {
        Some(name) => {
            list(&StoredMachine::existing(name)?)?;
        }
        None => stored::each_stored(&mut |stored| list(stored))?,
    }
    Ok(call.return_null())
}

pub struct Finding {
    /// The level in doctor: error if rows stay stuck or events are lost, info if the machine may be right as it is,
    /// else warning.
    pub level: Severity,
    pub problem: String,
    pub hint: String,
}

/// The findings of `machine_check` about one machine. The caller needs no right on the machine or its tables.
pub fn findings(name: &[u8], stored: &StoredMachine) -> Result<Vec<Finding>> {
    let mut found = Findings::default();
    found.of(name, &stored.definition()?, stored)?;
    Ok(found.0)
}

#[derive(Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, problem: impl Into<String>, hint: impl Into<String>) {
        self.put(Severity::Warning, problem, hint);
    }

    pub(super) fn put(
        &mut self,
        level: Severity,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.0.push(Finding {
            level,
            problem: problem.into(),
            hint: hint.into(),
        });
    }

    fn of(&mut self, name: &[u8], definition: &Definition, stored: &StoredMachine) -> Result<()> {
        self.uncovered(name, definition)?;
        for table in stored.renamed_tables()?.iter().filter(|t| t.is_swapped) {
            let (then, now) = (&table.name_then, &table.name_now);
            self.add(
                format!("the name {then} belongs to another table now: moves go on in {now}, which had this name when the machine was defined"),
                "Define the machine again, and turn on its guard: then the machine uses the table that has the name now.",
            );
        }
        if let Err(missing) = shape::look_up_names(definition, stored.tables()) {
            let hint = "Rename it back, define the machine again (also if the table was dropped and created again), or drop the machine.";
            missing.into_iter().for_each(|line| self.add(line, hint));
            return Ok(());
        }
        let machine = Machine::fitted(name, stored)?;
        if let Err(error) = spi::ensure_nothing_temporary() {
            let hint = "Run DISCARD TEMP, or ask from another session.";
            self.add(
                format!("not compared with its tables: {}", error.message),
                hint,
            );
            return Ok(());
        }
        self.recheck(&machine, stored)?;
        self.running(&machine.definition);
        self.emits(&machine.definition)?;
        self.labels(&machine)?;
        self.guard(&machine, stored.guarded())?;
        self.index(&machine)?;
        orphans::search(&machine, self)
    }

    fn uncovered(&mut self, name: &[u8], definition: &Definition) -> Result<()> {
        let states = claim_states(definition);
        let module = module_of(definition);
        if !states.is_empty() && !swept::covers(name)? {
            let error = swept::last_error(name)?;
            let hint = match error {
                Some(_) => "Remove the cause in the message; the sweep tries again by itself.",
                None => {
                    "Schedule once.sweep() (or once.sweep(task => 'action_release')) every few seconds. If it is scheduled, a locked \
                     table may have cut it short; the next sweep begins with this machine."
                }
            };
            let why = match error {
                Some(error) => format!("; the last failure: {}", shown(&error)),
                None => String::new(),
            };
            self.put(
                Severity::Error,
                format!(
                    "claim states are not covered{module}: {}{why}",
                    states.join(", ")
                ),
                hint,
            );
        }
        Ok(())
    }

    /// Reports a machine that has `cancel` and no claim state. A teardown waits while a worker has the row in a claim
    /// state. In this machine a teardown begins at once, even if a worker has the row.
    fn running(&mut self, definition: &Definition) {
        if definition.cancel.is_none() || definition.claim_states().next().is_some() {
            return;
        }
        let moves = &definition.transitions;
        let between = |s: &&String| {
            moves.iter().any(|t| t.to == **s) && moves.iter().any(|t| t.from.contains(s))
        };
        let states: Vec<_> = definition.status_types.iter().filter(between).collect();
        if !states.is_empty() {
            let names: Vec<_> = states.iter().map(|s| s.as_str()).collect();
            self.put(
                Severity::Info,
                format!(
                    "it can be cancelled and has no claim state; a cancel in {} begins the teardown at once",
                    names.join(", ")
                ),
                "Declare each status in which a worker runs as a claim_state of its step. A status in which the row only waits is no claim state.",
            );
        }
    }

    /// If nobody would get the event of a move, the move is made without the event and only raises a WARNING.
    fn emits(&mut self, definition: &Definition) -> Result<()> {
        let topics: BTreeSet<_> = definition.emits().map(|(_, topic)| topic).collect();
        for topic in topics {
            let what = match Topic::registered(&from_utf8(topic))? {
                None => "is not there",
                Some(topic) if topic.subscribers == 0 => "has no subscribers",
                Some(_) => continue,
            };
            self.put(
                Severity::Error,
                format!("moves emit to topic \"{topic}\", which {what}: their events are lost"),
                "Add a subscriber with once.subscriber_set (a topic with once.topic_set), or take \"emit\" out of the definition.",
            );
        }
        Ok(())
    }

    fn labels(&mut self, machine: &Machine) -> Result<()> {
        let of_type = [Some(Datum::from(machine.shape.status.base_type))];
        let rows = spi::query(&ENUM_LABELS, &of_type)?;
        let labels: Vec<String> = rows
            .iter()
            .filter_map(|r| column(r, 0).map(|d| shown(varlena(d))))
            .collect();
        if labels.is_empty() {
            return Ok(());
        }
        let statuses = &machine.definition.status_types;
        for label in labels.iter().filter(|l| !statuses.contains(l)) {
            self.add(
                format!("the status column's type has the label \"{label}\", which is no status"),
                "Add it to status_types and transitions, and define the machine again.",
            );
        }
        Ok(())
    }

    fn guard(&mut self, machine: &Machine, wanted: bool) -> Result<()> {
        if !wanted {
            return Ok(());
        }
        for table in install::guarded_tables(machine) {
            for standing in guard_standing(machine.name(), table)? {
                let name = &standing.table;
                match standing.fires {
                    None => self.add(
                        format!("the guard is missing on {name}"),
                        "Call once.machine_guard(machine, true); a table that inherits from a guarded one cannot be guarded.",
                    ),
                    Some(false) => self.add(
                        format!("the guard on {name} is disabled"),
                        "ALTER TABLE ... ENABLE TRIGGER, or once.machine_guard(machine, true).",
                    ),
                    Some(true) => {}
                }
                if standing.refuses_moves {
                    self.add(
                        format!("{name} is a partition whose guard is an AFTER ROW trigger, which refuses every move to another partition"),
                        "Call once.machine_guard(machine, true).",
                    );
                }
                if let Some(later) = standing.later {
                    self.add(
                        format!("trigger \"{later}\" of {name} fires after the guard, which does not see its changes"),
                        "Give it a name that sorts before the guard's.",
                    );
                }
            }
        }
        Ok(())
    }

    fn index(&mut self, machine: &Machine) -> Result<()> {
        let Some(refund) = &machine.shape.refund else {
            return Ok(());
        };
        let args = [
            Some(Datum::from(refund.items.oid)),
            Some(Datum::from(refund.subject.number)),
        ];
        if spi::query(&HAS_INDEX, &args)?.is_empty() {
            self.add(
                format!(
                    "no index of {} begins with {}: every refund reads the whole table",
                    refund.items.name, refund.subject.name
                ),
                format!(
                    "CREATE INDEX ON {} ({}).",
                    refund.items.name, refund.subject.name
                ),
            );
        }
        Ok(())
    }

    /// Casts, domains and types of the table are its owner's code: they run as the owner, never as the caller.
    fn recheck(&mut self, machine: &Machine, stored: &StoredMachine) -> Result<()> {
        let lines = match as_owner(machine, || validate::recheck(stored))? {
            Ok(lines) => lines,
            Err(failure) => {
                self.add(
                    format!("could not be compared with its tables: {}", failure.message),
                    "If a table was locked, check again; otherwise remove the cause in the message.",
                );
                return Ok(());
            }
        };
        for line in lines {
            self.add(
                line,
                "Change the table back, or define the machine again as the table is now.",
            );
        }
        Ok(())
    }
}

/// Runs `work` as the owner of a machine's table. The inner error is a failure of the work.
pub(super) fn as_owner<T>(
    machine: &Machine,
    work: impl FnOnce() -> Result<T>,
) -> Result<std::result::Result<T, subxact::Failure>> {
    let gone = || Error::new(Kind::InvalidDefinition, "the table is gone");
    subxact::attempt_briefly(|| machine.as_owner(work)?.ok_or_else(gone))
}

/// " (module ...)" if the definition names a responsible module, else an empty text.
fn module_of(definition: &Definition) -> String {
    let module = definition.module.as_ref();
    module.map_or(String::new(), |module| format!(" (module {module})"))
}

/// `once.machine_assert`.
pub fn machine_assert(call: &Call) -> Result<Datum> {
    let mut uncovered = Vec::new();
    stored::each_stored(&mut |stored| {
        if !stored.is_open() {
            return Ok(());
        }
        let definition = stored.definition()?;
        let states = claim_states(&definition);
        let name = from_utf8(&definition.machine);
        if !states.is_empty() && !swept::covers(&name)? {
            uncovered.push(format!(
                "machine \"{}\"{}: {}",
                definition.machine,
                module_of(&definition),
                states.join(", ")
            ));
        }
        Ok(())
    })?;
    match uncovered.is_empty() {
        true => Ok(call.return_null()),
        false => Err(Error::new(
            Kind::UncoveredClaimState,
            format!("claim states that no sweep covers: {}", uncovered.join("; ")),
        )
        .detail(uncovered.join("\n"))
        .hint("A row would stay there after its worker dies. Name this database in once.janitor_databases, or schedule CALL once.sweep_all() every few seconds. The last run without a failure must be younger than once.janitor_grace.")),
    }
}

fn claim_states(definition: &Definition) -> Vec<&str> {
    let mut states: Vec<_> = definition.claim_states().map(|(into, _)| into).collect();
    states.sort_unstable();
    states.dedup();
    states
}

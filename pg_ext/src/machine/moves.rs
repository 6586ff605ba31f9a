//! The declared moves: from which statuses a row may go to a status, and under which condition.

use super::definition::Definition;
use super::sql::is_any;
use crate::call::{SCOPE_MAX, characters, shown, texts_or_null};
use crate::error::{Error, Kind, Result};
use pgrx::pg_sys::Datum;
use std::collections::BTreeSet;

pub struct Move<'a> {
    pub from: Vec<&'a str>,
    pub when: Option<&'a str>,
    pub emit: Option<&'a str>,
}

/// Every declared move to `to`: transitions, and steps in which the requester has no claim state. The guard does not
/// know the requester of a plain UPDATE, and passes `Requester::Any`. Then a step is included if at least one requester
/// makes this move without a claim.
pub fn moves_to<'a>(
    definition: &'a Definition,
    to: &'a str,
    requester: Requester<'a>,
) -> impl Iterator<Item = Move<'a>> {
    let transitions = definition
        .transitions
        .iter()
        .filter(move |t| t.to == to)
        .map(|t| Move {
            from: t.from.iter().map(String::as_str).collect(),
            when: t.when.as_deref(),
            emit: t.emit.as_deref(),
        });
    let steps = definition
        .steps
        .iter()
        .filter(move |step| match requester {
            Requester::Named(name) => {
                step.claim_of(name).is_none() && step.success_of(name) == Some(to)
            }
            Requester::Any => step
                .successful_state
                .iter()
                .any(|(name, success)| success == to && step.claim_of(Some(name)).is_none()),
        })
        .map(|step| Move {
            from: vec![step.status.as_str()],
            when: None,
            emit: step.emit.as_deref(),
        });
    transitions.chain(steps)
}

/// The requester whose steps count as moves.
#[derive(Clone, Copy)]
pub enum Requester<'a> {
    Named(Option<&'a str>),
    Any,
}

/// The SQL condition under which a row may make one of the moves.
pub fn condition(status: &str, moves: &[Move]) -> String {
    let each: Vec<_> = moves
        .iter()
        .map(|m| {
            let from = is_any(status, m.from.iter().copied());
            match m.when {
                None => format!("({from})"),
                Some(when) => format!("({from} AND ({when}))"),
            }
        })
        .collect();
    format!("({})", each.join(" OR "))
}

/// The moves that a call asks for.
pub struct WantedMoves {
    pub to: String,
    /// None: from any status.
    pub from: Option<Vec<String>>,
    pub requester: Option<String>,
}

impl WantedMoves {
    pub fn read(to: &[u8], from: Option<Datum>, requester: Option<&[u8]>) -> Result<WantedMoves> {
        let element = |e: Option<&[u8]>| match e {
            Some(e) if characters(e) <= SCOPE_MAX => Ok(shown(e)),
            Some(_) => Err(bad_from("has an element longer than any status")),
            None => Err(bad_from("has a NULL element")),
        };
        let read = |from| texts_or_null(from).into_iter().map(element).collect();
        let mut from: Option<Vec<String>> = from.map(read).transpose()?;
        if let Some(from) = &mut from {
            from.sort();
            from.dedup();
        }
        Ok(WantedMoves {
            to: shown(to),
            from,
            requester: requester.map(shown),
        })
    }

    /// The declared moves that the call may make; ON002 if there is none. 22023 if there are some, but from_status
    /// also contains a status that the machine does not have.
    pub fn moves<'a>(&'a self, definition: &'a Definition) -> Result<Vec<Move<'a>>> {
        let wanted = |status: &&str| match &self.from {
            None => true,
            Some(from) => from.iter().any(|f| f == status),
        };
        let requester = Requester::Named(self.requester.as_deref());
        let moves: Vec<_> = moves_to(definition, &self.to, requester)
            .map(|m| Move {
                from: m.from.into_iter().filter(wanted).collect(),
                ..m
            })
            .filter(|m| !m.from.is_empty())
            .collect();
        if moves.is_empty() {
            return Err(self.undeclared(definition));
        }
        for status in self.from.iter().flatten() {
            if !definition.status_types.contains(status) {
                return Err(bad_from(&format!(
                    "names \"{status}\", which is no status of the machine"
                )));
            }
        }
        Ok(moves)
    }

    fn undeclared(&self, definition: &Definition) -> Error {
        let from = match &self.from {
            None => String::new(),
            Some(from) => format!(" from \"{}\"", from.join("\", \"")),
        };
        let ways: Vec<_> = moves_to(definition, &self.to, Requester::Any)
            .flat_map(|m| m.from)
            .collect();
        let by_step = (definition.steps.iter())
            .find(|step| step.successful_state.values().any(|to| *to == self.to));
        Error::new(
            Kind::IllegalTransition,
            format!(
                "machine \"{}\" declares no move to \"{}\"{from}",
                definition.machine, self.to
            ),
        )
        .hint(match (ways.is_empty(), by_step) {
            (true, Some(step)) => format!(
                "Step \"{}\" leads to it: call once.action_claim, then once.action_finish.",
                step.step_key
            ),
            (true, None) if !definition.status_types.contains(&self.to) => format!(
                "It is no status of the machine; moves are declared to {}. Add it to status_types and transitions; after ALTER TYPE ... RENAME VALUE define the machine again.",
                targets(definition)
            ),
            (true, None) => format!(
                "Moves are declared to {}. Only action_claim enters a claim state, and only cancel_finish the cancelled state.",
                targets(definition)
            ),
            (false, _) => format!(
                "Moves to it are declared from \"{}\". A step's move counts for its requester only.",
                ways.join("\", \"")
            ),
        })
    }
}

/// The statuses that some transition or finished step leads to.
pub fn targets(definition: &Definition) -> String {
    let transitions = definition.transitions.iter().map(|t| &*t.to);
    let steps = definition
        .steps
        .iter()
        .flat_map(|s| s.successful_state.values());
    let targets: BTreeSet<&str> = transitions.chain(steps.map(|to| &**to)).collect();
    match targets.is_empty() {
        true => "none".to_owned(),
        false => format!(
            "\"{}\"",
            targets.into_iter().collect::<Vec<_>>().join("\", \"")
        ),
    }
}

fn bad_from(problem: &str) -> Error {
    Error::bad_argument(
        "from_status",
        problem,
        "Give an array of statuses, or NULL for any.",
    )
}

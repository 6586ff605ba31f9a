//! Judges one write to a machine's own table.
//!
//! For an UPDATE that changes neither status, flag nor id, the guard only compares these columns; `memory.rs` caches
//! their numbers and types.

use super::event::{GuardedColumn, RowEvent, RowVersion, WriteKind};
use super::memory::TableMemory;
use crate::action::lease::{Lease, LeaseCol, LeaseState};
use crate::call::{Call, shown};
use crate::cancel::holder_of;
use crate::error::{Error, Kind, Result};
use crate::machine::after::MoveMade;
use crate::machine::changes;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::moves::{Requester, moves_to, targets};
use crate::machine::permit::{self, Doing};
use pgrx::pg_sys::{Datum, Oid};
use std::rc::Rc;

/// A machine's columns in one table or partition.
struct GuardedRows {
    relation: Oid,
    machine: Rc<Machine>,
    id: GuardedColumn,
    status: GuardedColumn,
    flag: Option<GuardedColumn>,
    /// id, status and flag, sorted from the highest column number to the lowest. The first read takes the row apart up
    /// to the highest number. The other reads then find their columns there.
    watched: Vec<GuardedColumn>,
}

thread_local! {
    static LAST_ROWS: TableMemory<GuardedRows> = const { TableMemory::new() };
}

/// `once.machine_guard_row`.
pub fn machine_guard_row(call: &Call) -> Result<Datum> {
    let event = RowEvent::fired_by(call)?;
    let mut guarded = GuardedRows::of_event(&event)?;
    if guarded.is_unrelated(&event) {
        return Ok(event.pass());
    }
    // The machine may have been redefined while the statement waited for the row.
    changes::accept();
    guarded = GuardedRows::of_event(&event)?;
    match (event.kind, event.old(), event.written()) {
        (WriteKind::Update, Some(old), Some(new)) => guarded.update(&old, &new)?,
        (WriteKind::Insert, _, Some(new)) => guarded.insert(&new)?,
        (WriteKind::Delete, Some(old), _) if event.is_move() => guarded.moved(&old)?,
        (WriteKind::Delete, Some(old), _) => guarded.delete(&old)?,
        _ => {}
    }
    Ok(event.pass())
}

impl GuardedRows {
    fn of_event(event: &RowEvent) -> Result<Rc<GuardedRows>> {
        LAST_ROWS.with(|last| last.recall(event, || GuardedRows::look_up(event)))
    }

    fn look_up(event: &RowEvent) -> Result<GuardedRows> {
        let machine = Machine::for_tables(event.machine())?;
        let shape = &machine.shape;
        let id = event.column(&shape.id)?;
        let status = event.column(&shape.status)?;
        let flag = shape.flag.as_ref().map(|f| event.column(f)).transpose()?;
        let mut watched: Vec<_> = [Some(id), Some(status), flag]
            .into_iter()
            .flatten()
            .collect();
        watched.sort_by_key(|field| std::cmp::Reverse(field.number));
        Ok(GuardedRows {
            relation: event.relation(),
            id,
            status,
            flag,
            watched,
            machine,
        })
    }

    /// Whether the write is an UPDATE that changes neither id, status nor flag.
    fn is_unrelated(&self, event: &RowEvent) -> bool {
        match (event.old(), event.written()) {
            (Some(old), Some(new)) => self.watched.iter().all(|f| f.is_same(&old, &new)),
            _ => false,
        }
    }

    fn update(&self, old: &RowVersion, new: &RowVersion) -> Result<()> {
        let same_status = self.status.is_same(old, new);
        let same_flag = self.flag.is_none_or(|flag| flag.is_same(old, new));
        let same_id = self.id.is_same(old, new);
        let flagged = self.flag.is_some_and(|flag| flag.is_true(old));
        let from = self.status_of(old);
        if !same_id && (flagged || self.is_claimed_or_cancelled(&from)) {
            return Err(self.refuse(
                old,
                "must keep its id",
                "The lease, teardown or refund of a row is stored under its id.",
            ));
        }
        if !same_flag {
            self.flag_change(old, flagged)?;
        }
        if !same_status {
            self.status_change(old, &from, &self.status_of(new), flagged)?;
        }
        Ok(())
    }

    fn is_claimed_or_cancelled(&self, status: &str) -> bool {
        let definition = &self.machine.definition;
        definition.is_claim_state(status)
            || definition.cancel.as_ref().is_some_and(|c| c.to == status)
    }

    fn flag_change(&self, old: &RowVersion, flagged: bool) -> Result<()> {
        let id = self.id.text(old).unwrap_or_default();
        match flagged {
            true => Err(self.refuse(
                old,
                "has its cancel flag set, and the flag cannot be cleared",
                "A cancellation cannot be undone. Finish the teardown if it is still open.",
            )),
            false if permit::allows(self.machine.name(), &id, &Doing::Flag) => Ok(()),
            false => Err(self.refuse(
                old,
                "gets its cancel flag from once.cancel_request only",
                "Call once.cancel_request(machine, id).",
            )),
        }
    }

    fn status_change(&self, old: &RowVersion, from: &str, to: &str, flagged: bool) -> Result<()> {
        let definition = &self.machine.definition;
        let id = self.id.text(old).unwrap_or_default();
        if permit::any() {
            let doing = Doing::Move(from.to_owned(), to.to_owned());
            if permit::allows(self.machine.name(), &id, &doing) {
                return Ok(());
            }
        }
        let (problem, hint) = if definition.cancel.as_ref().is_some_and(|c| c.to == to) {
            (
                format!("becomes \"{to}\" by once.cancel_finish only"),
                "Tear it down: cancel_request, cancel_refund, cancel_items, cancel_confirm, cancel_finish.",
            )
        } else if definition.is_terminal(from) {
            (
                format!("is \"{from}\", which is terminal, and cannot become \"{to}\""),
                "A terminal status is final. Insert a new row.",
            )
        } else if definition.is_claim_state(from) {
            let problem = format!(
                "is in claim state \"{from}\", which only the lease's holder or a sweep can end"
            );
            let hint = "Call action_finish or action_release with the lease's token. If the lease's holder died, a sweep (task action_release) reverts the row.";
            return Err(self
                .refuse(old, &problem, hint)
                .detail(self.holder(&id, from)?));
        } else if definition.is_claim_state(to) {
            (
                format!("enters claim state \"{to}\" by once.action_claim only"),
                "Call once.action_claim(machine, id, step_key).",
            )
        } else if flagged {
            (
                format!("is being cancelled and cannot become \"{to}\""),
                "Finish the teardown with once.cancel_finish.",
            )
        } else {
            self.declared(old, from, to)?;
            let made = MoveMade {
                from,
                to,
                how: "by_hand",
                ..MoveMade::default()
            };
            let id = RowId::read(self.machine.shape.id.base_type, &id, "id")?;
            return self.machine.record(&id, &made);
        };
        Err(self.refuse(old, &problem, hint))
    }

    fn declared(&self, old: &RowVersion, from: &str, to: &str) -> Result<()> {
        let definition = &self.machine.definition;
        let moves: Vec<_> = moves_to(definition, to, Requester::Any)
            .filter(|m| m.from.contains(&from))
            .collect();
        if moves.is_empty() {
            let problem = format!("is \"{from}\", and no move to \"{to}\" is declared");
            let is_status = |status| definition.status_types.iter().any(|s| s == status);
            let hint = match is_status(from) && is_status(to) {
                true => "Declare the transition in the definition, or make a declared move.",
                false => {
                    "A status that is not in status_types must be added there and to the transitions; after ALTER TYPE ... RENAME VALUE define the machine again. To correct a row, turn the guard off for the correction: once.machine_guard(machine, false)."
                }
            };
            let hint = format!("Moves are declared to {}. {hint}", targets(definition));
            return Err(self.refuse(old, &problem, &hint));
        }
        if moves.iter().any(|m| m.when.is_none()) {
            return Ok(());
        }
        for when in moves.iter().filter_map(|m| m.when) {
            if old.satisfies(&self.machine, self.relation, when)? {
                return Ok(());
            }
        }
        let problem =
            format!("is \"{from}\", and the condition of its move to \"{to}\" is not met");
        Err(self.refuse(
            old,
            &problem,
            "once.machine_get(machine) shows the transition's condition (\"when\").",
        ))
    }

    fn insert(&self, new: &RowVersion) -> Result<()> {
        let status = self.status_of(new);
        let flagged = self.flag.is_some_and(|flag| flag.is_true(new));
        let definition = &self.machine.definition;
        let claimed = definition.is_claim_state(&status);
        let cancelled = definition.cancel.as_ref().is_some_and(|c| c.to == status);
        if !(claimed || cancelled || flagged) {
            return Ok(());
        }
        let problem = match (claimed, cancelled) {
            (true, _) => format!("cannot begin in claim state \"{status}\""),
            (_, true) => format!("cannot begin in the cancelled state \"{status}\""),
            _ => "cannot begin with its cancel flag set".to_owned(),
        };
        Err(self.refuse(
            new,
            &problem,
            "Insert it in an ordinary status. To load data, turn the guard off, load, call once.action_adopt, turn the guard on.",
        ))
    }

    /// Refuses to delete a row during its teardown, because its items name the artifacts that are still to be deleted.
    fn delete(&self, old: &RowVersion) -> Result<()> {
        let flagged = self.flag.is_some_and(|flag| flag.is_true(old));
        let status = if flagged {
            self.status_of(old)
        } else {
            String::new()
        };
        if !flagged || self.machine.definition.is_terminal(&status) {
            return Ok(());
        }
        Err(self.refuse(
            old,
            "is being cancelled and cannot be deleted before it is cancelled",
            "Finish the teardown first: cancel_refund, cancel_items, cancel_confirm, cancel_finish.",
        ))
    }

    /// Refuses the move, because the row's new status in the other partition is not known here.
    fn moved(&self, old: &RowVersion) -> Result<()> {
        Err(self.refuse(
            old,
            "cannot move to another partition: its table was guarded before it became a partition, so the guard is an AFTER ROW trigger, which cannot judge such a move",
            "Put the guard on again: once.machine_guard(machine, true).",
        ))
    }

    fn status_of(&self, row: &RowVersion) -> String {
        let text = self.status.text(row).unwrap_or_default();
        shown(&text)
    }

    /// The DETAIL of a refusal: who holds the row's lease in this claim state, and how much time is left.
    fn holder(&self, id: &[u8], from: &str) -> Result<String> {
        let id = RowId::read(self.machine.shape.id.base_type, id, "id")?;
        let lease = Lease::latest(&self.machine, &id)?;
        match lease.filter(|l| l.state() == LeaseState::Held && l.text(LeaseCol::ClaimInto) == from)
        {
            Some(lease) => holder_of(&lease),
            None => Ok("The row has no lease; once.action_adopt gives it one.".to_owned()),
        }
    }

    fn refuse(&self, row: &RowVersion, problem: &str, hint: &str) -> Error {
        let id = self.id.text(row).unwrap_or_default();
        Error::new(
            Kind::IllegalTransition,
            format!(
                "row \"{}\" of machine \"{}\" {problem}",
                shown(&id),
                self.machine.name()
            ),
        )
        .hint(hint)
    }
}

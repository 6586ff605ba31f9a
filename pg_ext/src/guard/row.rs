//! The guard on a machine's own table.
//!
//! An UPDATE that touches neither status, flag nor id costs their comparison: which columns these are is remembered
//! (`memory.rs`; machine_define sends a relcache message, too).

use super::event::{Event, Field, Tuple, What};
use super::memory::Memory;
use crate::action::lease::Lease;
use crate::call::{Call, shown};
use crate::cancel::holder_of;
use crate::error::{Error, Kind, Result};
use crate::machine::changes;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::moves::{Requester, moves_to};
use crate::machine::permit::{self, Doing};
use pgrx::pg_sys::{Datum, Oid};
use std::rc::Rc;

/// A machine's columns in one table or partition.
struct Guarded {
    relation: Oid,
    machine: Rc<Machine>,
    id: Field,
    status: Field,
    flag: Option<Field>,
    /// These three, the last one first: it is read together with what stands before it.
    watched: Vec<Field>,
}

thread_local! {
    static LAST: Memory<Guarded> = const { Memory::new() };
}

/// `once.machine_guard_row`.
pub fn machine_guard_row(call: &Call) -> Result<Datum> {
    let event = Event::of(call)?;
    let mut guarded = Guarded::of(&event)?;
    if guarded.is_unrelated(&event) {
        return Ok(event.pass());
    }
    // The statement may have waited for the row while the machine was defined anew.
    changes::accept();
    guarded = Guarded::of(&event)?;
    match (event.what, event.old(), event.written()) {
        (What::Update, Some(old), Some(new)) => guarded.update(&old, &new)?,
        (What::Insert, _, Some(new)) => guarded.insert(&new)?,
        (What::Delete, Some(old), _) if event.is_move() => guarded.moved(&old)?,
        (What::Delete, Some(old), _) => guarded.delete(&old)?,
        _ => {}
    }
    Ok(event.pass())
}

impl Guarded {
    fn of(event: &Event) -> Result<Rc<Guarded>> {
        LAST.with(|last| last.of(event, || Guarded::look_up(event)))
    }

    fn look_up(event: &Event) -> Result<Guarded> {
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
        Ok(Guarded {
            relation: event.relation(),
            id,
            status,
            flag,
            watched,
            machine,
        })
    }

    /// An UPDATE that touches nothing of the machine's.
    fn is_unrelated(&self, event: &Event) -> bool {
        match (event.old(), event.written()) {
            (Some(old), Some(new)) => self.watched.iter().all(|f| f.same(&old, &new)),
            _ => false,
        }
    }

    fn update(&self, old: &Tuple, new: &Tuple) -> Result<()> {
        let same_status = self.status.same(old, new);
        let same_flag = self.flag.is_none_or(|flag| flag.same(old, new));
        let same_id = self.id.same(old, new);
        let flagged = self.flag.is_some_and(|flag| flag.is_true(old));
        let from = self.status_of(old);
        if !same_id && (flagged || self.is_claimed_or_cancelled(&from)) {
            return Err(self.refuse(
                old,
                "must keep its id",
                "A row that is leased, being cancelled or cancelled is known by its id.",
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

    fn flag_change(&self, old: &Tuple, flagged: bool) -> Result<()> {
        let id = self.id.text(old).unwrap_or_default();
        match flagged {
            true => Err(self.refuse(
                old,
                "is being cancelled, and its cancel flag cannot be cleared",
                "A cancellation is not taken back; finish the teardown.",
            )),
            false if permit::allows(self.machine.name(), &id, &Doing::Flag) => Ok(()),
            false => Err(self.refuse(
                old,
                "gets its cancel flag from once.cancel_request only",
                "Call once.cancel_request(machine, id).",
            )),
        }
    }

    fn status_change(&self, old: &Tuple, from: &str, to: &str, flagged: bool) -> Result<()> {
        let definition = &self.machine.definition;
        let id = self.id.text(old).unwrap_or_default();
        if permit::any() {
            let doing = Doing::Move(from.to_owned(), to.to_owned());
            if permit::allows(self.machine.name(), &id, &doing) {
                return Ok(());
            }
        }
        if definition.cancel.as_ref().is_some_and(|c| c.to == to) {
            let problem = format!("becomes \"{to}\" by once.cancel_finish only");
            return Err(self.refuse(
                old,
                &problem,
                "Tear it down: cancel_request, cancel_refund, cancel_items, cancel_confirm, cancel_finish.",
            ));
        }
        if definition.is_terminal(from) {
            let problem = format!("is \"{from}\", which is terminal, and cannot become \"{to}\"");
            return Err(self.refuse(
                old,
                &problem,
                "What has ended stays ended; insert a new row.",
            ));
        }
        if definition.is_claim_state(from) {
            let problem =
                format!("is in claim state \"{from}\", which it leaves by its lease only");
            let error = self.refuse(
                old,
                &problem,
                "action_finish or action_release with the lease's token; if its holder died, the sweep action_release reverts it.",
            );
            return Err(error.detail(self.holder(&id)?));
        }
        if definition.is_claim_state(to) {
            let problem = format!("enters claim state \"{to}\" by once.action_claim only");
            return Err(self.refuse(
                old,
                &problem,
                "Call once.action_claim(machine, id, step_key).",
            ));
        }
        if flagged {
            let problem = format!("is being cancelled and cannot become \"{to}\"");
            return Err(self.refuse(
                old,
                &problem,
                "Finish the teardown with once.cancel_finish.",
            ));
        }
        self.declared(old, from, to)
    }

    fn declared(&self, old: &Tuple, from: &str, to: &str) -> Result<()> {
        let definition = &self.machine.definition;
        let moves: Vec<_> = moves_to(definition, to, Requester::Any)
            .filter(|m| m.from.contains(&from))
            .collect();
        if moves.is_empty() {
            let problem = format!("is \"{from}\", and no move to \"{to}\" is declared");
            let hint = match definition.status_types.iter().any(|s| s == to) {
                true => "Declare the transition in the definition, or go by the declared ones.",
                false => {
                    "The machine has no such status; add it to status_types and its transitions."
                }
            };
            return Err(self.refuse(old, &problem, hint));
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
            "See the transition's when: once.machine_get(machine).",
        ))
    }

    fn insert(&self, new: &Tuple) -> Result<()> {
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
            "Insert it in an ordinary status. To load data: take the guard off, load, once.action_adopt, put it on.",
        ))
    }

    /// A row that is being cancelled stays until it is: its items say what is still to be deleted.
    fn delete(&self, old: &Tuple) -> Result<()> {
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
            "is being cancelled and cannot be deleted before it is",
            "Finish the teardown first: cancel_refund, cancel_items, cancel_confirm, cancel_finish.",
        ))
    }

    /// With which status it is in the other partition cannot be told any more.
    fn moved(&self, old: &Tuple) -> Result<()> {
        Err(self.refuse(
            old,
            "cannot leave its partition: the table became one later, and its guard judges too late for that",
            "Put the guard on again: once.machine_guard(machine, true).",
        ))
    }

    fn status_of(&self, row: &Tuple) -> String {
        let text = self.status.text(row).unwrap_or_default();
        shown(&text)
    }

    /// Who has the row and for how long.
    fn holder(&self, id: &[u8]) -> Result<String> {
        let id = RowId::read(self.machine.shape.id.base_type, id, "id")?;
        match Lease::latest(&self.machine, &id)? {
            Some(lease) => holder_of(&lease),
            None => Ok("It has no lease: once.action_adopt gives it one.".to_owned()),
        }
    }

    fn refuse(&self, row: &Tuple, problem: &str, hint: &str) -> Error {
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

//! Judges one write to a machine's items.
//!
//! Each write, except cancel_refund's, locks the machine's row FOR KEY SHARE, as a foreign key does. The lock is taken
//! as the owner of the machine's table, so the item's writer needs no right on that table. cancel_finish locks the row
//! FOR UPDATE, so it sees every item that was written before, and a later write sees the cancelled state.

use super::event::{GuardedColumn, RowEvent, RowVersion, WriteKind};
use super::memory::TableMemory;
use crate::call::{Call, from_utf8, shown, varlena};
use crate::error::{Error, Kind, Result};
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::permit::{self, Doing};
use crate::machine::statement::{self, NO};
use crate::spi::{SwitchedUser, column};
use pgrx::pg_sys::{Datum, Oid};
use std::rc::Rc;

/// $1 the row's id.
const LOCK_ROW_SQL: &str = "
    SELECT {status}::pg_catalog.text FROM {table} AS t
     WHERE {id} OPERATOR(pg_catalog.=) $1 FOR KEY SHARE OF t";

/// The items' columns in one table or partition.
struct GuardedItems {
    relation: Oid,
    machine: Rc<Machine>,
    item_id: GuardedColumn,
    subject: GuardedColumn,
    marker: GuardedColumn,
    amount: GuardedColumn,
    /// The marker's values as the server prints them.
    marked: Vec<u8>,
    undecided: Option<Vec<u8>>,
}

thread_local! {
    static LAST_ITEMS: TableMemory<GuardedItems> = const { TableMemory::new() };
}

/// `once.machine_guard_item`.
pub fn machine_guard_item(call: &Call) -> Result<Datum> {
    let event = RowEvent::fired_by(call)?;
    let guarded = LAST_ITEMS.with(|last| last.recall(&event, || GuardedItems::look_up(&event)))?;
    let (old, new) = (event.old(), event.written());
    if !guarded.is_refund(old.as_ref(), new.as_ref()) {
        guarded.judge(event.kind, old.as_ref(), new.as_ref())?;
    }
    Ok(event.pass())
}

impl GuardedItems {
    fn look_up(event: &RowEvent) -> Result<GuardedItems> {
        let machine = Machine::for_tables(event.machine())?;
        let (refund, shape) = machine.refund()?;
        let marker = event.column(&shape.marker)?;
        let undecided = refund.undecided.as_ref();
        Ok(GuardedItems {
            relation: event.relation(),
            item_id: event.column(&shape.item_id)?,
            subject: event.column(&shape.subject)?,
            amount: event.column(&shape.amount)?,
            marked: marker.canonical(&refund.marked)?,
            undecided: undecided.map(|u| marker.canonical(u)).transpose()?,
            marker,
            machine: machine.clone(),
        })
    }

    /// Whether cancel_refund makes this write: it marks an undecided item and keeps its amount and subject.
    fn is_refund(&self, old: Option<&RowVersion>, new: Option<&RowVersion>) -> bool {
        let (Some(old), Some(new)) = (old, new) else {
            return false;
        };
        permit::any()
            && self.is_undecided(old)
            && self.is_marked(new)
            && self.subject.is_same(old, new)
            && self.amount.is_same(old, new)
            && self.subject.text(old).is_some_and(|subject| {
                permit::allows(
                    self.machine.name(),
                    &self.canonical_id(&subject),
                    &Doing::Refund,
                )
            })
    }

    fn judge(
        &self,
        kind: WriteKind,
        old: Option<&RowVersion>,
        new: Option<&RowVersion>,
    ) -> Result<()> {
        let marked = old.filter(|old| self.is_marked(old));
        match (marked, new) {
            (Some(old), Some(new)) => self.ensure_unchanged(old, new)?,
            (None, Some(new)) if self.is_marked(new) => {
                return Err(self.refuse(
                    new,
                    "gets the refund marker only from once.cancel_refund, in a write that keeps its amount and row",
                    "cancel_request and cancel_refund pay the wallet and mark the items; no trigger may change an amount then. To load data, turn the guard off.",
                ));
            }
            _ => {}
        }
        let subject = |t: &RowVersion| self.subject.text(t).map(|s| self.canonical_id(&s));
        let (old_subject, new_subject) = (old.and_then(subject), new.and_then(subject));
        let mut subjects: Vec<_> = [&old_subject, &new_subject].into_iter().flatten().collect();
        subjects.sort();
        subjects.dedup();
        for subject in subjects {
            let Some(status) = self.lock_row(subject)? else {
                continue; // there is no such row
            };
            let cancelled = self.is_cancelled(&status);
            let undecided = new.filter(|new| self.is_undecided(new));
            if cancelled
                && new_subject.as_ref() == Some(subject)
                && let Some(new) = undecided
            {
                let problem = format!(
                    "cannot be undecided: row \"{}\" is cancelled",
                    shown(subject)
                );
                return Err(self.refuse(new, &problem, "Write no new items for a cancelled row. Roll this transaction back and delete the artifacts of these items."));
            }
            if let (WriteKind::Delete, Some(old), false) = (kind, marked, cancelled) {
                return Err(self.refuse(
                    old,
                    "carries the refund marker and cannot be deleted before its row is cancelled",
                    "Finish the teardown first: cancel_items lists the item's artifact.",
                ));
            }
        }
        Ok(())
    }

    fn ensure_unchanged(&self, old: &RowVersion, new: &RowVersion) -> Result<()> {
        for (field, what) in [(&self.marker, "its marker"), (&self.amount, "its amount")] {
            if !field.is_same(old, new) {
                return Err(self.refuse_marked(old, what));
            }
        }
        if !self.subject.is_same(old, new) {
            return match self.is_released(old, new)? {
                true => Ok(()),
                false => Err(self.refuse_marked(old, "its row")),
            };
        }
        match self.matches(old)? == self.matches(new)? {
            true => Ok(()),
            false => Err(self.refuse_marked(old, "whether it matches the refund's when")),
        }
    }

    /// Whether the item's subject becomes NULL, as by ON DELETE SET NULL, and the machine's row is cancelled or gone.
    fn is_released(&self, old: &RowVersion, new: &RowVersion) -> Result<bool> {
        let (Some(subject), None) = (self.subject.text(old), self.subject.text(new)) else {
            return Ok(false);
        };
        let status = self.lock_row(&self.canonical_id(&subject))?;
        Ok(status.is_none_or(|status| self.is_cancelled(&status)))
    }

    fn matches(&self, item: &RowVersion) -> Result<bool> {
        let (refund, _) = self.machine.refund()?;
        let Some(when) = &refund.when else {
            return Ok(true);
        };
        item.satisfies(&self.machine, self.relation, when)
    }

    /// Locks the machine's row as a foreign key would. Returns its status, or None if there is no such row.
    fn lock_row(&self, subject: &[u8]) -> Result<Option<Vec<u8>>> {
        let machine = &self.machine;
        let id = RowId::read(machine.shape.id.base_type, subject, "id")?;
        let Some(owner) = machine.shape.table.owner() else {
            return Ok(None);
        };
        let _owner = SwitchedUser::to_owner_for_check(owner);
        let types = [machine.id_type()];
        let plan = machine.plan("item lock", &types, [statement::ROW_SHARE, NO, NO], || {
            machine.parts().fill(LOCK_ROW_SQL, &[])
        })?;
        let rows = plan.query(&[Some(id.value)])?;
        Ok(rows
            .first()
            .and_then(|row| column(row, 0))
            .map(|status| varlena(status).to_vec()))
    }

    /// The canonical id of the machine's row that the subject names.
    fn canonical_id(&self, subject: &[u8]) -> Vec<u8> {
        RowId::read(self.machine.shape.id.base_type, subject, "id")
            .map_or_else(|_| subject.to_vec(), |id| id.text)
    }

    fn is_cancelled(&self, status: &[u8]) -> bool {
        let cancel = self.machine.definition.cancel.as_ref();
        cancel.is_some_and(|c| *from_utf8(&c.to) == *status)
    }

    fn is_marked(&self, item: &RowVersion) -> bool {
        self.marker.text(item).is_some_and(|m| m == self.marked)
    }

    fn is_undecided(&self, item: &RowVersion) -> bool {
        let marker = self.marker.text(item);
        marker.is_none() || marker == self.undecided
    }

    fn refuse_marked(&self, item: &RowVersion, what: &str) -> Error {
        self.refuse(
            item,
            &format!("carries the refund marker: {what} cannot change"),
            "The marker proves that the item's amount was given back.",
        )
    }

    fn refuse(&self, item: &RowVersion, problem: &str, hint: &str) -> Error {
        let id = self.item_id.text(item).unwrap_or_default();
        Error::new(
            Kind::IllegalTransition,
            format!(
                "item \"{}\" of machine \"{}\" {problem}",
                shown(&id),
                self.machine.name()
            ),
        )
        .hint(hint)
    }
}

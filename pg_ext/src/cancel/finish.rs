//! `cancel_finish`: the terminal move, once all money is paid back and all artifacts are deleted.
//!
//! It locks the row FOR UPDATE. With the guard on, every writer of an item locks the row at least FOR KEY SHARE, so
//! cancel_finish waits for all writers. (A foreign key alone locks the row only when an item is inserted or gets
//! another subject.) Then cancel_finish reads the committed items, at every isolation level.

use super::items::{Items, WhichItems};
use super::numeric;
use super::record::{Teardown, TeardownCol};
use super::torn_row::{TeardownState, TornRow};
use crate::call::{Call, shown, varlena};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::machine::after::MoveMade;
use crate::machine::patch::Patch;
use crate::machine::user_row::{self, MoveIf, RowLock};
use crate::row::{self, Shape};
use crate::table::is_writable;
use pgrx::pg_sys::{self, Datum};

static SHAPE: Shape = Shape::new(&[
    (c"outcome", pg_sys::TEXTOID),
    (c"status", pg_sys::TEXTOID),
    (c"items_total", pg_sys::INT8OID),
    (c"amount_total", pg_sys::NUMERICOID),
]);

/// `once.cancel_finish`.
pub fn cancel_finish(call: &Call) -> Result<Datum> {
    let torn = TornRow::of_call(call)?;
    let patch = Patch::read(&torn.machine, call.datum(2))?;
    torn.machine.ensure_may_update()?;
    if is_writable() {
        // Locks the tables before the row, in the modes of the statements below.
        let shape = &torn.machine.shape;
        shape.table.lock_with_all_below(pg_sys::RowExclusiveLock);
        if let Some(refund) = &shape.refund {
            refund.items.lock_with_all_below(pg_sys::AccessShareLock);
        }
    }
    let seen = match torn.state(RowLock::Whole)? {
        TeardownState::Open(seen) => seen,
        TeardownState::Done(seen) => {
            let past = torn.past_record()?;
            return Ok(answer(b"done", seen.status, past.as_ref()));
        }
    };
    let mut teardown = torn.record()?;
    if torn.machine.definition.refund.is_some() {
        torn.ensure_complete(&teardown)?;
    }
    let from = shown(seen.status());
    let to = &torn.cancel.to;
    let moved = user_row::move_row(&torn.machine, &torn.id, &from, to, MoveIf::Always, &patch)?;
    let Some(moved) = moved else {
        return Err(torn.machine.kept_back(&torn.id));
    };
    let made = MoveMade {
        from: &from,
        to,
        how: "cancel",
        ..MoveMade::default()
    };
    torn.machine.record(&torn.id, &made)?;
    teardown.put_i64(TeardownCol::FinishedAt, clock::now_us()?);
    teardown.put(TeardownCol::Open, Some(Datum::from(false)));
    teardown.store()?;
    Ok(answer(b"cancelled", moved.status, Some(&teardown)))
}

impl TornRow {
    /// Raises ON005 if an item is undecided, the last pass is unconfirmed, or an item is marked but no pass was made.
    fn ensure_complete(&self, teardown: &Teardown) -> Result<()> {
        let items = Items::of_machine(&self.machine)?;
        if let Some(item) = items.some_of_all(&self.id, WhichItems::Undecided)? {
            return Err(self.incomplete(
                format!("Item \"{}\" is undecided, perhaps others too.", shown(varlena(item))),
                "Call once.cancel_refund, delete what once.cancel_items lists, call once.cancel_confirm, then finish.",
            ));
        }
        let pass = teardown.i64(TeardownCol::Pass);
        let confirmed = match pass {
            0 => items.some_of_all(&self.id, WhichItems::Marked)?.is_none(),
            pass => teardown.i64(TeardownCol::ConfirmedPass) == pass,
        };
        match confirmed {
            true => Ok(()),
            false => Err(self.incomplete(
                format!(
                    "Pass {pass} of cancel_refund is not confirmed: its artifacts may still be there."
                ),
                "If that is pass 0, call once.cancel_refund first. Delete what once.cancel_items lists, then call once.cancel_confirm with the last pass.",
            )),
        }
    }

    fn incomplete(&self, missing: String, hint: &str) -> Error {
        Error::new(
            Kind::TeardownIncomplete,
            format!("the teardown of {} is not complete", self.named()),
        )
        .detail(missing)
        .hint(hint)
    }
}

fn answer(outcome: &[u8], status: Option<Datum>, teardown: Option<&Teardown>) -> Datum {
    SHAPE.row(&[
        Some(row::text(outcome)),
        status,
        Some(Datum::from(
            teardown.map_or(0, |t| t.i64(TeardownCol::ItemsTotal)),
        )),
        Some(teardown.map_or_else(numeric::zero, Teardown::amount_total)),
    ])
}

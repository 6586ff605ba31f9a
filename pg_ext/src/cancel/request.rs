//! `cancel_request`: sets the flag, once. From then on nothing starts on the row.

use super::items::{Items, WhichItems};
use super::record::Teardown;
use super::stand::TornRow;
use crate::action::lease::Lease;
use crate::call::{Call, shown};
use crate::error::{Error, Result};
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::permit::{self, Doing};
use crate::machine::sql::is_any;
use crate::machine::statement::{NO, WRITE};
use crate::machine::user_row::{self, RowLock, RowSeen};
use crate::row::{self, Shape};
use crate::spi::column;
use crate::table::{self, Snapshot};
use pgrx::pg_sys::{self, Datum};

/// $1 id.
const FLAG: &str = "
    UPDATE {table} AS t SET {flag_column} = true
     WHERE {id} OPERATOR(pg_catalog.=) $1 AND NOT {flag} AND NOT ({terminal})
    RETURNING {status}::pg_catalog.text";

thread_local! {
    static SHAPE: Shape = const { Shape::new(&[
        (c"outcome", pg_sys::TEXTOID),
        (c"status", pg_sys::TEXTOID),
    ]) };
}

/// `once.cancel_request`.
pub fn cancel_request(call: &Call) -> Result<Datum> {
    let torn = TornRow::of_call(call)?;
    let mut lock = RowLock::No;
    loop {
        let was_locked = lock == RowLock::Update;
        let set = table::is_writable() && torn.flag()?;
        if set {
            lock = RowLock::Update;
        }
        let Some(seen) = RowSeen::find(&torn.machine, &torn.id, lock)? else {
            if was_locked {
                user_row::ensure_updatable(&torn.machine, &torn.id)?;
            }
            return Ok(answer(b"not_found", None));
        };
        if torn.is_done(&seen) {
            return Ok(answer(b"done", Some(&seen)));
        }
        if torn.machine.definition.is_terminal(&shown(seen.status())) {
            return Ok(answer(b"too_late", Some(&seen)));
        }
        if set && seen.flagged && torn.is_another()? {
            Teardown::begin_anew(&torn.machine, &torn.id)?;
        }
        if seen.flagged && is_begun(&torn.machine, &torn.id, &Snapshot::latest())? {
            return torn.requested(&seen);
        }
        if !table::is_writable() {
            return Err(Error::read_only(torn.named()));
        }
        if seen.flagged && lock == RowLock::Update {
            Teardown::begin(&torn.machine, &torn.id)?;
            return torn.requested(&seen);
        }
        if set || was_locked {
            return Err(torn.machine.kept_back(&torn.id));
        }
        // Flagged by hand: once more under the row's lock. Or it changed since the UPDATE looked.
        lock = RowLock::Update;
        RowSeen::find(&torn.machine, &torn.id, lock)?;
    }
}

impl TornRow {
    /// Sets the flag of a row that may be cancelled and has none. Waits for whoever has the row locked.
    fn flag(&self) -> Result<bool> {
        let machine = &self.machine;
        let plan = machine.plan("flag", &[machine.id_type()], [WRITE, NO, NO], || {
            let parts = machine.parts();
            let terminal = machine.definition.terminal.iter().map(String::as_str);
            let flag = machine.shape.flag.as_ref().map_or("", |f| &f.name);
            let terminal = is_any(&parts.status, terminal);
            parts.fill(FLAG, &[("flag_column", flag), ("terminal", &terminal)])
        })?;
        let permit = permit::grant(machine.name(), [self.id.text.as_slice()], Doing::Flag);
        let rows = plan.query(&[Some(self.id.value)])?;
        drop(permit);
        Ok(rows.first().and_then(|row| column(row, 0)).is_some())
    }

    /// The row was not flagged although a teardown stands open, and nothing of it carries the marker: it is
    /// another row with the id of one that was deleted half-way.
    fn is_another(&self) -> Result<bool> {
        match self.machine.definition.refund {
            Some(_) => Ok(Items::of_machine(&self.machine)?
                .some(&self.id, WhichItems::Marked)?
                .is_none()),
            None => Ok(true),
        }
    }

    /// Who has the row lets it go; else nobody can start any more.
    fn requested(&self, seen: &RowSeen) -> Result<Datum> {
        let lease = Lease::latest(&self.machine, &self.id)?;
        let outcome: &[u8] = match lease.is_some_and(|l| l.covers(seen.status())) {
            true => b"accepted",
            false => b"teardown",
        };
        Ok(answer(outcome, Some(seen)))
    }
}

/// A teardown of the row is under way.
pub fn is_begun(machine: &Machine, id: &RowId, snapshot: &Snapshot) -> Result<bool> {
    let begun = Teardown::find(machine, id, snapshot)?;
    Ok(begun.is_some_and(|t| t.is_open()))
}

/// Begins the teardown of a row that was flagged by hand, unless somebody has it locked.
pub fn adopt_flagged(machine: &Machine, id: &RowId) -> Result<bool> {
    let seen = RowSeen::find(machine, id, RowLock::UpdateIfFree)?;
    let open = seen
        .is_some_and(|seen| seen.flagged && !machine.definition.is_terminal(&shown(seen.status())));
    if !open || is_begun(machine, id, &Snapshot::latest())? {
        return Ok(false);
    }
    Teardown::begin(machine, id)?;
    Ok(true)
}

fn answer(outcome: &[u8], seen: Option<&RowSeen>) -> Datum {
    let values = [Some(row::text(outcome)), seen.and_then(|s| s.status)];
    SHAPE.with(|shape| shape.row(&values))
}

//! `cancel_request` sets the flag and begins the teardown. From then on no action starts on the row.

use super::record::Teardown;
use super::torn_row::TornRow;
use crate::action::lease::Lease;
use crate::call::{Call, shown};
use crate::error::{Error, Result};
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::permit::{self, Doing};
use crate::machine::statement::{NO, WRITE};
use crate::machine::user_row::{self, RowLock, RowSeen};
use crate::row::{self, Shape};
use crate::spi::yes;
use crate::table::{self, Snapshot};
use pgrx::pg_sys::{self, Datum};

/// $1 id.
const FLAG: &str = "
    UPDATE {table} AS t SET {flag_column} = true WHERE {id} OPERATOR(pg_catalog.=) $1 RETURNING {flag}";

static SHAPE: Shape = Shape::new(&[(c"outcome", pg_sys::TEXTOID), (c"status", pg_sys::TEXTOID)]);

/// `once.cancel_request`.
pub fn cancel_request(call: &Call) -> Result<Datum> {
    let torn = TornRow::of_call(call)?;
    torn.machine.ensure_may_update()?;
    let writable = table::is_writable();
    if writable {
        // Takes the UPDATE's table lock first, so that no lock is upgraded.
        let table = &torn.machine.shape.table;
        table.lock_with_all_below(pg_sys::RowExclusiveLock);
    }
    let not_found = || Ok(answer(b"not_found", None));
    let Some(seen) = RowSeen::find(&torn.machine, &torn.id, RowLock::No)? else {
        return not_found();
    };
    if let Some(answer) = torn.without_a_write(&seen)? {
        return Ok(answer);
    }
    if !writable {
        return Err(Error::read_only(torn.named()));
    }
    let Some(seen) = RowSeen::find(&torn.machine, &torn.id, RowLock::Update)? else {
        user_row::ensure_updatable(&torn.machine, &torn.id)?;
        return not_found();
    };
    if let Some(answer) = torn.without_a_write(&seen)? {
        return Ok(answer);
    }
    // A row that was flagged by hand only needs the teardown.
    if !seen.flagged {
        torn.set_flag()?;
    }
    Teardown::begin(&torn.machine, &torn.id)?;
    torn.requested(&seen)
}

impl TornRow {
    /// The answer if the row is in a terminal status or its teardown has begun; else None.
    fn without_a_write(&self, seen: &RowSeen) -> Result<Option<Datum>> {
        if self.is_done(seen) {
            return Ok(Some(answer(b"done", Some(seen))));
        }
        if self.machine.definition.is_terminal(&shown(seen.status())) {
            return Ok(Some(answer(b"too_late", Some(seen))));
        }
        match seen.flagged && is_begun(&self.machine, &self.id, &Snapshot::latest())? {
            true => self.requested(seen).map(Some),
            false => Ok(None),
        }
    }

    /// Sets the flag of the locked row. Raises ON002 if a trigger, a rule or a policy of the table prevents the UPDATE.
    fn set_flag(&self) -> Result<()> {
        let machine = &self.machine;
        let plan = machine.plan("flag", &[machine.id_type()], [WRITE, NO, NO], || {
            let flag = machine.shape.flag.as_ref().map_or("", |f| &f.name);
            machine.parts().fill(FLAG, &[("flag_column", flag)])
        })?;
        let permit = permit::grant(machine.name(), [self.id.text.as_slice()], Doing::Flag);
        let rows = plan.query(&[Some(self.id.value)])?;
        drop(permit);
        match rows.first().is_some_and(|row| yes(row, 0)) {
            true => Ok(()),
            false => Err(machine.kept_back(&self.id)),
        }
    }

    /// `accepted` while a lease covers the row: the lease's holder releases the row. Else `teardown`: no action can
    /// start any more.
    fn requested(&self, seen: &RowSeen) -> Result<Datum> {
        let lease = Lease::latest(&self.machine, &self.id)?;
        let outcome: &[u8] = match lease.is_some_and(|l| l.covers(seen.status())) {
            true => b"accepted",
            false => b"teardown",
        };
        Ok(answer(outcome, Some(seen)))
    }
}

/// Whether the row has an open teardown.
pub fn is_begun(machine: &Machine, id: &RowId, snapshot: &Snapshot) -> Result<bool> {
    let begun = Teardown::find(machine, id, snapshot)?;
    Ok(begun.is_some_and(|t| t.is_open()))
}

/// Begins the teardown of a row that was flagged by hand. Skips a locked row.
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
    SHAPE.row(&values)
}

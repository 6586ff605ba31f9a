//! `cancel_request`: sets the flag, once. From then on nothing starts on the row.

use super::record::Teardown;
use super::stand::Torn;
use crate::action::lease::Lease;
use crate::action::row::{self as user_row, Lock, Seen};
use crate::call::{Call, shown};
use crate::error::{Error, Result};
use crate::machine::model::column;
use crate::machine::permit::{self, Doing};
use crate::machine::sql::is_any;
use crate::row::{self, Shape};
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
    let torn = Torn::of(call)?;
    let mut lock = Lock::No;
    loop {
        if table::is_writable() && torn.flag()? {
            lock = Lock::Update;
        }
        let Some(seen) = user_row::look(&torn.machine, &torn.id, lock)? else {
            return Ok(answer(b"not_found", None));
        };
        if torn.is_done(&seen) {
            return Ok(answer(b"done", Some(&seen)));
        }
        if torn.machine.definition.is_terminal(&shown(seen.status())) {
            return Ok(answer(b"too_late", Some(&seen)));
        }
        let begun = Teardown::find(&torn.machine, &torn.id, &Snapshot::latest())?;
        if seen.flagged && begun.is_some_and(|t| t.is_open()) {
            return torn.requested(&seen);
        }
        if !table::is_writable() {
            return Err(Error::read_only(torn.named()));
        }
        if seen.flagged && lock == Lock::Update {
            Teardown::begin(&torn.machine, &torn.id)?;
            return torn.requested(&seen);
        }
        // Flagged by hand: once more under the row's lock. Or it changed since the UPDATE looked.
        lock = Lock::Update;
    }
}

impl Torn {
    /// Sets the flag of a row that may be cancelled and has none. Waits for whoever has the row locked.
    fn flag(&self) -> Result<bool> {
        let machine = &self.machine;
        let plan = machine.plan("flag", &[machine.id_type()], || {
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

    /// Who has the row lets it go; else nobody can start any more.
    fn requested(&self, seen: &Seen) -> Result<Datum> {
        let lease = Lease::latest(&self.machine, &self.id)?;
        let outcome: &[u8] = match lease.is_some_and(|l| l.covers(seen.status())) {
            true => b"accepted",
            false => b"teardown",
        };
        Ok(answer(outcome, Some(seen)))
    }
}

fn answer(outcome: &[u8], seen: Option<&Seen>) -> Datum {
    let values = [Some(row::text(outcome)), seen.and_then(|s| s.status)];
    SHAPE.with(|shape| shape.row(&values))
}

//! The state of the user's row, for the calls of a teardown.

use super::record::Teardown;
use crate::action::lease::{Lease, LeaseCol};
use crate::call::{Call, from_utf8, shown};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::machine::definition::Cancel;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::user_row::{RowLock, RowSeen};
use crate::table::{self, Snapshot};
use std::rc::Rc;

/// The row that a call names by machine (argument 0) and id (1). The machine declares `cancel`.
pub struct TornRow {
    pub machine: Rc<Machine>,
    pub id: RowId,
    pub cancel: Cancel,
}

/// Whether the teardown can go on.
pub enum TeardownState {
    /// The teardown can go on: the row is flagged, and no lease covers it.
    Open(RowSeen),
    /// The row is cancelled already.
    Done(RowSeen),
}

impl TornRow {
    pub fn of_call(call: &Call) -> Result<TornRow> {
        let machine = Machine::of(call)?;
        let cancel = machine.definition.cancel.clone();
        Ok(TornRow {
            id: machine.id(call, 1)?,
            cancel: cancel.ok_or_else(|| machine.undeclared("cancel"))?,
            machine,
        })
    }

    /// Locks the row, and raises ON002 if the teardown must not go on. A read-only transaction gets an answer only for
    /// a cancelled row.
    pub fn state(&self, lock: RowLock) -> Result<TeardownState> {
        self.machine.ensure_may_update()?;
        let writable = table::is_writable();
        let lock = if writable { lock } else { RowLock::No };
        let seen = RowSeen::find(&self.machine, &self.id, lock)?
            .ok_or_else(|| self.illegal("is not there", "Give the id of a row of the table."))?;
        if self.is_done(&seen) {
            return Ok(TeardownState::Done(seen));
        }
        if !writable {
            return Err(Error::read_only(self.named()));
        }
        let status = shown(seen.status());
        if self.machine.definition.is_terminal(&status) {
            let problem = format!("is \"{status}\", a terminal status, and cannot be torn down");
            return Err(self.illegal(
                &problem,
                "The row's status is terminal: nothing is left to do.",
            ));
        }
        if !seen.flagged {
            return Err(self.illegal("is not being cancelled", "Call once.cancel_request first."));
        }
        match Lease::latest(&self.machine, &self.id)?.filter(|l| l.covers(seen.status())) {
            None => Ok(TeardownState::Open(seen)),
            Some(lease) => Err(self
                .illegal(
                    "is leased to an action",
                    "The holder releases the row. If the holder died, the sweep action_release reverts the row; then cancel_pending lists it.",
                )
                .detail(holder_of(&lease)?)),
        }
    }

    pub fn is_done(&self, seen: &RowSeen) -> bool {
        *seen.status() == *from_utf8(&self.cancel.to)
    }

    /// The open teardown; begins one for a row that was flagged by hand.
    pub fn record(&self) -> Result<Teardown> {
        match Teardown::find(&self.machine, &self.id, &Snapshot::latest())? {
            Some(teardown) if teardown.is_open() => Ok(teardown),
            _ => Teardown::begin(&self.machine, &self.id),
        }
    }

    /// The teardown of a cancelled row; None: the row was cancelled without a teardown.
    pub fn past_record(&self) -> Result<Option<Teardown>> {
        Teardown::find(&self.machine, &self.id, &Snapshot::latest())
    }

    pub fn illegal(&self, problem: &str, hint: &str) -> Error {
        Error::new(
            Kind::IllegalTransition,
            format!("{} {problem}", self.named()),
        )
        .hint(hint)
    }

    pub fn named(&self) -> String {
        self.machine.row_named(&self.id)
    }
}

/// The holder of a lease and the time that is left, for errors.
pub fn holder_of(lease: &Lease) -> Result<String> {
    let left = lease.i64(LeaseCol::LeaseUntil) - clock::now_us()?;
    let holder = match lease.bytes(LeaseCol::Holder) {
        Some(holder) => format!("Holder \"{}\"", shown(holder)),
        None => "A claim without a holder's name".to_owned(),
    };
    let step = match lease.bytes(LeaseCol::StepKey) {
        Some(step) => format!(" of step \"{}\"", shown(step)),
        None => String::new(),
    };
    let seconds = left.unsigned_abs().div_ceil(1_000_000);
    Ok(match left > 0 {
        true => format!("{holder}{step} holds the lease for another {seconds} s."),
        false => {
            format!(
                "The lease of {holder}{step} expired {seconds} s ago, and no sweep has reverted the row yet."
            )
        }
    })
}

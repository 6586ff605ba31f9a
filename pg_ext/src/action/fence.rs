//! The fence: checks the token of every write that presents an action's token.

use super::lease::{Lease, LeaseCol, LeaseState, REMEMBERED_US, TABLE};
use crate::call::{Call, shown};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::table::{Snapshot, Table, Wait, WriteOutcome};
use std::rc::Rc;

/// A machine's row, and the token that a write presents.
pub struct FencedAction {
    pub machine: Rc<Machine>,
    pub id: RowId,
    token: i64,
}

impl FencedAction {
    pub fn of_call(call: &Call) -> Result<FencedAction> {
        let machine = Machine::of(call)?;
        machine.ensure_may_update()?;
        Ok(FencedAction {
            id: machine.id(call, 1)?,
            token: call.i64(2, "token")?,
            machine,
        })
    }

    /// For a write by a person: a person has no token, so the present lease's token is used.
    pub fn of_present(machine: Rc<Machine>, id: RowId, lease: &Lease) -> FencedAction {
        FencedAction {
            machine,
            id,
            token: lease.i64(LeaseCol::Token),
        }
    }

    /// Returns the lease that is held with this token. An earlier call may have ended this lease. `repeats` then
    /// decides whether the present call repeats that earlier call. A repeated call gets the ended lease.
    pub fn lease(&self, repeats: impl Fn(&Lease) -> bool) -> Result<(Lease, TokenUse)> {
        let Some(lease) = Lease::latest(&self.machine, &self.id)? else {
            return Err(self.forgotten(
                "There is no lease on this row: it was never claimed, or its lease was deleted.",
            ));
        };
        if lease.was_finished_by(self.token) {
            return match lease.i64(LeaseCol::Token) == self.token && repeats(&lease) {
                true => Ok((lease, TokenUse::Repeated)),
                false => Err(self.already_done()),
            };
        }
        if lease.may_have_forgotten(self.token) {
            return Err(self.forgotten("Later attempts have finished actions of this row."));
        }
        if lease.i64(LeaseCol::Token) != self.token {
            return Err(self.lost("Another holder has claimed the row."));
        }
        let forgotten = lease.i64(LeaseCol::EndedAt).saturating_add(REMEMBERED_US);
        match lease.state() {
            LeaseState::Held => Ok((lease, TokenUse::Held)),
            _ if forgotten <= clock::now_us()? => {
                Err(self.lost("The lease ended more than 24 hours ago."))
            }
            _ if repeats(&lease) => Ok((lease, TokenUse::Repeated)),
            LeaseState::Swept => {
                Err(self.lost("The lease expired, and a sweep has reverted the row."))
            }
            _ => Err(self.lost("The lease was released.")),
        }
    }

    fn already_done(&self) -> Error {
        Error::already_done(
            format!(
                "this token has finished the action on {} already",
                self.named()
            ),
            "the row has left the claim state. Keep what the action made outside the database.",
        )
    }

    /// Writes the lease while it is held with this token. `change` gets the time, read after any wait for a lock.
    pub fn write<T>(&self, mut change: impl FnMut(&mut Lease, i64) -> T) -> Result<T> {
        let mut locked = false;
        loop {
            let (mut lease, _) = self.lease(|_| false)?;
            let Some(tid) = lease.tid() else {
                continue;
            };
            let table = Table::to_write(TABLE)?;
            if !locked && table.is_held(tid) {
                locked = table.lock(tid, &Snapshot::latest(), Wait::Yes)? == WriteOutcome::Done;
                continue;
            }
            let answer = change(&mut lease, clock::now_us()?);
            if lease.update_at(&table, tid)? == WriteOutcome::Done {
                return Ok(answer);
            }
            locked = false;
        }
    }

    pub fn lost(&self, why: impl Into<String>) -> Error {
        Error::new(
            Kind::LeaseLost,
            format!("lease of {} is lost", self.named()),
        )
        .detail(why)
        .hint(
            "Stop this attempt, roll back its writes, and delete what it made outside the database.",
        )
    }

    /// The error if the database no longer shows whether the token has finished its action.
    fn forgotten(&self, why: &'static str) -> Error {
        self.lost(why).hint(
            "Stop this attempt and roll back its writes. Its action_finish may have been committed long ago: look at the row \
             before you delete what it made outside the database.",
        )
    }

    /// The error of a held lease whose row is gone or has left the claim state.
    pub fn dead(&self, status: Option<&[u8]>) -> Error {
        self.lost(match status {
            None => "The row is gone.".to_owned(),
            Some(status) => format!("The row's status is \"{}\" now.", shown(status)),
        })
    }

    pub fn named(&self) -> String {
        self.machine.row_named(&self.id)
    }
}

/// How a valid token relates to its lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TokenUse {
    Held,
    /// The same call has ended the lease already.
    Repeated,
}

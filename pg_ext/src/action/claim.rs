//! `action_claim` claims one row for one step's action.
//!
//! A call never waits for a row or a lease: if either is locked, the call claims nothing. While a live lease covers
//! the row, the call only reads. `decide` chooses between an answer and a claim. It uses the row, the lease and the
//! clock. A row is claimed only after `decide` has run under the locks.

use super::lease::{Lease, LeaseCol, LeaseState, TABLE};
use crate::call::{Call, HOLDER_MAX, SCOPE_MAX, from_utf8, shown};
use crate::clock;
use crate::error::{Error, Result};
use crate::machine::after::MoveMade;
use crate::machine::definition::Step;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::patch::Patch;
use crate::machine::transition::version_argument;
use crate::machine::user_row::{self, MoveIf, RowLock, RowSeen};
use crate::row::{self, Shape};
use crate::settings;
use crate::table::{self, Snapshot, Table, Wait, WriteOutcome};
use crate::trylock::TryLock;
use pgrx::pg_sys::{self, Datum};
use std::rc::Rc;

/// A claim answers in_progress after this many tries, if the machine or the lease changed during each.
const MAX_LOOKS: usize = 8;

static SHAPE: Shape = Shape::new(&[
    (c"outcome", pg_sys::TEXTOID),
    (c"token", pg_sys::INT8OID),
    (c"status", pg_sys::TEXTOID),
    (c"version", pg_sys::INT8OID),
    (c"lease_left", pg_sys::INTERVALOID),
    (c"retry_after", pg_sys::INTERVALOID),
]);

/// `once.action_claim`.
pub fn action_claim(call: &Call) -> Result<Datum> {
    let machine = Machine::of(call)?;
    machine.ensure_may_update()?;
    let mut claim = ActionClaim {
        id: machine.id(call, 1)?,
        step_key: shown(call.text(2, "step_key", SCOPE_MAX)?),
        requester: call.opt_text(3, "requester", SCOPE_MAX)?.map(shown),
        lease: call.interval(4, "lease")?,
        holder: call.opt_text(5, "holder", HOLDER_MAX)?,
        version: version_argument(&machine, call, 6)?.map(|d| d.value() as i64),
        machine,
    };
    for _ in 0..MAX_LOOKS {
        claim.ensure_step()?;
        if let Some(answer) = claim.attempt()? {
            return Ok(answer);
        }
        claim.machine = Machine::of(call)?;
        // The id column may have another type now.
        claim.id = claim.machine.id(call, 1)?;
    }
    Ok(in_progress(None, None))
}

struct ActionClaim<'a> {
    machine: Rc<Machine>,
    id: RowId,
    step_key: String,
    requester: Option<String>,
    lease: Option<i64>,
    holder: Option<&'a [u8]>,
    version: Option<i64>,
}

enum ClaimDecision<'a> {
    Answer(Datum),
    Claim(DeclaredMove<'a>),
}

/// The status into which a claim moves the row, and the statuses to which the row goes from there.
struct DeclaredMove<'a> {
    step: &'a Step,
    into: &'a str,
    revert: &'a str,
    success: &'a str,
}

impl ActionClaim<'_> {
    /// Raises 22023 for an unknown step_key. `decide` checks that the step is declared for the row's status.
    fn ensure_step(&self) -> Result<()> {
        let steps = &self.machine.definition.steps;
        if steps.iter().any(|s| s.step_key == self.step_key) {
            return Ok(());
        }
        let mut known: Vec<_> = steps.iter().map(|s| s.step_key.as_str()).collect();
        known.dedup();
        Err(Error::bad_argument(
            "step_key",
            format!(
                "\"{}\" is no step of machine \"{}\"",
                self.step_key,
                self.machine.name()
            ),
            format!("Steps: {}.", known.join(", ")),
        ))
    }

    /// Tries to claim once; None if the machine or the lease changed meanwhile.
    fn attempt(&self) -> Result<Option<Datum>> {
        let writable = table::is_writable();
        let lease = Lease::latest(&self.machine, &self.id)?;
        let now = clock::now_us()?;
        let live = |l: &Lease| l.state() == LeaseState::Held && l.i64(LeaseCol::LeaseUntil) > now;
        if !writable || lease.as_ref().is_some_and(live) {
            let seen = RowSeen::find(&self.machine, &self.id, RowLock::No)?;
            match self.decide(seen.as_ref(), lease.as_ref(), now) {
                ClaimDecision::Answer(answer) => return Ok(Some(answer)),
                _ if !writable => {
                    return Err(Error::read_only(self.machine.row_named(&self.id)));
                }
                _ => {}
            }
        }
        // Lock order: the table, then the machine. A transaction may hold the table's lock after ALTER TABLE, and then
        // wait in machine_define for the claims that share the machine's lock. If such a claim waited for the table,
        // both would wait for each other.
        let table = &self.machine.shape.table;
        table.lock_with_all_below(pg_sys::RowExclusiveLock);
        // machine_define waits for the end of this transaction and then sees the new lease.
        let Some(shared) = TryLock::shared(self.machine.lock) else {
            return Ok(Some(in_progress(None, None)));
        };
        let newer = Machine::named(&from_utf8(self.machine.name()))?;
        if !Rc::ptr_eq(&newer, &self.machine) {
            return Ok(None);
        }
        let Some(seen) = RowSeen::find(&self.machine, &self.id, RowLock::UpdateIfFree)? else {
            return self.locked_or_gone().map(Some);
        };
        let table = Table::to_write(TABLE)?;
        let snapshot = Snapshot::latest();
        let lease = Lease::find(&table, &self.machine, &self.id, &snapshot)?;
        let tid = lease.as_ref().and_then(Lease::tid);
        if let Some(tid) = tid {
            match table.lock(tid, &snapshot, Wait::No)? {
                WriteOutcome::Done => {}
                WriteOutcome::Busy => return Ok(Some(in_progress(Some(&seen), None))),
                WriteOutcome::Changed => return Ok(None),
            }
        }
        let now = clock::now_us()?;
        match self.decide(Some(&seen), lease.as_ref(), now) {
            ClaimDecision::Answer(answer) => Ok(Some(answer)),
            ClaimDecision::Claim(to) => {
                let (machine, id) = (&self.machine, &self.id);
                let (from, patch) = (shown(seen.status()), Patch::default());
                let moved =
                    user_row::move_row(machine, id, &from, to.into, MoveIf::Unflagged, &patch)?;
                let Some(moved) = moved else {
                    return Err(machine.kept_back(id));
                };
                // A trigger of the table may have changed the lease.
                let present = Lease::latest(machine, id)?;
                if present.as_ref().map(Lease::mark) != lease.as_ref().map(Lease::mark) {
                    return Err(machine.kept_back(id));
                }
                let tid = present.as_ref().and_then(Lease::tid);
                let mut new = present.unwrap_or_else(Lease::empty);
                self.fill(&mut new, &to, now);
                match tid {
                    Some(tid) => drop(new.update_at(&table, tid)?),
                    None => new.insert(&table)?,
                }
                shared.keep();
                machine.record(
                    id,
                    &MoveMade {
                        from: &from,
                        to: to.into,
                        how: "claim",
                        requester: self.requester.as_deref(),
                        holder: self.holder,
                        role: None,
                    },
                )?;
                Ok(Some(claimed(&new, &moved, now)))
            }
        }
    }

    /// Answers for a row that is gone or locked, after reading the row and the lease without locks.
    fn locked_or_gone(&self) -> Result<Datum> {
        let seen = RowSeen::find(&self.machine, &self.id, RowLock::No)?;
        let lease = Lease::latest(&self.machine, &self.id)?;
        match self.decide(seen.as_ref(), lease.as_ref(), clock::now_us()?) {
            ClaimDecision::Answer(answer) => Ok(answer),
            ClaimDecision::Claim { .. } => {
                user_row::ensure_updatable(&self.machine, &self.id)?;
                Ok(in_progress(seen.as_ref(), None))
            }
        }
    }

    fn decide(&self, seen: Option<&RowSeen>, lease: Option<&Lease>, now: i64) -> ClaimDecision<'_> {
        let Some(seen) = seen else {
            return ClaimDecision::Answer(answer(b"not_found", None));
        };
        let definition = &self.machine.definition;
        let covering = lease.filter(|l| l.covers(seen.status()));
        let status = match covering {
            Some(lease) => {
                let left = lease.i64(LeaseCol::LeaseUntil) - now;
                let same = self.holder.is_some()
                    && lease.bytes(LeaseCol::Holder) == self.holder
                    && lease.text(LeaseCol::StepKey) == self.step_key;
                if left > 0 && same {
                    return ClaimDecision::Answer(claimed(lease, seen, now));
                }
                if seen.flagged || left > 0 {
                    let left = Some(left).filter(|left| *left > 0);
                    return ClaimDecision::Answer(in_progress(Some(seen), left));
                }
                lease.text(LeaseCol::RevertTo)
            }
            None => shown(seen.status()),
        };
        if covering.is_none() && seen.flagged && !definition.is_terminal(&status) {
            return ClaimDecision::Answer(answer(b"cancelling", Some(seen)));
        }
        let refused = || ClaimDecision::Answer(answer(b"refused", Some(seen)));
        let Some(step) = definition.step(&self.step_key, &status) else {
            return refused();
        };
        let requester = self.requester.as_deref();
        let version = seen.version.map(|d| d.value() as i64);
        if self.version.is_some() && self.version != version {
            return refused();
        }
        match (step.claim_of(requester), step.success_of(requester)) {
            (Some((into, revert)), Some(success)) => ClaimDecision::Claim(DeclaredMove {
                step,
                into,
                revert,
                success,
            }),
            (None, Some(_)) if covering.is_some() => {
                ClaimDecision::Answer(in_progress(Some(seen), None))
            }
            (None, Some(_)) => ClaimDecision::Answer(answer(b"unclaimed", Some(seen))),
            (_, None) => refused(),
        }
    }

    fn fill(&self, lease: &mut Lease, to: &DeclaredMove, now: i64) {
        let here = from_utf8;
        let us = self
            .lease
            .or(to.step.lease_us)
            .unwrap_or_else(settings::action_lease_us);
        let again = lease.tid().is_some()
            && lease.state() != LeaseState::Finished
            && lease.text(LeaseCol::StepKey) == self.step_key;
        let attempts = if again {
            lease.i32(LeaseCol::Attempts)
        } else {
            0
        };
        lease.put_i32(LeaseCol::Attempts, attempts.saturating_add(1));
        lease.begin(&self.machine, &self.id, now, us);
        lease.put_text(LeaseCol::ClaimInto, Some(&here(to.into)));
        lease.put_text(LeaseCol::RevertTo, Some(&here(to.revert)));
        lease.put_text(LeaseCol::StepKey, Some(&here(&self.step_key)));
        let status = Some(&to.step.status).filter(|status| *status != to.revert);
        let status = status.map(|status| here(status));
        lease.put_text(LeaseCol::StepStatus, status.as_deref());
        lease.put_text(LeaseCol::SuccessfulState, Some(&here(to.success)));
        let requester = self.requester.as_deref().map(here);
        lease.put_text(LeaseCol::Requester, requester.as_deref());
        lease.put_text(LeaseCol::Holder, self.holder);
    }
}

fn claimed(lease: &Lease, seen: &RowSeen, now: i64) -> Datum {
    SHAPE.row(&[
        Some(row::text(b"claimed")),
        lease.raw(LeaseCol::Token),
        seen.status,
        seen.version,
        Some(clock::interval_datum(lease.i64(LeaseCol::LeaseUntil) - now)),
        None,
    ])
}

/// `lease_left_us`: None unless the claim has read a live lease of the row.
fn in_progress(seen: Option<&RowSeen>, lease_left_us: Option<i64>) -> Datum {
    let most = settings::retry_after_us();
    let retry = settings::retry_within(lease_left_us.unwrap_or(i64::MAX), most);
    SHAPE.row(&[
        Some(row::text(b"in_progress")),
        None,
        seen.and_then(|s| s.status),
        seen.and_then(|s| s.version),
        lease_left_us.map(clock::interval_datum),
        Some(clock::interval_datum(retry)),
    ])
}

fn answer(outcome: &[u8], seen: Option<&RowSeen>) -> Datum {
    SHAPE.row(&[
        Some(row::text(outcome)),
        None,
        seen.and_then(|s| s.status),
        seen.and_then(|s| s.version),
        None,
        None,
    ])
}

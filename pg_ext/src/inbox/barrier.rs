//! `inbox_barrier`: a step's action and its compensation share one row. A compensation that comes first is skipped, and
//! the action is then refused.

use super::entry::{Col, Entry, Status, expiry, ttl};
use super::meet::{Decision, Found, Own, find_or_write};
use crate::call::{Call, shown};
use crate::error::{Error, Result};
use crate::row;
use pgrx::pg_sys::Datum;

#[derive(Clone, Copy)]
enum Operation {
    Action,
    Compensation,
}

/// `once.inbox_barrier`.
pub fn inbox_barrier(call: &Call) -> Result<Datum> {
    let step = Entry::step(call)?;
    step.ensure_home()?;
    let operation = operation(call)?;
    let ttl = ttl(call, 4)?;
    let outcome = find_or_write(&step, Own::Expires, |found| {
        let (status, row) = match found {
            Found::Nothing(row) => (None, row),
            Found::Row(row, _) => (Some(row.status()), row),
        };
        let (next, outcome) = next(operation, status);
        let Some(next) = next else {
            return Ok((Decision::Nothing, outcome));
        };
        let mut until = expiry(ttl)?;
        if status.is_some() {
            until = until.max(row.i64(Col::ExpiresAt));
        }
        row.put_i64(Col::ExpiresAt, until);
        row.put_status(next);
        row.put(Col::Verdict, None);
        Ok((Decision::Write, outcome))
    })?;
    Ok(row::text(outcome))
}

/// The step's new status (None: unchanged) and the outcome. A repeated call changes nothing.
fn next(operation: Operation, status: Option<Status>) -> (Option<Status>, &'static [u8]) {
    match (operation, status) {
        (Operation::Action, None) => (Some(Status::Acted), b"run"),
        (Operation::Action, Some(Status::Acted)) => (None, b"duplicate"),
        (Operation::Action, Some(_)) => (None, b"refused"),
        (Operation::Compensation, None) => (Some(Status::Skipped), b"skipped"),
        (Operation::Compensation, Some(Status::Acted)) => (Some(Status::Compensated), b"run"),
        (Operation::Compensation, Some(Status::Compensated)) => (None, b"duplicate"),
        (Operation::Compensation, Some(_)) => (None, b"skipped"),
    }
}

fn operation(call: &Call) -> Result<Operation> {
    const HINT: &str = "Give 'action' or 'compensation'.";
    match call.bytes(3) {
        Some(b"action") => Ok(Operation::Action),
        Some(b"compensation") => Ok(Operation::Compensation),
        Some(other) => Err(Error::bad_argument(
            "operation",
            format!("is \"{}\"", shown(other)),
            HINT,
        )),
        None => Err(Error::bad_argument("operation", "must not be null", HINT)),
    }
}

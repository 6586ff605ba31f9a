//! `inbox_accept` and `inbox_record`.

use super::entry::{Col, Entry, Status, expiry, ttl};
use super::meet::{Decision, Found, Own, Writer, find_or_write};
use crate::call::{Call, varlena};
use crate::error::{Error, Kind, Result};
use crate::row::Shape;
use pgrx::pg_sys::{self, Datum};

static SHAPE: Shape = Shape::new(&[
    (c"accepted", pg_sys::BOOLOID),
    (c"verdict", pg_sys::JSONOID),
]);

/// `once.inbox_accept`.
pub fn inbox_accept(call: &Call) -> Result<Datum> {
    let message = Entry::message(call)?;
    message.ensure_home()?;
    let ttl = ttl(call, 2)?;
    find_or_write(&message, Own::Expires, |found| match found {
        Found::Row(row, _) => Ok((Decision::Nothing, answer(false, row.raw(Col::Verdict)))),
        Found::Nothing(row) => {
            row.put_i64(Col::ExpiresAt, expiry(ttl)?);
            row.put_status(Status::Message);
            row.put(Col::Verdict, None);
            Ok((Decision::Write, answer(true, None)))
        }
    })
}

fn answer(accepted: bool, verdict: Option<Datum>) -> Datum {
    let values = [Some(Datum::from(accepted)), verdict];
    SHAPE.row(&values)
}

/// `once.inbox_record`.
pub fn inbox_record(call: &Call) -> Result<Datum> {
    let message = Entry::message(call)?;
    let verdict = call.datum(2).ok_or_else(|| {
        Error::bad_argument(
            "verdict",
            "must not be null",
            "Give a JSON document; 'null' is one.",
        )
    })?;
    find_or_write(&message, Own::Stays, |found| {
        let Found::Row(row, writer) = found else {
            message.ensure_home()?;
            return Err(not_accepted(&message));
        };
        match row.raw(Col::Verdict).map(varlena) {
            Some(first) if writer == Writer::Ours && first == varlena(verdict) => {
                Ok((Decision::Nothing, ()))
            }
            Some(_) => Err(has_one(&message)),
            None if writer == Writer::Another => Err(not_ours(&message)),
            None => {
                row.put(Col::Verdict, Some(verdict));
                Ok((Decision::Write, ()))
            }
        }
    })?;
    Ok(call.return_null())
}

fn not_accepted(message: &Entry) -> Error {
    let lost = format!("{} is not accepted", message.named());
    Error::new(Kind::LeaseLost, lost)
        .detail("It was never accepted, the transaction that accepted it was rolled back, or its ttl is over.")
        .hint("Call inbox_accept first, in the same transaction.")
}

/// The error of a verdict for a message that another transaction has accepted. Since that transaction committed,
/// duplicates may have been answered without a verdict. So this verdict comes too late.
fn not_ours(message: &Entry) -> Error {
    let lost = format!("{} was accepted by another transaction", message.named());
    Error::new(Kind::LeaseLost, lost)
        .detail("That transaction is committed, and recorded no verdict.")
        .hint("Record the verdict in the transaction that accepts the message.")
}

fn has_one(message: &Entry) -> Error {
    Error::already_done(
        format!("{} has a verdict already", message.named()),
        "inbox_accept of the message returns the verdict.",
    )
}

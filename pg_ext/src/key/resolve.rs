//! What people do with a key: `key_resolve` ends a parking, `key_forget` deletes.

use super::claim::named;
use super::decide::{self, Decision};
use super::event;
use super::fence::{Change, Named};
use super::finish::Answer;
use super::record::{Advanced, Col, PENDING, Record, Status, TABLE};
use super::step;
use crate::call::{Call, shown};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::table::{self, Outcome, Snapshot, Table, Wait};
use pgrx::pg_sys::Datum;

/// What a person decided about a parked key.
enum Verdict {
    Retry,
    Finish(Status, Answer),
}

impl Verdict {
    fn of(call: &Call) -> Result<Verdict> {
        let status = match call.text(3, "verdict", 20)? {
            b"retry" => return refuse_answer(call).map(|()| Verdict::Retry),
            b"complete" => Status::Completed,
            b"abort" => Status::Aborted,
            other => {
                return Err(Error::bad_argument(
                    "verdict",
                    format!("must not be \"{}\"", shown(other)),
                    "Verdicts: retry, complete, abort.",
                ));
            }
        };
        Ok(Verdict::Finish(status, Answer::of(call, 4)?))
    }

    fn code(&self) -> u8 {
        match self {
            Verdict::Retry => b'r',
            Verdict::Finish(status, _) => status.code(),
        }
    }
}

fn refuse_answer(call: &Call) -> Result<()> {
    match (4..7).find(|i| call.datum(*i).is_some()) {
        None => Ok(()),
        Some(_) => Err(Error::bad_argument(
            "response_code",
            "and the other response arguments must be null with verdict retry",
            "The next attempt will give the answer.",
        )),
    }
}

/// `once.key_resolve`.
pub fn key_resolve(call: &Call) -> Result<Datum> {
    let key = Named::of(call)?;
    let attempt = call.i32(2, "attempt")?;
    let verdict = Verdict::of(call)?;
    let emits = key.change(|row, now| {
        let Some(row) = row else {
            return Err(key.lost("There is no such key: never claimed, forgotten or reaped."));
        };
        if row.raw(Col::ResolvedAttempt).is_some() && row.i32(Col::ResolvedAttempt) == attempt {
            return ensure_again(&key, row, &verdict, attempt).map(|()| (Change::Nothing, false));
        }
        if row.status().finished() || decide::unfinished(row, now, &key.options) != Decision::Parked
        {
            return Err(Error::new(
                Kind::InUse,
                format!("{} is not parked", named(key.scope, key.key)),
            )
            .hint("Only a parked key needs a verdict; key_get tells its status."));
        }
        if row.i32(Col::Attempt) != attempt {
            return Err(key.lost(format!("The parked attempt is {}.", row.i32(Col::Attempt))));
        }
        apply(row, &verdict, attempt, now);
        Ok((Change::Write, row.emits()))
    })?;
    if let (true, Verdict::Finish(status, _)) = (emits, &verdict) {
        event::emit_all(key.id(), *status)?;
    }
    Ok(call.return_null())
}

fn apply(row: &mut Record, verdict: &Verdict, attempt: i32, now: i64) {
    // The parked holder's token ends with the verdict.
    row.put_i64(Col::Token, clock::next_token(row.i64(Col::Token)));
    row.put_advanced(Advanced::Never);
    row.put_i32(Col::ResolvedAttempt, attempt);
    row.put(Col::ResolvedVerdict, Some(Datum::from(verdict.code())));
    match verdict {
        Verdict::Retry => {
            row.put_status(Status::Released);
            row.put_i32(Col::AttemptBase, attempt);
            row.put_i64(Col::LeaseUntil, now);
            row.put_look(PENDING, now);
        }
        Verdict::Finish(status, answer) => answer.store(row, *status, now),
    }
}

/// A verdict was given for this attempt.
fn ensure_again(key: &Named, row: &Record, verdict: &Verdict, attempt: i32) -> Result<()> {
    let stored = row.raw(Col::ResolvedVerdict).map_or(0, |d| d.value() as u8);
    if stored != verdict.code() {
        return Err(key.lost("Another verdict was given for this attempt."));
    }
    let as_left = match verdict {
        Verdict::Retry => row.status() == Status::Released && row.i32(Col::Attempt) == attempt,
        Verdict::Finish(status, answer) => answer.is_stored(row, *status),
    };
    if row.is_ours() && as_left {
        return Ok(());
    }
    Err(Error::already_done(
        format!(
            "attempt {attempt} of {} has this verdict already",
            named(key.scope, key.key)
        ),
        "key_get tells what became of the key.",
    ))
}

/// `once.key_forget`.
pub fn key_forget(call: &Call) -> Result<Datum> {
    let key = Named::of(call)?;
    loop {
        let snapshot = Snapshot::now();
        let now = clock::now_us()?;
        let found = Record::find(&Table::to_read(TABLE)?, key.id(), &snapshot)?;
        let Some(row) = found.filter(|r| !key.is_over(r, now)) else {
            return Ok(Datum::from(false));
        };
        if row.status() == Status::Running && now < row.i64(Col::LeaseUntil) {
            return Err(Error::new(
                Kind::InUse,
                format!("{} is held by a live lease", named(key.scope, key.key)),
            )
            .hint("Wait until its lease has run out, or let its holder finish or release it."));
        }
        let Some(tid) = row.tid() else {
            return Ok(Datum::from(false));
        };
        let table = Table::to_write(TABLE)?;
        match table.lock(tid, &snapshot, Wait::Yes)? {
            Outcome::Done => {
                step::forget_all(key.id())?;
                table.delete(tid, &snapshot);
                return Ok(Datum::from(true));
            }
            _ if table::above_read_committed() => {
                return Err(Error::retry_transaction(named(key.scope, key.key)));
            }
            _ => {}
        }
    }
}

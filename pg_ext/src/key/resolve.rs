//! Calls for operators: `key_resolve` gives a parked key a verdict, `key_expire` ends a lease or the delay of a
//! released key, `key_forget` deletes a key.

use super::claim::named;
use super::decide::{self, KeyDecision};
use super::event;
use super::fence::{KeyChange, NamedKey};
use super::finish::KeyAnswer;
use super::hold;
use super::record::{Advanced, Col, KeyRow, KeyStatus, PENDING};
use crate::call::{Call, shown};
use crate::clock;
use crate::error::{Error, Kind, Result};
use pgrx::pg_sys::Datum;

/// Replaces the hint of `lost`, which is for the holder of a lease.
const SHOWN: &str = "once.key_get shows the status and the attempt of the key.";

enum KeyVerdict {
    Retry,
    Finish(KeyStatus, KeyAnswer),
}

impl KeyVerdict {
    fn from_call(call: &Call) -> Result<KeyVerdict> {
        let status = match call.text(3, "verdict", 20)? {
            b"retry" => return refuse_answer(call).map(|()| KeyVerdict::Retry),
            b"complete" => KeyStatus::Completed,
            b"abort" => KeyStatus::Aborted,
            other => {
                return Err(Error::bad_argument(
                    "verdict",
                    format!("must not be \"{}\"", shown(other)),
                    "Verdicts: retry, complete, abort.",
                ));
            }
        };
        Ok(KeyVerdict::Finish(status, KeyAnswer::from_call(call, 4)?))
    }

    fn code(&self) -> u8 {
        match self {
            KeyVerdict::Retry => b'r',
            KeyVerdict::Finish(status, _) => *status as u8,
        }
    }
}

fn refuse_answer(call: &Call) -> Result<()> {
    match (4..7).find(|i| call.datum(*i).is_some()) {
        None => Ok(()),
        Some(_) => Err(Error::bad_argument(
            "response_code",
            "and the other response arguments must be null with verdict retry",
            "The next attempt gives the answer.",
        )),
    }
}

/// `once.key_resolve`.
pub fn key_resolve(call: &Call) -> Result<Datum> {
    let key = NamedKey::from_call(call)?;
    let attempt = call.i32(2, "attempt")?;
    let verdict = KeyVerdict::from_call(call)?;
    let emits = key.change(|row, now| {
        let Some(row) = row else {
            return Err(key.missing().hint(SHOWN));
        };
        if row.raw(Col::ResolvedAttempt).is_some() && row.i32(Col::ResolvedAttempt) == attempt {
            return ensure_repeated(&key, row, &verdict, attempt)
                .map(|()| (KeyChange::Nothing, false));
        }
        if row.status().finished()
            || decide::unfinished(row, now, &key.options) != KeyDecision::Parked
        {
            return Err(Error::new(
                Kind::InUse,
                format!("{} is not parked", named(key.scope, key.key)),
            )
            .hint("Only a parked key needs a verdict; key_get shows its status."));
        }
        if row.i32(Col::Attempt) != attempt {
            let why = format!("The parked attempt is {}.", row.i32(Col::Attempt));
            return Err(key.lost(why).hint(SHOWN));
        }
        apply(row, &verdict, attempt, now);
        Ok((KeyChange::Write, row.emits()))
    })?;
    if let (true, KeyVerdict::Finish(status, _)) = (emits, &verdict) {
        event::emit_all(key.id(), *status)?;
    }
    Ok(call.return_null())
}

fn apply(row: &mut KeyRow, verdict: &KeyVerdict, attempt: i32, now: i64) {
    // The new token fences off the holder of the parked attempt.
    row.put_i64(Col::Token, clock::next_token(row.i64(Col::Token)));
    row.put_advanced(Advanced::Never);
    row.put_i32(Col::ResolvedAttempt, attempt);
    row.put(Col::ResolvedVerdict, Some(Datum::from(verdict.code())));
    match verdict {
        KeyVerdict::Retry => {
            row.put_status(KeyStatus::Released);
            row.put_i32(Col::AttemptBase, attempt);
            row.put_i64(Col::LeaseUntil, now);
            row.put_look(PENDING, now);
        }
        KeyVerdict::Finish(status, answer) => answer.store(row, *status, now),
    }
}

/// Accepts a repeated verdict if this transaction has given it, with the same answer, and the key has not changed
/// since. Otherwise the same verdict raises ON006; another verdict raises ON001.
fn ensure_repeated(key: &NamedKey, row: &KeyRow, verdict: &KeyVerdict, attempt: i32) -> Result<()> {
    let stored = row.raw(Col::ResolvedVerdict).map_or(0, |d| d.value() as u8);
    if stored != verdict.code() {
        return Err(key
            .lost("Another verdict was given for this attempt.")
            .hint(SHOWN));
    }
    let as_left = match verdict {
        KeyVerdict::Retry => {
            row.status() == KeyStatus::Released && row.i32(Col::Attempt) == attempt
        }
        KeyVerdict::Finish(status, answer) => answer.is_stored(row, *status),
    };
    if row.is_ours() && as_left {
        return Ok(());
    }
    Err(Error::already_done(
        format!(
            "attempt {attempt} of {} has this verdict already",
            named(key.scope, key.key)
        ),
        "key_get shows the state of the key.",
    ))
}

/// `once.key_expire`. The token of a lease stays valid: until the next claim the holder may still write.
pub fn key_expire(call: &Call) -> Result<Datum> {
    let key = NamedKey::from_call(call)?;
    let is_expired = key.change(|row, now| match row {
        Some(row)
            if matches!(
                decide::unfinished(row, now, &key.options),
                KeyDecision::InProgress { .. }
            ) =>
        {
            hold::put_lease(row, now)?;
            Ok((KeyChange::Write, true))
        }
        _ => Ok((KeyChange::Nothing, false)),
    })?;
    Ok(Datum::from(is_expired))
}

/// `once.key_forget`.
pub fn key_forget(call: &Call) -> Result<Datum> {
    let key = NamedKey::from_call(call)?;
    let is_deleted = key.change(|row, now| match row {
        None => Ok((KeyChange::Nothing, false)),
        Some(row) if row.status() == KeyStatus::Running && now < row.i64(Col::LeaseUntil) => {
            Err(Error::new(
                Kind::InUse,
                format!("{} is held by a live lease", named(key.scope, key.key)),
            )
            .hint("Let its holder finish or release it. If the holder is dead, end its lease with once.key_expire."))
        }
        Some(_) => Ok((KeyChange::Delete, true)),
    })?;
    Ok(Datum::from(is_deleted))
}

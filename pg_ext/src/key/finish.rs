//! Writes that end the lease: `key_complete`, `key_abort`, `key_release`, `key_park`.

use super::event;
use super::fence::{FencedKey, KeyChange};
use super::record::{Col, KeyRow, KeyStatus, PENDING};
use crate::call::Call;
use crate::clock;
use crate::error::{Error, Result};
use pgrx::pg_sys::Datum;

/// The final answer of a key.
pub struct KeyAnswer {
    code: i32,
    body: Option<Datum>,
    headers: Option<Datum>,
}

impl KeyAnswer {
    /// Reads response_code, response_body and response_headers from argument `i` on.
    pub fn from_call(call: &Call, i: usize) -> Result<KeyAnswer> {
        Ok(KeyAnswer {
            code: call.i32(i, "response_code")?,
            body: call.datum(i + 1),
            headers: call.datum(i + 2),
        })
    }

    /// Finishes the row. In the first lease of a key, with a small answer, this can be a HOT update.
    pub fn store(&self, row: &mut KeyRow, status: KeyStatus, now: i64) {
        row.put_i32(Col::ResponseCode, self.code);
        row.put(Col::ResponseBody, self.body);
        row.put(Col::ResponseHeaders, self.headers);
        row.put_finished(status, now);
    }

    /// Whether the row has this status and exactly this answer.
    pub fn is_stored(&self, row: &KeyRow, status: KeyStatus) -> bool {
        let same =
            |stored: Option<&[u8]>, given: Option<Datum>| stored == given.map(crate::call::varlena);
        row.status() == status
            && row.i32(Col::ResponseCode) == self.code
            && same(row.bytes(Col::ResponseBody), self.body)
            && same(row.bytes(Col::ResponseHeaders), self.headers)
    }
}

/// `once.key_complete`.
pub fn key_complete(call: &Call) -> Result<Datum> {
    finish(call, KeyStatus::Completed)
}

/// `once.key_abort`.
pub fn key_abort(call: &Call) -> Result<Datum> {
    finish(call, KeyStatus::Aborted)
}

fn finish(call: &Call, status: KeyStatus) -> Result<Datum> {
    let fenced = FencedKey::from_call(call)?;
    let answer = KeyAnswer::from_call(call, 3)?;
    let emits = fenced.change(
        |row| (row.is_ours() && answer.is_stored(row, status)).then_some(false),
        |row, now| {
            answer.store(row, status, now);
            Ok((KeyChange::Write, row.emits()))
        },
    )?;
    if emits {
        event::emit_all(fenced.named.id(), status)?;
    }
    Ok(call.return_null())
}

/// `once.key_release`.
pub fn key_release(call: &Call) -> Result<Datum> {
    let fenced = FencedKey::from_call(call)?;
    let error = call.note(3);
    let retry_after = call.interval(4, "retry_after")?;
    fenced.change(
        |row| (row.status() == KeyStatus::Released).then_some(()),
        |row, now| {
            let due = now + retry_after.unwrap_or(0);
            row.put_status(KeyStatus::Released);
            row.put_i64(Col::LeaseUntil, due);
            row.put_look(PENDING, due);
            row.put_text(Col::Note, error);
            Ok((KeyChange::Write, ()))
        },
    )?;
    Ok(call.return_null())
}

/// `once.key_park`.
pub fn key_park(call: &Call) -> Result<Datum> {
    let fenced = FencedKey::from_call(call)?;
    let reason = call.note(3).unwrap_or_default();
    if reason.is_empty() {
        let problem = "must not be null or empty";
        return Err(Error::bad_argument(
            "reason",
            problem,
            "Say what happened: an operator reads it.",
        ));
    }
    fenced.change(
        |row| (row.status() == KeyStatus::Parked).then_some(()),
        |row, _| {
            row.put_status(KeyStatus::Parked);
            row.put_look(PENDING, clock::INFINITY);
            row.put_text(Col::Note, Some(reason));
            Ok((KeyChange::Write, ()))
        },
    )?;
    Ok(call.return_null())
}

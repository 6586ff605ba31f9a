//! once.delivery: failed attempts. `outbox_deliveries` and metrics read them. An event's
//! failed attempts are deleted with the batch in which it was acked (retire/tidy.rs), or when its dead letter is
//! discarded or expires. subscriber_drop deletes those of its subscriber.

use super::leave::{Leaving, Reason};
use super::topic::Subscriber;
use crate::call::Call;
use crate::error::Result;
use crate::row::{self, Rows};
use crate::spi::{self, Kept};
use crate::table::{Name, ScanKey, Snapshot, Table};
use pgrx::pg_sys::{
    self, Datum, INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, TEXTOID, TIMESTAMPTZOID,
};
use std::ffi::CStr;

pub const TABLE: Name = c"delivery";
pub const BY_EVENT: Name = c"delivery_pkey";

/// Columns of once.delivery, from 1.
#[derive(Clone, Copy)]
pub enum Col {
    At = 4,
    Attempt,
    Kind,
    Error,
}

const NOTE: &CStr = c"
    INSERT INTO once.delivery (subscriber_id, event_id, token, at, attempt, kind, error)
    SELECT $1, u.event_id, $7, $4, u.attempt, $5, $6 FROM unnest($2, $3) u (event_id, attempt)";

static NOTED: Kept = Kept::new(
    NOTE,
    &[
        INT4OID,
        INT8ARRAYOID,
        INT4ARRAYOID,
        TIMESTAMPTZOID,
        TEXTOID,
        TEXTOID,
        INT8OID,
    ],
);

/// Inserts a failed attempt for each event of `leaving` that has `counted` set.
pub fn note(
    sub: &Subscriber,
    token: i64,
    leaving: &[Leaving],
    reason: &Reason,
    now: i64,
) -> Result<()> {
    let failed = || leaving.iter().filter(|l| l.counted).map(|l| &l.event);
    if failed().next().is_none() {
        return Ok(());
    }
    let ids: Vec<i64> = failed().map(|e| e.id).collect();
    let args = [
        Some(Datum::from(sub.id)),
        Some(row::i64s(&ids)),
        Some(row::array(
            failed().map(|e| e.failures.into()),
            pg_sys::INT4OID,
        )),
        Some(Datum::from(now)),
        Some(row::text(reason.kind)),
        reason.error.map(row::text),
        Some(Datum::from(token)),
    ];
    spi::query_latest(&NOTED, &args).map(drop)
}

/// `once.outbox_deliveries`.
pub fn outbox_deliveries(call: &Call) -> Result<Datum> {
    let subscriber = Subscriber::named_in(call)?;
    let event_id = call.i64(2, "event_id")?;
    let rows = Rows::begin(call);
    let (table, snapshot) = (Table::to_read(TABLE)?, Snapshot::now());
    let keys = &mut [ScanKey::i32(1, subscriber.id), ScanKey::i64(2, event_id)];
    let mut scan = table.scan(BY_EVENT, keys, &snapshot)?;
    while let Some(slot) = scan.advance() {
        rows.push(
            &[Col::Attempt, Col::At, Col::Kind, Col::Error].map(|col| slot.column(col as usize)),
        );
    }
    Ok(call.return_null())
}

//! `key_list`: the steps of a scope's requests, for comparing with the other side's ledger.
//!
//! Unless the clock steps back, a key's look_at is never earlier than its created_at. So the list reads the index
//! key_look from `since` on. The call raises an error if there are more than max rows.

use super::identity::{KeyId, derived_key};
use super::inspect::status;
use super::record::{BY_LOOK, Col, KeyRow, ORDINARY, PENDING, TABLE, id_datum, lane};
use super::scope::ScopeOptions;
use super::step::{self, StepRow};
use crate::call::{Call, SCOPE_MAX, shown};
use crate::clock;
use crate::error::{Error, Result};
use crate::row::{self, Rows};
use crate::table::{ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;

const MOST_LISTED: i32 = 100_000;
const STATUS_MAX: usize = 20;
const STATUSES: [&[u8]; 5] = [b"running", b"released", b"parked", b"finished", b"gone"];
/// `-infinity`.
const EVER: i64 = i64::MIN;

/// The keys that the call asks for.
struct ListWindow<'a> {
    scope: &'a [u8],
    since: i64,
    until: i64,
    status: Option<&'a [u8]>,
    options: ScopeOptions,
    now: i64,
}

/// The rows so far, and how many more the call allows.
struct KeyListing {
    rows: Rows,
    left: i32,
    max: i32,
}

/// `once.key_list`.
pub fn key_list(call: &Call) -> Result<Datum> {
    let scope = call.text(0, "scope", SCOPE_MAX)?;
    let time = |i| call.datum(i).map(|d: Datum| d.value() as i64);
    let window = ListWindow {
        scope,
        since: time(1).unwrap_or(EVER),
        until: time(2).unwrap_or(clock::INFINITY),
        status: status_of(call)?,
        options: ScopeOptions::for_caller(scope)?,
        now: clock::now_us()?,
    };
    let max = call.limit(4, "max", MOST_LISTED)?;
    let mut listing = KeyListing {
        rows: Rows::begin(call),
        left: max,
        max,
    };
    let snapshot = Snapshot::now();
    let table = Table::to_read(TABLE)?;
    // The lane ORDINARY has all finished keys. It is read only if a key in it can have the asked status.
    let pending_only = match window.status {
        Some(b"released") => true,
        // With on_expiry 'park' or max_attempts 1, a key in its first lease is parked when the lease has expired.
        Some(b"parked") => !window.options.park_on_expiry && window.options.max_attempts != Some(1),
        _ => false,
    };
    let lanes: &[u8] = match pending_only {
        true => &[PENDING],
        false => &[PENDING, ORDINARY],
    };
    for name in lanes {
        let from = window.since.saturating_sub(1);
        let keys = &mut lane(scope, *name, from, clock::INFINITY);
        let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
        while let Some(slot) = scan.advance() {
            window.list(&KeyRow::borrow(slot), &snapshot, &mut listing)?;
        }
    }
    Ok(call.return_null())
}

fn status_of(call: &Call) -> Result<Option<&[u8]>> {
    let asked = call.opt_text(3, "in_status", STATUS_MAX)?;
    match asked.filter(|asked| !STATUSES.contains(asked)) {
        None => Ok(asked),
        Some(unknown) => Err(Error::bad_argument(
            "in_status",
            format!("is \"{}\"", shown(unknown)),
            "Give running, released, parked, finished or gone, or NULL for any status.",
        )),
    }
}

impl ListWindow<'_> {
    /// Adds a row for each step of the key, or one row if it has no steps.
    fn list(&self, row: &KeyRow, snapshot: &Snapshot, listing: &mut KeyListing) -> Result<()> {
        let created = row.i64(Col::CreatedAt);
        let inside = created >= self.since && created < self.until;
        if !inside || self.options.is_over(row, self.now) {
            return Ok(());
        }
        let status = status(&self.options, row, self.now);
        if self.status.is_some_and(|asked| asked != status) {
            return Ok(());
        }
        // The steps of a gone key are left out even before a sweep deletes them.
        let gone = status == b"gone";
        let mut any = false;
        if !gone {
            let table = Table::to_read(step::TABLE)?;
            let id = KeyId::hashed(self.scope, row.bytes(Col::Key).unwrap_or_default());
            let keys = &mut [ScanKey::uuid(1, id_datum(&id))];
            let mut scan = table.scan(step::BY_STEP, keys, snapshot)?;
            while let Some(slot) = scan.advance() {
                let step = StepRow::borrow(slot);
                listing.add(&values(self.scope, row, status, Some(&step)))?;
                any = true;
            }
        }
        match any {
            true => Ok(()),
            false => listing.add(&values(self.scope, row, status, None)),
        }
    }
}

impl KeyListing {
    fn add(&mut self, values: &[Option<Datum>]) -> Result<()> {
        if self.left == 0 {
            return Err(Error::bad_argument(
                "max",
                format!("is {}, and there are more rows than that", self.max),
                "Make the time from since to until shorter, or max larger (to 100000): a list with rows missing would \
                 hide differences.",
            ));
        }
        self.left -= 1;
        self.rows.push(values);
        Ok(())
    }
}

fn values(
    scope: &[u8],
    row: &KeyRow,
    status: &[u8],
    step: Option<&StepRow>,
) -> [Option<Datum>; 15] {
    let of_step = |col| step.and_then(|step| step.raw(col));
    let derived = step.map(|step| {
        let name = step.bytes(step::Col::Step).unwrap_or_default();
        let key = row.bytes(Col::Key).unwrap_or_default();
        let derived = derived_key(scope, key, name, step.i32(step::Col::Version));
        row::text(derived.as_bytes())
    });
    let live = |col| row.raw(col).filter(|_| status != b"gone");
    [
        row.raw(Col::Key),
        Some(row::text(status)),
        row.raw(Col::Attempt),
        of_step(step::Col::Step),
        of_step(step::Col::Version),
        derived,
        step.map(|step| Datum::from(step.raw(step::Col::DoneAt).is_some())),
        of_step(step::Col::Result),
        of_step(step::Col::Begun),
        of_step(step::Col::FirstAt),
        of_step(step::Col::DoneAt),
        row.raw(Col::CreatedAt),
        row.raw(Col::FinishedAt),
        live(Col::ResponseCode),
        live(Col::Note),
    ]
}

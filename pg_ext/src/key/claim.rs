//! `key_claim`.
//!
//! A call reads first: an answer that needs no claim (replay, in progress, ...) costs one index probe and no write. A
//! claim waits for no other claim and no row lock. It holds a try-lock of the key from its last read to its write. A
//! dirty snapshot shows whether another open transaction has inserted or deleted the row.

use super::decide::{self, KeyDecision};
use super::fingerprint::Request;
use super::identity::KeyId;
use super::record::{Advanced, Col, KeyRow, KeyStatus, ORDINARY, PENDING, TABLE, WHOLE, id_datum};
use super::scope::ScopeOptions;
use super::step;
use crate::call::{Call, HOLDER_MAX, KEY_MAX, SCOPE_MAX, shown};
use crate::clock::{self, DAY_US};
use crate::counters::{self, ClaimOutcome};
use crate::error::{Error, Result};
use crate::row::{self, Shape};
use crate::settings;
use crate::shard;
use crate::table::{self, Scan, Snapshot, Table, Wait, WriteOutcome};
use crate::trylock::TryLock;
use pgrx::pg_sys::{self, Datum};

/// A claim that has lost this many races answers in_progress.
const MAX_TRIES: usize = 8;
pub const STARTED: &[u8] = b"started";

static SHAPE: Shape = Shape::new(&[
    (c"outcome", pg_sys::TEXTOID),
    (c"token", pg_sys::INT8OID),
    (c"attempt", pg_sys::INT4OID),
    (c"recovery_point", pg_sys::TEXTOID),
    (c"state", pg_sys::JSONOID),
    (c"response_code", pg_sys::INT4OID),
    (c"response_body", pg_sys::JSONOID),
    (c"response_headers", pg_sys::JSONOID),
    (c"lease_left", pg_sys::INTERVALOID),
    (c"retry_after", pg_sys::INTERVALOID),
]);

/// `once.key_claim`.
pub fn key_claim(call: &Call) -> Result<Datum> {
    let scope = call.text(0, "scope", SCOPE_MAX)?;
    let claim = KeyClaim {
        key: call.text(1, "key", KEY_MAX)?,
        scope,
        request: Request {
            json: call.datum(2),
            hash: call.bytes(6).map(callers_hash).transpose()?,
        },
        lease: call.interval(3, "lease")?,
        ttl: call.interval(4, "ttl")?,
        holder: call.opt_text(5, "holder", HOLDER_MAX)?,
        options: ScopeOptions::for_caller(scope)?,
    };
    shard::ensure_home(scope, claim.key)?;
    claim.run()
}

fn callers_hash(bytes: &[u8]) -> Result<&[u8; 32]> {
    bytes.try_into().map_err(|_| {
        Error::bad_argument(
            "fingerprint",
            format!("must be exactly 32 bytes, not {}", bytes.len()),
            "Give the 32 bytes of a SHA-256: sha256(body).",
        )
    })
}

struct KeyClaim<'a> {
    scope: &'a [u8],
    key: &'a [u8],
    request: Request<'a>,
    lease: Option<i64>,
    ttl: Option<i64>,
    holder: Option<&'a [u8]>,
    options: ScopeOptions,
}

impl KeyClaim<'_> {
    fn run(&self) -> Result<Datum> {
        let id = KeyId::hashed(self.scope, self.key);
        for _ in 0..MAX_TRIES {
            if let Some(answer) = self.try_once(id)? {
                return Ok(answer);
            }
        }
        Ok(in_progress(None, settings::LEAST_RETRY_US))
    }

    /// Reads the row and answers, or claims the key. None: another session changed the row meanwhile.
    fn try_once(&self, id: KeyId) -> Result<Option<Datum>> {
        let table = Table::to_read(TABLE)?;
        let snapshot = Snapshot::now();
        let mut scan = KeyRow::scan(&table, id, &snapshot)?;
        if scan.advance().is_none() {
            return self.insert(id, scan);
        }
        let Some(mut row) = scan.into_present().map(KeyRow::load) else {
            return Ok(None);
        };
        let now = clock::now_us()?;
        let decision = decide::decide(&row, now, &self.options, &self.request, self.holder)?;
        match decision {
            KeyDecision::TakeOver | KeyDecision::Fresh => {}
            other => return Ok(Some(answer(other, &row, now))),
        }
        let table = Table::to_write(TABLE)?;
        let Some(lock) = TryLock::acquire(id.lock_hash()) else {
            return Ok(Some(self.claimed_elsewhere()));
        };
        let taken = match decision {
            KeyDecision::Fresh => self.renew(&table, &mut row, &snapshot)?,
            _ => take_over(
                &table,
                &mut row,
                &snapshot,
                &self.options,
                self.lease,
                self.holder,
            )?,
        };
        drop(lock);
        match taken {
            WriteOutcome::Done => Ok(Some(claimed(&row, clock::now_us()?))),
            WriteOutcome::Busy => Ok(Some(self.claimed_elsewhere())),
            WriteOutcome::Changed if table::above_read_committed() => Err(self.lost_race()),
            WriteOutcome::Changed => Ok(None),
        }
    }

    /// The first claim of a key; `scan` has found no row.
    fn insert(&self, id: KeyId, scan: Scan) -> Result<Option<Datum>> {
        let table = Table::to_write(TABLE)?;
        let Some(lock) = TryLock::acquire(id.lock_hash()) else {
            return Ok(Some(self.claimed_elsewhere()));
        };
        let dirty = Snapshot::dirty();
        let mut scan = scan.again(&dirty);
        let found = scan.advance().is_some();
        if found && dirty.undecided_xid().is_some() {
            return Ok(Some(self.claimed_elsewhere()));
        }
        // Uncommitted rows were answered above, and the lock excludes other inserts: a row found here is committed.
        let latest = Snapshot::latest();
        if found || scan.again(&latest).advance().is_some() {
            return match table::above_read_committed() {
                true => Err(self.lost_race()),
                false => Ok(None),
            };
        }
        // key_abandon relies on this order: the table is opened for writing, then the clock is read.
        let now = clock::now_us()?;
        let mut row = KeyRow::empty();
        row.put(Col::Id, Some(id_datum(&id)));
        self.fill(&mut row, now)?;
        row.insert(&table)?;
        drop(lock);
        Ok(Some(claimed(&row, now)))
    }

    /// Makes a first claim in an old row whose ttl and gone_for are over.
    fn renew(&self, table: &Table, row: &mut KeyRow, snapshot: &Snapshot) -> Result<WriteOutcome> {
        let Some(tid) = row.tid() else {
            return Ok(WriteOutcome::Changed);
        };
        let locked = table.lock(tid, snapshot, Wait::No)?;
        if locked != WriteOutcome::Done {
            return Ok(locked);
        }
        step::forget_all(KeyId::hashed(self.scope, self.key))?;
        self.fill(row, clock::now_us()?)?;
        row.update_at(table, tid)
    }

    /// Sets every column of a first claim except the id.
    fn fill(&self, row: &mut KeyRow, now: i64) -> Result<()> {
        let lease = self.options.granted_lease(self.lease);
        let ttl = self.ttl.unwrap_or(self.options.ttl_us);
        row.put_i64(Col::Token, clock::next_token(row.i64(Col::Token)));
        row.put_i64(Col::LeaseUntil, now + lease);
        row.put_i64(Col::ClaimedAt, now);
        row.put_i64(Col::CreatedAt, now);
        row.put_look(ORDINARY, now + lease);
        // key_reap notices a lowered gone_for only at reap_at. So a long gone_for is cut here: to the ttl, or to a day.
        let gone_for = self.options.gone_for_us.min(ttl.max(DAY_US));
        row.put_i64(
            Col::ReapAt,
            now.saturating_add(ttl).saturating_add(gone_for),
        );
        row.put_i64(Col::TtlUs, ttl);
        row.put_advanced(Advanced::Never);
        row.put_i32(Col::Attempt, 1);
        row.put_i32(Col::AttemptBase, 0);
        row.put_status(KeyStatus::Running);
        row.put(Col::ReapStage, Some(Datum::from(WHOLE)));
        row.put_emits(false);
        row.put_text(Col::Scope, Some(self.scope));
        row.put_text(Col::Key, Some(self.key));
        row.put_text(Col::RecoveryPoint, Some(STARTED));
        let fingerprint = self.request.fingerprint()?;
        row.put_text(Col::Fingerprint, fingerprint.as_ref().map(|f| f.as_slice()));
        row.put_text(Col::Holder, self.holder);
        let kept = self.request.json.filter(|_| self.options.keep_request);
        row.put(Col::Request, kept);
        for col in [
            Col::State,
            Col::FinishedAt,
            Col::ResponseCode,
            Col::ResponseBody,
            Col::ResponseHeaders,
            Col::Note,
            Col::ResolvedAttempt,
            Col::ResolvedVerdict,
        ] {
            row.put(col, None);
        }
        Ok(())
    }

    /// in_progress: another session is claiming the key, or has it locked.
    fn claimed_elsewhere(&self) -> Datum {
        in_progress(None, self.options.retry_after(i64::MAX))
    }

    fn lost_race(&self) -> Error {
        Error::retry_transaction(named(self.scope, self.key))
    }
}

/// Begins the next attempt of an unfinished key; `row` is the new row if the answer is Done. The caller holds the
/// try-lock.
pub fn take_over(
    table: &Table,
    row: &mut KeyRow,
    snapshot: &Snapshot,
    options: &ScopeOptions,
    lease: Option<i64>,
    holder: Option<&[u8]>,
) -> Result<WriteOutcome> {
    let Some(tid) = row.tid() else {
        return Ok(WriteOutcome::Changed);
    };
    let locked = table.lock(tid, snapshot, Wait::No)?;
    if locked != WriteOutcome::Done {
        return Ok(locked);
    }
    let now = clock::now_us()?;
    let lease = options.granted_lease(lease);
    row.put_i64(Col::Token, clock::next_token(row.i64(Col::Token)));
    row.put_i64(Col::LeaseUntil, now + lease);
    row.put_i64(Col::ClaimedAt, now);
    row.put_look(PENDING, now + lease);
    row.put_advanced(Advanced::Never);
    row.put_i32(Col::Attempt, row.i32(Col::Attempt).saturating_add(1));
    row.put_status(KeyStatus::Running);
    row.put_text(Col::Holder, holder);
    row.update_at(table, tid)
}

/// The key as errors name it.
pub fn named(scope: &[u8], key: &[u8]) -> String {
    format!("key \"{}\" of scope \"{}\"", shown(key), shown(scope))
}

fn answer(decision: KeyDecision, row: &KeyRow, now: i64) -> Datum {
    match decision {
        KeyDecision::Held => claimed(row, now),
        KeyDecision::Replayed => counted(
            ClaimOutcome::Replayed,
            &[
                (5, row.raw(Col::ResponseCode)),
                (6, row.raw(Col::ResponseBody)),
                (7, row.raw(Col::ResponseHeaders)),
            ],
        ),
        KeyDecision::InProgress {
            lease_left_us,
            retry_after_us,
        } => in_progress(lease_left_us, retry_after_us),
        KeyDecision::Mismatched => counted(ClaimOutcome::Mismatched, &[]),
        KeyDecision::Gone => counted(ClaimOutcome::Gone, &[]),
        // `try_once` never calls this with Fresh or TakeOver.
        KeyDecision::Parked | KeyDecision::Fresh | KeyDecision::TakeOver => {
            counted(ClaimOutcome::Parked, &[(2, row.raw(Col::Attempt))])
        }
    }
}

fn in_progress(lease_left_us: Option<i64>, retry_after_us: i64) -> Datum {
    let lease_left = (8, lease_left_us.map(clock::interval_datum));
    let retry_after = (9, Some(clock::interval_datum(retry_after_us)));
    counted(ClaimOutcome::InProgress, &[lease_left, retry_after])
}

fn claimed(row: &KeyRow, now: i64) -> Datum {
    let (ended, filled) = granted(row, now);
    counted(ended, &filled)
}

/// The result row of a claim that has the lease.
pub fn claim_values(row: &KeyRow, now: i64) -> [Option<Datum>; 10] {
    let (ended, filled) = granted(row, now);
    values(ended, &filled)
}

/// `claimed` for a first attempt that has not advanced, else `resumed`.
fn granted(row: &KeyRow, now: i64) -> (ClaimOutcome, [Filled; 5]) {
    let ended = match row.i32(Col::Attempt) > 1 || row.advanced() != Advanced::Never {
        true => ClaimOutcome::Resumed,
        false => ClaimOutcome::Claimed,
    };
    let lease_left = clock::interval_datum(row.i64(Col::LeaseUntil) - now);
    let filled = [
        (1, row.raw(Col::Token)),
        (2, row.raw(Col::Attempt)),
        (3, row.raw(Col::RecoveryPoint)),
        (4, row.raw(Col::State)),
        (8, Some(lease_left)),
    ];
    (ended, filled)
}

/// The number of a column of the answer, from 0, and its value.
type Filled = (usize, Option<Datum>);

fn values(ended: ClaimOutcome, filled: &[Filled]) -> [Option<Datum>; 10] {
    let mut values = [None; 10];
    values[0] = Some(row::text(ended.name().as_bytes()));
    for (column, value) in filled {
        values[*column] = *value;
    }
    values
}

fn counted(ended: ClaimOutcome, filled: &[Filled]) -> Datum {
    counters::count(ended);
    SHAPE.row(&values(ended, filled))
}

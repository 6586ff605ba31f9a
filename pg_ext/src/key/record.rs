//! One row of `once.key`, with names for its columns, in the order of `sql/key.sql`.

use super::identity::KeyId;
use crate::call::{varlena, varlena_size};
use crate::error::Result;
use crate::row;
use crate::table::{self, Name, Scan, ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;

pub const TABLE: Name = c"key";
pub const BY_ID: Name = c"key_pkey";
pub const BY_LOOK: Name = c"key_look";

const COLUMNS: usize = 29;
/// The longest recovery point, in characters.
pub const POINT_MAX: usize = 100;

/// Lane of finished keys, and of keys in their first lease. The claim sets look_at to the end of this lease. A call
/// that shortens the lease sets look_at to the new end, if that is earlier. A key that finishes in the lane PENDING
/// moves here, and its look_at becomes its finished_at.
pub const ORDINARY: u8 = b'0';
/// Lane of unfinished keys that were claimed again, released or parked, or that a sweep has moved here. look_at is
/// the end of the lease, or the time when the key is due, or infinity for a key that key_park has parked.
/// key_take_abandoned sets a later look_at for a key that on_expiry or max_attempts parks.
pub const PENDING: u8 = b'1';

/// Reap stage of most keys. From reap_at on, key_reap reads the row, and deletes it if ttl and gone_for are over.
pub const WHOLE: u8 = b'0';
/// Reap stage of a key that was finished with more than LARGE bytes. At reap_at, the key's expiry, key_tombstone
/// empties the row, or deletes it if gone_for is over, too.
const TO_EMPTY: u8 = b'1';
/// The bytes that `fillfactor` leaves on a page for new row versions. A larger version rarely fits on the page, so its
/// update is rarely HOT. An update that changes the indexed reap_at is never HOT. Therefore put_finished changes
/// reap_at only in rows with more than LARGE bytes.
const LARGE: usize = 800;

/// Column numbers, from 1.
#[derive(Clone, Copy)]
pub enum Col {
    Token = 1,
    LeaseUntil,
    ClaimedAt,
    CreatedAt,
    LookAt,
    ReapAt,
    TtlUs,
    Attempt,
    AttemptBase,
    KeyStatus,
    ReapStage,
    LookLane,
    Emits,
    Advanced,
    Id,
    Scope,
    Key,
    RecoveryPoint,
    Fingerprint,
    Holder,
    State,
    FinishedAt,
    ResponseCode,
    ResponseBody,
    ResponseHeaders,
    Note,
    Request,
    ResolvedAttempt,
    ResolvedVerdict,
}

/// The status column. The answer of a claim also depends on the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyStatus {
    Running = b'r',
    Released = b'l',
    Parked = b'p',
    Completed = b'c',
    Aborted = b'a',
    Tombstone = b'g',
}

impl KeyStatus {
    fn from_code(code: u8) -> KeyStatus {
        match code {
            b'r' => KeyStatus::Running,
            b'l' => KeyStatus::Released,
            b'c' => KeyStatus::Completed,
            b'a' => KeyStatus::Aborted,
            b'g' => KeyStatus::Tombstone,
            _ => KeyStatus::Parked,
        }
    }

    pub fn finished(self) -> bool {
        matches!(
            self,
            KeyStatus::Completed | KeyStatus::Aborted | KeyStatus::Tombstone
        )
    }
}

/// Whether the present token has advanced the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Advanced {
    Never = b'0',
    /// In the present transaction.
    Now = b'1',
    /// In an earlier, committed transaction.
    Earlier = b'2',
}

table::columns!(Col);

/// The scan keys of a lane: look_at after `from`, at most `to`.
pub fn lane(scope: &[u8], name: u8, from: i64, to: i64) -> [ScanKey; 4] {
    [
        ScanKey::text(1, row::text(scope)),
        ScanKey::char(2, name),
        ScanKey::after(3, from),
        ScanKey::until(3, to),
    ]
}

/// The scope of the first entry of the index key_look in this range. The entry may belong to a deleted key.
pub fn first_scope(table: &Table, range: ScanKey, snapshot: &Snapshot) -> Result<Option<Vec<u8>>> {
    let name = |entry: &[Option<Datum>]| entry[0].map(|d| varlena(d).to_vec());
    let found = table.first_entry(BY_LOOK, &mut [range], snapshot, name)?;
    Ok(found.flatten())
}

pub type KeyRow = table::Record<Col, COLUMNS>;

impl KeyRow {
    /// The row of a key under a snapshot.
    pub fn find(table: &Table, id: KeyId, snapshot: &Snapshot) -> Result<Option<KeyRow>> {
        let found = KeyRow::scan(table, id, snapshot)?.into_next();
        Ok(found.map(KeyRow::load))
    }

    pub fn scan<'s>(table: &Table, id: KeyId, snapshot: &'s Snapshot) -> Result<Scan<'s>> {
        table.scan(BY_ID, &mut [ScanKey::uuid(1, id_datum(&id))], snapshot)
    }

    pub fn put_status(&mut self, status: KeyStatus) {
        self.put(Col::KeyStatus, Some(Datum::from(status as u8)));
    }

    /// Sets the lane, and look_at, the time when key_abandon or a completer looks at the key.
    pub fn put_look(&mut self, lane: u8, at: i64) {
        self.put(Col::LookLane, Some(Datum::from(lane)));
        self.put_i64(Col::LookAt, at);
    }

    pub fn is_pending(&self) -> bool {
        self.raw(Col::LookLane).map_or(0, |d| d.value() as u8) == PENDING
    }

    pub fn status(&self) -> KeyStatus {
        KeyStatus::from_code(self.raw(Col::KeyStatus).map_or(0, |d| d.value() as u8))
    }

    /// Whether a step has registered events.
    pub fn emits(&self) -> bool {
        self.raw(Col::Emits).is_some_and(|d| d.value() != 0)
    }

    pub fn put_emits(&mut self, emits: bool) {
        self.put(Col::Emits, Some(Datum::from(emits)));
    }

    /// Marks the row as finished. The caller has put the answer into the row before.
    pub fn put_finished(&mut self, status: KeyStatus, now: i64) {
        self.put_status(status);
        self.put_i64(Col::FinishedAt, now);
        if self.is_pending() {
            self.put_look(ORDINARY, now);
        }
        let contents = [
            Col::State,
            Col::Request,
            Col::ResponseBody,
            Col::ResponseHeaders,
        ];
        let sizes = contents.into_iter().filter_map(|col| self.raw(col));
        if sizes.map(varlena_size).sum::<usize>() > LARGE {
            self.put(Col::ReapStage, Some(Datum::from(TO_EMPTY)));
            self.put_i64(Col::ReapAt, self.expires_at());
        }
    }

    /// A stored `Now` reads as `Now` in the transaction that wrote the row, and as `Earlier` in later transactions.
    /// A later transaction that writes the row again would read the old `Now` as its own. To prevent this, fence.rs
    /// stores `Earlier` instead of the old `Now`.
    pub fn advanced(&self) -> Advanced {
        match self.raw(Col::Advanced).map_or(0, |d| d.value() as u8) {
            b'0' => Advanced::Never,
            b'1' if self.is_ours() => Advanced::Now,
            _ => Advanced::Earlier,
        }
    }

    pub fn put_advanced(&mut self, advanced: Advanced) {
        self.put(Col::Advanced, Some(Datum::from(advanced as u8)));
    }

    /// The time until which a finished key is replayed.
    pub fn expires_at(&self) -> i64 {
        self.i64(Col::FinishedAt)
            .saturating_add(self.i64(Col::TtlUs))
    }

    /// Whether the key is finished and past its ttl.
    pub fn is_gone(&self, now: i64) -> bool {
        self.status().finished() && now >= self.expires_at()
    }
}

pub fn id_datum(id: &KeyId) -> Datum {
    row::uuid(id.bytes())
}

//! A message or a step of a saga, and its row in `once.inbox`.
//!
//! A row is found by a hash of its names. Every version computes this hash in the same way. A lock serializes the
//! inserts of a row. The number of this lock is a part of the hash. A message's hashed bytes begin with NUL. A key's
//! hashed bytes begin with its scope, which contains no NUL. Therefore a key and a message of the same names have
//! different locks.

use crate::call::{Call, KEY_MAX, SCOPE_MAX, shown, utf8};
use crate::clock::{self, DAY_US};
use crate::digest::{first_16, first_64_bits};
use crate::error::Result;
use crate::key::scope::ScopeOptions;
use crate::row;
use crate::shard;
use crate::table::{self, Name, ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;
use sha2::{Digest, Sha256};

pub const TABLE: Name = c"inbox";
const BY_ID: Name = c"inbox_pkey";
/// The ttl of a call that gives none.
const TTL_US: i64 = 30 * DAY_US;

/// Columns in the order of `sql/inbox.sql`.
#[derive(Clone, Copy)]
pub enum Col {
    ExpiresAt = 1,
    Status,
    Id,
    Scope,
    Name,
    Step,
    Verdict,
}

table::columns!(Col);

pub type InboxRow = table::Record<Col, 7>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Message = b'm',
    Acted = b'a',
    Compensated = b'c',
    Skipped = b's',
}

impl Status {
    fn from_code(code: u8) -> Status {
        match code {
            b'm' => Status::Message,
            b'a' => Status::Acted,
            b'c' => Status::Compensated,
            _ => Status::Skipped,
        }
    }
}

impl InboxRow {
    pub fn status(&self) -> Status {
        Status::from_code(self.raw(Col::Status).map_or(0, |d| d.value() as u8))
    }

    pub fn put_status(&mut self, status: Status) {
        self.put(Col::Status, Some(Datum::from(status as u8)));
    }
}

/// A message, or a step of a saga.
pub struct Entry<'a> {
    scope: &'a [u8],
    name: &'a [u8],
    step: Option<&'a [u8]>,
    id: [u8; 16],
}

impl<'a> Entry<'a> {
    /// The message of arguments 0 and 1. Raises 42501 if the caller is no member of the role that owns the scope.
    pub fn message(call: &'a Call) -> Result<Entry<'a>> {
        let scope = call.text(0, "scope", SCOPE_MAX)?;
        let name = call.text(1, "message_id", KEY_MAX)?;
        Entry::new(scope, name, None)
    }

    /// The step of arguments 0 to 2.
    pub fn step(call: &'a Call) -> Result<Entry<'a>> {
        let scope = call.text(0, "scope", SCOPE_MAX)?;
        let saga = call.text(1, "saga", KEY_MAX)?;
        let step = call.text(2, "step", SCOPE_MAX)?;
        Entry::new(scope, saga, Some(step))
    }

    fn new(scope: &'a [u8], name: &'a [u8], step: Option<&'a [u8]>) -> Result<Entry<'a>> {
        ScopeOptions::for_caller(scope)?;
        let what: &[u8] = match step {
            None => b"\0inbox",
            Some(_) => b"\0barrier",
        };
        let mut hash = Sha256::new().chain_update(what);
        for part in [Some(scope), Some(name), step].into_iter().flatten() {
            hash.update([0]);
            hash.update(utf8(part));
        }
        Ok(Entry {
            scope,
            name,
            step,
            id: first_16(&hash.finalize()),
        })
    }

    /// Raises ON007 if the entry belongs to another shard.
    pub fn ensure_home(&self) -> Result<()> {
        shard::ensure_home(self.scope, self.name)
    }

    /// The row as a snapshot sees it, and whether this transaction has written it.
    pub fn find(&self, table: &Table, snapshot: &Snapshot) -> Result<Option<(InboxRow, bool)>> {
        let key = &mut [ScanKey::uuid(1, row::uuid(&self.id))];
        let found = table.find(BY_ID, key, snapshot)?;
        Ok(found.map(|slot| {
            let is_ours = slot.is_ours();
            (InboxRow::load(slot), is_ours)
        }))
    }

    /// A new row with the names of the entry, not stored yet.
    pub fn fresh(&self) -> InboxRow {
        let mut fresh = InboxRow::empty();
        fresh.put(Col::Id, Some(row::uuid(&self.id)));
        fresh.put_text(Col::Scope, Some(self.scope));
        fresh.put_text(Col::Name, Some(self.name));
        fresh.put_text(Col::Step, self.step);
        fresh
    }

    /// The number of the lock that serializes the entry's inserts.
    pub fn lock_hash(&self) -> u64 {
        first_64_bits(&self.id)
    }

    /// The name of the entry in errors.
    pub fn named(&self) -> String {
        let (scope, name) = (shown(self.scope), shown(self.name));
        match self.step {
            None => format!("message \"{name}\" of scope \"{scope}\""),
            Some(step) => format!(
                "step \"{}\" of saga \"{name}\" of scope \"{scope}\"",
                shown(step)
            ),
        }
    }
}

/// The ttl of argument `i` in microseconds; `TTL_US` if the argument is NULL.
pub fn ttl(call: &Call, i: usize) -> Result<i64> {
    Ok(call.interval(i, "ttl")?.unwrap_or(TTL_US))
}

/// The end of a ttl that begins now.
pub fn expiry(ttl: i64) -> Result<i64> {
    Ok(clock::now_us()?.saturating_add(ttl))
}

//! The fence: every write with a key's token passes here.
//!
//! A write reads the row, checks that the token belongs to the present lease, and updates or locks the row in the
//! caller's transaction. So no claim takes the key over between check and commit. If the row is locked already, the
//! write waits. If another transaction has changed the row, the write reads again (READ COMMITTED) or raises 40001.

use super::claim::named;
use super::identity::KeyId;
use super::record::{Col, KeyRow, KeyStatus, TABLE};
use super::scope::ScopeOptions;
use super::step;
use crate::call::{Call, KEY_MAX, SCOPE_MAX};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::shard;
use crate::table::{self, Snapshot, Table, Wait, WriteOutcome};

/// What to do with the row after the decision.
pub enum KeyChange {
    /// Store the row as `decide` has changed it.
    Write,
    /// Lock the row, so that no other attempt takes over before the transaction ends.
    Lock,
    /// Delete the row and the key's steps.
    Delete,
    /// Neither write nor lock the row.
    Nothing,
}

/// The key that a call names, and the options of its scope.
pub struct NamedKey<'a> {
    pub scope: &'a [u8],
    pub key: &'a [u8],
    pub options: ScopeOptions,
}

impl<'a> NamedKey<'a> {
    /// Reads arguments 0 and 1; refuses a caller who is not a member of the scope's owner.
    pub fn from_call(call: &'a Call) -> Result<NamedKey<'a>> {
        let scope = call.text(0, "scope", SCOPE_MAX)?;
        let key = call.text(1, "key", KEY_MAX)?;
        let options = ScopeOptions::for_caller(scope)?;
        Ok(NamedKey {
            scope,
            key,
            options,
        })
    }

    pub fn id(&self) -> KeyId {
        KeyId::hashed(self.scope, self.key)
    }

    /// Calls `decide` with the present row (None: no such key) and the time, and makes the change that `decide`
    /// answers.
    pub fn change<T>(
        &self,
        mut decide: impl FnMut(Option<&mut KeyRow>, i64) -> Result<(KeyChange, T)>,
    ) -> Result<T> {
        let mut locked = false;
        loop {
            let table = Table::to_read(TABLE)?;
            let snapshot = Snapshot::now();
            let mut row = KeyRow::find(&table, self.id(), &snapshot)?;
            let now = clock::now_us()?;
            if let Some(row) = &mut row {
                row.put_advanced(row.advanced());
            }
            row = row.filter(|r| !self.options.is_over(r, now));
            if row.is_none() {
                shard::ensure_home(self.scope, self.key)?;
            }
            let (change, answer) = decide(row.as_mut(), now)?;
            let (Some(row), Some(tid)) = (&row, row.as_ref().and_then(KeyRow::tid)) else {
                return Ok(answer);
            };
            if matches!(change, KeyChange::Nothing) || locked && matches!(change, KeyChange::Lock) {
                return Ok(answer);
            }
            let table = Table::to_write(TABLE)?;
            let outcome = match change {
                KeyChange::Write if !locked && table.is_held(tid) => WriteOutcome::Busy,
                KeyChange::Write => row.update_at(&table, tid)?,
                _ => table.lock(tid, &snapshot, Wait::No)?,
            };
            // After a wait the clock and the row are stale: both are read again, and `decide` is called again.
            let outcome = match outcome {
                WriteOutcome::Busy => table.lock(tid, &snapshot, Wait::Yes)?,
                WriteOutcome::Done => {
                    if matches!(change, KeyChange::Delete) {
                        step::forget_all(self.id())?;
                        table.delete(tid, &snapshot);
                    }
                    return Ok(answer);
                }
                WriteOutcome::Changed => WriteOutcome::Changed,
            };
            if outcome != WriteOutcome::Done && table::above_read_committed() {
                return Err(Error::retry_transaction(named(self.scope, self.key)));
            }
            locked = outcome == WriteOutcome::Done;
        }
    }

    /// ON001 for a key without a row.
    pub fn missing(&self) -> Error {
        self.lost("There is no such key: never claimed, forgotten or reaped.")
    }

    pub fn lost(&self, why: impl Into<String>) -> Error {
        Error::new(
            Kind::LeaseLost,
            format!("lease of {} is lost", named(self.scope, self.key)),
        )
        .detail(why)
        .hint("Stop this attempt and roll back its writes. Claim the key again to learn its state.")
    }
}

/// The key that a call names, and the token of argument 2.
pub struct FencedKey<'a> {
    pub named: NamedKey<'a>,
    pub token: i64,
}

impl<'a> FencedKey<'a> {
    pub fn from_call(call: &'a Call) -> Result<FencedKey<'a>> {
        let named = NamedKey::from_call(call)?;
        let token = call.i64(2, "token")?;
        Ok(FencedKey { named, token })
    }

    /// While the attempt with this token is running, `decide` gets the row. After this attempt has ended and before
    /// another one begins, `repeated` gets the row. It answers Some for a repeated call, and `change` returns that
    /// answer. All other calls raise ON001 or ON006.
    pub fn change<T>(
        &self,
        mut repeated: impl FnMut(&KeyRow) -> Option<T>,
        mut decide: impl FnMut(&mut KeyRow, i64) -> Result<(KeyChange, T)>,
    ) -> Result<T> {
        self.named.change(|row, now| {
            let Some(row) = row else {
                return Err(self.named.missing());
            };
            if row.i64(Col::Token) == self.token
                && row.status() != KeyStatus::Running
                && let Some(answer) = repeated(row)
            {
                return Ok((KeyChange::Nothing, answer));
            }
            self.ensure_held(row)?;
            decide(row, now)
        })
    }

    pub fn named(&self) -> String {
        named(self.named.scope, self.named.key)
    }

    fn ensure_held(&self, row: &KeyRow) -> Result<()> {
        let ours = row.i64(Col::Token) == self.token;
        let why = match row.status() {
            KeyStatus::Running if ours => return Ok(()),
            status if ours && status.finished() => {
                return Err(Error::already_done(
                    format!("this token has finished {} already", self.named()),
                    "a claim with the same request replays the stored answer.",
                ));
            }
            KeyStatus::Running => format!("Attempt {} holds the key now.", row.i32(Col::Attempt)),
            KeyStatus::Released => "The key was released, or a verdict retry was given.".to_owned(),
            KeyStatus::Parked => "The key was parked.".to_owned(),
            _ => "Another attempt or a verdict has finished the key.".to_owned(),
        };
        Err(self.named.lost(why))
    }
}

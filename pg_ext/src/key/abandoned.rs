//! `key_take_abandoned`: a completer's intake.
//!
//! Unfinished keys are found through the index (scope, look_at), which no completion touches: look_at is
//! when the first lease ends, and moves only on the rare paths (takeover, release, park, this take). So a
//! range of it holds finished keys too, and a bookmark keeps each of them from being read twice: every
//! key at or before the bookmark is finished or has been moved forward.
//!
//! A claim that commits late could appear behind the bookmark. Claims read the clock after they have a
//! transaction id, so once every transaction that ran at time T has ended, nothing new appears before T:
//! the bookmark first notes (T, next transaction id), and moves to T when all ids below that have ended.
//! An open transaction only makes takes read more; it hides nothing and stops nothing.

use super::claim::{claim_values, take_over};
use super::decide::{self, Decision};
use super::identity::KeyId;
use super::record::{BY_LOOK, Col, Record, Status, TABLE};
use super::scope::{Options, put_aside_lock};
use crate::call::{Call, SCOPE_MAX};
use crate::clock;
use crate::error::Result;
use crate::row::{self, Rows};
use crate::settings;
use crate::table::{self, Name, Outcome, ScanKey, Snapshot, Table, Wait};
use crate::trylock::TryLock;
use pgrx::pg_sys::Datum;

const BOOKMARKS: Name = c"key_bookmark";
const BY_SCOPE: Name = c"key_bookmark_pkey";
const MOST: i32 = 10_000;
const HOLDER_MAX: usize = 200;
/// Rows read since the bookmark before it is worth a write.
const WORTH_MOVING: usize = 64;
/// `-infinity`.
const EVER: i64 = i64::MIN;

/// `once.key_take_abandoned`.
pub fn key_take_abandoned(call: &Call) -> Result<Datum> {
    let scope = call.text(0, "scope", SCOPE_MAX)?;
    let take = Take {
        scope,
        max: call.limit(1, "max", MOST)? as usize,
        lease: call.interval(2, "lease")?,
        holder: call.opt_text(3, "holder", HOLDER_MAX)?,
        options: Options::of(scope)?,
        now: clock::now_us()?,
    };
    let rows = Rows::begin(call);
    take.run(&rows)?;
    Ok(call.return_null())
}

struct Take<'a> {
    scope: &'a [u8],
    max: usize,
    lease: Option<i64>,
    holder: Option<&'a [u8]>,
    options: Options,
    now: i64,
}

/// What a pass over the index has seen.
struct Pass {
    read: usize,
    /// Every key up to here is finished or moved forward.
    upto: i64,
    /// A key that could not be moved: nothing behind it counts as passed.
    stuck: bool,
}

impl Take<'_> {
    fn run(&self, rows: &Rows) -> Result<()> {
        let snapshot = Snapshot::now();
        let bookmark = Bookmark::of(self.scope, self.now, &snapshot)?;
        if self.held(&bookmark, &snapshot, rows)? {
            return Ok(());
        }
        let pass = self.take(&bookmark, &snapshot, rows)?;
        bookmark.move_to(self.scope, &pass, self.now, &snapshot)
    }

    /// The holder's live leases; true where it has some.
    fn held(&self, bookmark: &Bookmark, snapshot: &Snapshot, rows: &Rows) -> Result<bool> {
        let Some(holder) = self.holder else {
            return Ok(false);
        };
        let table = Table::to_read(TABLE)?;
        let keys = &mut [
            ScanKey::text(1, row::text(self.scope)),
            ScanKey::after(2, bookmark.upto),
            // Parked keys stand at infinity.
            ScanKey::until(2, clock::INFINITY - 1),
        ];
        let mut scan = table.scan(BY_LOOK, keys, snapshot)?;
        let mut any = false;
        while let Some(slot) = scan.advance() {
            let row = Record::look(slot);
            let live = row.status() == Status::Running && self.now < row.i64(Col::LeaseUntil);
            if live && row.bytes(Col::Holder) == Some(holder) {
                rows.push(&values(&row)?);
                any = true;
            }
        }
        Ok(any)
    }

    fn take(&self, bookmark: &Bookmark, snapshot: &Snapshot, rows: &Rows) -> Result<Pass> {
        let table = Table::to_write(TABLE)?;
        let keys = &mut [
            ScanKey::text(1, row::text(self.scope)),
            ScanKey::after(2, bookmark.upto),
            ScanKey::until(2, self.now),
        ];
        let mut scan = table.scan(BY_LOOK, keys, snapshot)?;
        let mut pass = Pass {
            read: 0,
            upto: bookmark.upto,
            stuck: false,
        };
        let mut taken = 0;
        while taken < self.max {
            let Some(slot) = scan.advance() else {
                pass.reach(self.now);
                break;
            };
            let mut row = Record::look(slot);
            let look_at = row.i64(Col::LookAt);
            pass.read += 1;
            match self.visit(&table, &mut row, snapshot)? {
                Visit::Taken => {
                    taken += 1;
                    rows.push(&values(&row)?);
                }
                Visit::Passed => {}
                Visit::Busy => pass.stuck = true,
            }
            // Keys with the same look_at may follow.
            pass.reach(look_at - 1);
        }
        Ok(pass)
    }

    /// Takes one key, or moves it forward to when it has to be looked at again.
    fn visit(&self, table: &Table, row: &mut Record, snapshot: &Snapshot) -> Result<Visit> {
        if row.status().finished() {
            return Ok(Visit::Passed);
        }
        let next_look = match decide::unfinished(row, self.now, &self.options) {
            Decision::TakeOver => {
                let Some(_lock) = self.try_lock(row) else {
                    return Ok(Visit::Busy);
                };
                return match take_over(
                    table,
                    row,
                    snapshot,
                    &self.options,
                    self.lease,
                    self.holder,
                )? {
                    Outcome::Done => Ok(Visit::Taken),
                    _ => Ok(Visit::Busy),
                };
            }
            Decision::Parked if row.status() == Status::Parked => clock::INFINITY,
            Decision::Parked if self.may_put_aside(row)? => clock::INFINITY,
            Decision::Parked => return Ok(Visit::Busy),
            _ => row.i64(Col::LeaseUntil),
        };
        self.move_forward(table, row, snapshot, next_look)
    }

    /// A key that only the options park is put aside until they change. scope_set waits for this
    /// transaction before it looks for such keys; the options are read again under the lock, in case it
    /// came first.
    fn may_put_aside(&self, row: &Record) -> Result<bool> {
        if table::above_read_committed() {
            return Ok(false);
        }
        let Some(lock) = TryLock::shared(put_aside_lock(self.scope)) else {
            return Ok(false);
        };
        lock.keep();
        let options = Options::of(self.scope)?;
        Ok(decide::unfinished(row, self.now, &options) == Decision::Parked)
    }

    fn move_forward(
        &self,
        table: &Table,
        row: &mut Record,
        snapshot: &Snapshot,
        to: i64,
    ) -> Result<Visit> {
        let Some(tid) = row.tid() else {
            return Ok(Visit::Busy);
        };
        if table.lock(tid, snapshot, Wait::No)? != Outcome::Done {
            return Ok(Visit::Busy);
        }
        row.put_i64(Col::LookAt, to);
        match row.update_at(table, tid, Wait::Yes)? {
            Outcome::Done => Ok(Visit::Passed),
            _ => Ok(Visit::Busy),
        }
    }

    fn try_lock(&self, row: &Record) -> Option<TryLock> {
        let key = row.bytes(Col::Key).unwrap_or_default();
        TryLock::acquire(KeyId::of(self.scope, key).lock_hash())
    }
}

fn values(row: &Record) -> Result<Vec<Option<Datum>>> {
    let mut values = claim_values(row, clock::now_us()?).to_vec();
    values.push(row.raw(Col::Key));
    values.push(row.raw(Col::Request));
    Ok(values)
}

enum Visit {
    Taken,
    Passed,
    Busy,
}

impl Pass {
    fn reach(&mut self, upto: i64) {
        if !self.stuck {
            self.upto = self.upto.max(upto);
        }
    }
}

/// A row of `once.key_bookmark`, or where to begin without one.
struct Bookmark {
    upto: i64,
    stored: Option<(pgrx::pg_sys::ItemPointerData, i64, i64)>,
}

impl Bookmark {
    fn of(scope: &[u8], now: i64, snapshot: &Snapshot) -> Result<Bookmark> {
        let table = Table::to_read(BOOKMARKS)?;
        let key = &mut [ScanKey::text(1, row::text(scope))];
        let Some(slot) = table.find(BY_SCOPE, key, snapshot)? else {
            return Ok(Bookmark {
                upto: EVER,
                stored: None,
            });
        };
        let int = |column| slot.column(column).map_or(EVER, |d| d.value() as i64);
        // A clock that a test has moved, or that went back, makes the bookmark worthless.
        let useless = settings::fake_now()?.is_some() || int(2) > now;
        Ok(Bookmark {
            upto: if useless { EVER } else { int(2) },
            stored: Some((slot.tid(), int(3), int(4))),
        })
    }

    /// Stores how far this pass has come, where that saves the next one work and nobody else is at it.
    fn move_to(&self, scope: &[u8], pass: &Pass, now: i64, snapshot: &Snapshot) -> Result<()> {
        let pretended = settings::fake_now()?.is_some();
        if pass.read < WORTH_MOVING || pretended || table::above_read_committed() {
            return Ok(());
        }
        let Some(lock) = TryLock::acquire(KeyId::of(b"", scope).lock_hash()) else {
            return Ok(());
        };
        let upto = match self.stored {
            None => EVER,
            Some((_, noted, xid)) if table::ended_before(snapshot, xid) => {
                noted.min(pass.upto).max(self.upto)
            }
            // Something that ran when the mark was noted is still open.
            Some(_) => return Ok(()),
        };
        let values = [
            Some(row::text(scope)),
            Some(Datum::from(upto)),
            Some(Datum::from(now)),
            Some(Datum::from(table::next_xid())),
        ];
        let table = Table::to_write(BOOKMARKS)?;
        match self.stored {
            Some((tid, ..)) => {
                table.update(tid, &values, Wait::No)?;
            }
            None => {
                let key = &mut [ScanKey::text(1, row::text(scope))];
                if table.find(BY_SCOPE, key, &Snapshot::latest())?.is_none() {
                    table.insert(&values)?;
                }
            }
        }
        // Kept to the end of the transaction: one writer of this bookmark at a time.
        lock.keep();
        Ok(())
    }
}

//! `key_take_abandoned`: a completer's intake.
//!
//! Unfinished keys are found through the index (scope, look_lane, look_at), which no completion touches:
//! look_at is when the first lease ends, and moves only on the rare paths (takeover, release, park, this
//! take), which also put the key into the second lane. So a range of it holds finished keys too, and a
//! bookmark keeps each of them from being read twice: every key at or before the bookmark is finished or
//! has been moved forward. The second lane is short: it is where a holder's live leases are found.
//!
//! A claim that commits late could appear behind the bookmark. Claims read the clock after they have a
//! transaction id, so once every transaction that ran at time T has ended, nothing new appears before T:
//! the bookmark first notes (T, next transaction id), and moves to T when all ids below that have ended.
//! An open transaction only makes takes read more; it hides nothing and stops nothing. A clock that steps
//! back by less than MARGIN hides nothing either; what a larger step hides from completers (never from
//! claims) is shown to them again by sweep_key_tombstone, at the latest a ttl later.

use super::claim::{claim_values, now_in_transaction, take_over};
use super::decide::{self, Decision};
use super::identity::KeyId;
use super::record::{BY_LOOK, Col, FIRST_ATTEMPT, LOOKED_AFTER, Record, Status, TABLE};
use super::scope::{Options, put_aside_lock};
use crate::call::{Call, HOLDER_MAX, SCOPE_MAX};
use crate::clock;
use crate::error::Result;
use crate::row::{self, Rows};
use crate::settings;
use crate::table::{self, Name, Outcome, Scan, ScanKey, Snapshot, Table, Wait};
use crate::trylock::TryLock;
use pgrx::pg_sys::Datum;

const BOOKMARKS: Name = c"key_bookmark";
const BY_SCOPE: Name = c"key_bookmark_pkey";
const MOST: i32 = 10_000;
/// Rows read since the bookmark before it is worth a write.
const WORTH_MOVING: usize = 64;
/// How far behind the noted time the bookmark stays.
const MARGIN_US: i64 = 5_000_000;
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

/// Every key of the scope with look_at at most this is finished, or was moved forward by a take.
pub fn passed(scope: &[u8], now: i64, snapshot: &Snapshot) -> Result<i64> {
    Ok(Bookmark::of(scope, now, snapshot)?.upto)
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
}

/// One lane of the index in the range of this take.
struct Lane<'t> {
    take: &'t Take<'t>,
    table: &'t Table,
    snapshot: &'t Snapshot,
    scan: Scan<'t>,
    read: usize,
    upto: i64,
    /// A key that could not be moved: nothing behind it counts as passed.
    stuck: bool,
    /// Everything was read; asked again, an index scan would begin anew.
    ended: bool,
}

impl Lane<'_> {
    /// Goes on until it has taken `quota` keys or reaches the end of the range; tells how many it took.
    fn take(&mut self, quota: usize, rows: &Rows) -> Result<usize> {
        let mut taken = 0;
        while taken < quota && !self.ended {
            let Some(slot) = self.scan.advance() else {
                self.reach(self.take.now);
                self.ended = true;
                break;
            };
            let mut row = Record::look(slot);
            let look_at = row.i64(Col::LookAt);
            self.read += 1;
            match self.take.visit(self.table, &mut row, self.snapshot)? {
                Visit::Taken => {
                    taken += 1;
                    rows.push(&values(&row)?);
                }
                Visit::Passed => {}
                Visit::Busy => self.stuck = true,
            }
            // Keys with the same look_at may follow.
            self.reach(look_at - 1);
        }
        Ok(taken)
    }

    fn reach(&mut self, upto: i64) {
        if !self.stuck {
            self.upto = self.upto.max(upto);
        }
    }
}

/// The scan keys of a lane: look_at after `from`, at most `to`.
pub fn lane(scope: &[u8], name: u8, from: i64, to: i64) -> [ScanKey; 4] {
    [
        ScanKey::text(1, row::text(scope)),
        ScanKey::char(2, name),
        ScanKey::after(3, from),
        ScanKey::until(3, to),
    ]
}

/// After a change of options: shows the keys that takes have put aside under the old ones to takes again.
/// The caller holds [`put_aside_lock`] exclusively; what is committed now counts, whatever the isolation.
pub fn look_again(scope: &[u8]) -> Result<()> {
    let table = Table::to_write(TABLE)?;
    let snapshot = Snapshot::latest();
    let keys = &mut lane(scope, LOOKED_AFTER, clock::INFINITY - 1, clock::INFINITY);
    let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
    while let Some(slot) = scan.advance() {
        let key = Record::look(slot);
        show_again(
            &table,
            KeyId::of(scope, key.bytes(Col::Key).unwrap_or_default()),
        )?;
    }
    Ok(())
}

/// Shows one key again that the options had parked, however often it changes meanwhile.
fn show_again(table: &Table, id: KeyId) -> Result<()> {
    loop {
        let snapshot = Snapshot::latest();
        let found = Record::find(table, id, &snapshot)?.filter(|row| {
            let by_options = matches!(row.status(), Status::Running | Status::Released);
            by_options && row.i64(Col::LookAt) == clock::INFINITY
        });
        let Some((mut row, tid)) = found.and_then(|row| row.tid().map(|tid| (row, tid))) else {
            return Ok(());
        };
        if table.lock(tid, &snapshot, Wait::Yes)? == Outcome::Done {
            row.put_look(LOOKED_AFTER, now_in_transaction()?);
            row.update_at(table, tid, Wait::Yes)?;
            return Ok(());
        }
    }
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
        // Parked keys stand at infinity.
        let keys = &mut lane(self.scope, LOOKED_AFTER, bookmark.upto, clock::INFINITY - 1);
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

    /// Half of what is taken comes from each lane, as long as both have enough: keys that fail again and
    /// again do not keep those of a dead client waiting, nor the other way round.
    fn take(&self, bookmark: &Bookmark, snapshot: &Snapshot, rows: &Rows) -> Result<Pass> {
        let table = Table::to_write(TABLE)?;
        let mut again = self.lane(&table, LOOKED_AFTER, bookmark, snapshot)?;
        let mut first = self.lane(&table, FIRST_ATTEMPT, bookmark, snapshot)?;
        let coin = (clock::real_us() & 1) as usize;
        let mut left = self.max;
        left -= again.take((left + coin) / 2, rows)?;
        left -= first.take(left, rows)?;
        again.take(left, rows)?;
        Ok(Pass {
            read: again.read + first.read,
            upto: again.upto.min(first.upto),
        })
    }

    fn lane<'t>(
        &'t self,
        table: &'t Table,
        name: u8,
        bookmark: &Bookmark,
        snapshot: &'t Snapshot,
    ) -> Result<Lane<'t>> {
        let keys = &mut lane(self.scope, name, bookmark.upto, self.now);
        Ok(Lane {
            take: self,
            table,
            snapshot,
            scan: table.scan(BY_LOOK, keys, snapshot)?,
            read: 0,
            upto: bookmark.upto,
            stuck: false,
            ended: false,
        })
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
        row.put_look(LOOKED_AFTER, to);
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
            Some(Datum::from(now - MARGIN_US)),
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

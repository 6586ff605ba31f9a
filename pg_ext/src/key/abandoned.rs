//! `key_take_abandoned`: a completer's intake.
//!
//! Unfinished keys are found through the index (scope, look_lane, look_at), which no completion touches:
//! look_at is when the first lease ends, and moves only on the rare paths (takeover, release, park, a visit),
//! which also put the key into the second lane. So a range of it holds finished keys too, and the bookmark
//! keeps each of them from being read twice. The second lane is short: it is where a holder's live leases are
//! found.

use super::bookmark::{Bookmark, Passed, Stopped, WORTH_MOVING};
use super::claim::{claim_values, take_over};
use super::identity::KeyId;
use super::record::{BY_LOOK, Col, FIRST_ATTEMPT, LOOKED_AFTER, Record, Status, TABLE, lane};
use super::scope::Options;
use super::visit::{Visit, Visitor};
use crate::call::{Call, HOLDER_MAX, SCOPE_MAX};
use crate::clock;
use crate::error::Result;
use crate::row::Rows;
use crate::table::{Outcome, Scan, Snapshot, Table};
use crate::trylock::TryLock;
use pgrx::pg_sys::Datum;

const MOST: i32 = 10_000;

/// `once.key_take_abandoned`.
pub fn key_take_abandoned(call: &Call) -> Result<Datum> {
    let scope = call.text(0, "scope", SCOPE_MAX)?;
    let take = Take {
        max: call.limit(1, "max", MOST)? as usize,
        lease: call.interval(2, "lease")?,
        holder: call.opt_text(3, "holder", HOLDER_MAX)?,
        visitor: Visitor {
            scope,
            options: Options::of(scope)?,
            now: clock::now_us()?,
        },
    };
    let rows = Rows::begin(call);
    take.run(&rows)?;
    Ok(call.return_null())
}

struct Take<'a> {
    visitor: Visitor<'a>,
    max: usize,
    lease: Option<i64>,
    holder: Option<&'a [u8]>,
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
                self.reach(self.take.visitor.now);
                self.ended = true;
                break;
            };
            let mut row = Record::look(slot);
            let look_at = row.i64(Col::LookAt);
            self.read += 1;
            match self.take.take_one(self.table, &mut row, self.snapshot)? {
                One::Taken => {
                    taken += 1;
                    rows.push(&values(&row)?);
                }
                One::Passed => {}
                One::Busy => self.stuck = true,
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

impl Take<'_> {
    fn run(&self, rows: &Rows) -> Result<()> {
        let snapshot = Snapshot::now();
        let Visitor { scope, now, .. } = self.visitor;
        let bookmark = Bookmark::of(scope, now, &snapshot)?;
        if self.held(&bookmark, &snapshot, rows)? {
            return Ok(());
        }
        let pass = self.take(&bookmark, &snapshot, rows)?;
        if pass.read >= WORTH_MOVING {
            let passed = Passed {
                upto: pass.upto,
                stopped: Stopped::Here,
            };
            bookmark.move_to(scope, &passed, now, &snapshot)?;
        }
        Ok(())
    }

    /// The holder's live leases; true where it has some.
    fn held(&self, bookmark: &Bookmark, snapshot: &Snapshot, rows: &Rows) -> Result<bool> {
        let Some(holder) = self.holder else {
            return Ok(false);
        };
        let table = Table::to_read(TABLE)?;
        // Parked keys stand at infinity.
        let keys = &mut lane(
            self.visitor.scope,
            LOOKED_AFTER,
            bookmark.upto,
            clock::INFINITY - 1,
        );
        let mut scan = table.scan(BY_LOOK, keys, snapshot)?;
        let mut any = false;
        while let Some(slot) = scan.advance() {
            let row = Record::look(slot);
            let live =
                row.status() == Status::Running && self.visitor.now < row.i64(Col::LeaseUntil);
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
        let keys = &mut lane(self.visitor.scope, name, bookmark.upto, self.visitor.now);
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

    /// Takes one key that waits for somebody; the others are passed or moved forward.
    fn take_one(&self, table: &Table, row: &mut Record, snapshot: &Snapshot) -> Result<One> {
        match self.visitor.visit(table, row, snapshot)? {
            Visit::Passed | Visit::Moved => return Ok(One::Passed),
            Visit::Busy => return Ok(One::Busy),
            Visit::Awaited => {}
        }
        let Some(_lock) = self.try_lock(row) else {
            return Ok(One::Busy);
        };
        let options = &self.visitor.options;
        match take_over(table, row, snapshot, options, self.lease, self.holder)? {
            Outcome::Done => Ok(One::Taken),
            _ => Ok(One::Busy),
        }
    }

    fn try_lock(&self, row: &Record) -> Option<TryLock> {
        let key = row.bytes(Col::Key).unwrap_or_default();
        TryLock::acquire(KeyId::of(self.visitor.scope, key).lock_hash())
    }
}

fn values(row: &Record) -> Result<Vec<Option<Datum>>> {
    let mut values = claim_values(row, clock::now_us()?).to_vec();
    values.push(row.raw(Col::Key));
    values.push(row.raw(Col::Request));
    Ok(values)
}

/// What became of one key.
enum One {
    Taken,
    /// Nothing of it is left behind the bookmark.
    Passed,
    Busy,
}

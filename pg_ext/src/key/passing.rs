//! A part of the sweep task `key_tombstone`: where no completer is at work, it moves each scope's bookmark up to the
//! oldest key that waits for one, without taking any. So metrics see that key however many newer ones are finished,
//! and a completer that comes later does not begin with the whole history.
//!
//! An entry is read once in its life: what is before a bookmark is not looked at again, and while an open transaction
//! keeps a bookmark where it is, nothing after it is read at all. Only the last few of a scope, less than WORTH_MOVING,
//! are read more than once, until they are old. All that is read and moved in one call is bounded. The scopes come in
//! turn in a session that goes on (a worker's, sweep_all's); one of a single call begins anywhere. Bookmarks of scopes
//! without keys are removed, a few at a time.
//!
//! A key whose holder is alive is moved as rarely as can be: its holder waits for the transaction that has moved it.
//!
//! Invariant: `more` is told only where this call got further, so whoever goes on while `more` comes to an end.

use super::bookmark::{self, Bookmark, Passed, Reach, Stopped, WORTH_MOVING};
use super::record::{self, BY_LOOK, Col, FIRST_ATTEMPT, LOOKED_AFTER, Record, TABLE, lane};
use super::scope::Options;
use super::visit::{Visit, Visitor};
use crate::clock;
use crate::error::Result;
use crate::row;
use crate::settings;
use crate::table::{self, Scan, ScanKey, Snapshot, Step, Table};
use pgrx::pg_sys;
use std::cell::RefCell;
use std::ops::Range;

/// Entries that are read for each row that the sweep may do.
const LOOKS_PER_ROW: usize = 10;
/// Scopes in one call: each costs some probes, also where there is nothing to do, and a bookmark that is made keeps a
/// lock until the transaction ends.
const SCOPES: usize = 200;
/// A few that are older than this are worth a write, too: a scope that nobody uses ends with nothing to read.
const STALE_US: i64 = 600_000_000;
/// Keys that one call moves forward: each keeps its holder waiting until the transaction ends.
const MOVES: usize = 1_000;
/// An unfinished key is moved forward when its first lease has been over for so long.
const MOVED_AFTER_US: i64 = 60_000_000;
thread_local! {
    /// The scope with which the next call of this session begins.
    static NEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Moves bookmarks, as far as so many rows go; true: more is waiting.
pub fn pass(max: i64) -> Result<bool> {
    // Neither a pretended clock nor a snapshot of the past moves a bookmark.
    if settings::fake_now()?.is_some() || table::above_read_committed() {
        return Ok(false);
    }
    let max = max as usize;
    let table = Table::to_write(TABLE)?;
    let mut pass = Pass {
        table: &table,
        looks: max.saturating_mul(LOOKS_PER_ROW),
        moves: max.min(MOVES),
        more: false,
    };
    forget_some(&table)?;
    let mut round = Round::begin(&table)?;
    let mut scopes = max.min(SCOPES);
    while let Some(scope) = round.next(&table)? {
        if scopes == 0 || pass.is_spent() {
            NEXT.set(scope);
            return Ok(pass.more);
        }
        scopes -= 1;
        // Whatever is wrong with one scope, the next call goes on behind it.
        NEXT.set([&scope[..], b"\x01"].concat());
        pass.scope(&scope)?;
        pg_sys::check_for_interrupts!();
    }
    NEXT.set(round.from);
    Ok(pass.more)
}

/// Removes bookmarks of scopes that have no keys any more, of a few that chance chooses.
fn forget_some(table: &Table) -> Result<()> {
    let snapshot = Snapshot::now();
    for scope in bookmark::some(chance(), &snapshot)? {
        let here = ScanKey::text(1, row::text(&scope));
        if record::first_scope(table, here, &snapshot)?.is_none() {
            bookmark::forget(&scope)?;
        }
    }
    Ok(())
}

/// A number that is another one each time.
fn chance() -> u64 {
    record::some_id().lock_hash()
}

/// Every scope once, by name, from one of them on.
struct Round {
    from: Vec<u8>,
    last: Option<Vec<u8>>,
    /// The names before `from` are what is left.
    again: bool,
}

impl Round {
    /// Where the call before has ended. A session's first goes to the scope of a random key or of a random bookmark:
    /// one that calls only once (a scheduler's) looks at others each time, also where one scope has nearly all keys.
    fn begin(table: &Table) -> Result<Round> {
        let mut from = NEXT.take();
        let chance = chance();
        if from.is_empty() && chance.is_multiple_of(2) {
            let mut some = bookmark::some(chance / 2, &Snapshot::now())?;
            if !some.is_empty() {
                from = some.swap_remove((chance >> 32) as usize % some.len());
            }
        }
        if from.is_empty() {
            from = record::some_scope(table)?.unwrap_or_default();
        }
        Ok(Round {
            from,
            last: None,
            again: false,
        })
    }

    fn next(&mut self, table: &Table) -> Result<Option<Vec<u8>>> {
        let key = match &self.last {
            None => ScanKey::text_from(1, row::text(&self.from)),
            Some(last) => ScanKey::text_above(1, row::text(last)),
        };
        match record::first_scope(table, key, &Snapshot::now())? {
            Some(scope) if self.again && scope >= self.from => Ok(None),
            Some(scope) => {
                self.last = Some(scope.clone());
                Ok(Some(scope))
            }
            None if self.again || self.from.is_empty() => Ok(None),
            None => {
                self.again = true;
                self.last = Some(Vec::new());
                self.next(table)
            }
        }
    }
}

/// One call, and what it may still do.
struct Pass<'t> {
    table: &'t Table,
    looks: usize,
    moves: usize,
    more: bool,
}

impl Pass<'_> {
    fn is_spent(&self) -> bool {
        self.looks == 0 || self.moves == 0
    }

    fn scope(&mut self, scope: &[u8]) -> Result<()> {
        let now = clock::now_us()?;
        let snapshot = Snapshot::now();
        let bookmark = Bookmark::of(scope, now, &snapshot)?;
        let reach = bookmark.reach(now, &snapshot);
        if matches!(reach, Reach::Blocked) {
            return Ok(());
        }
        let entries = self.entries(scope, bookmark.upto, now, &snapshot)?;
        if entries == 0 && !bookmark.is_awaited() {
            return Ok(());
        }
        // A few are read each time; of many, those that the bookmark may pass.
        let few = entries < WORTH_MOVING;
        let to = match reach {
            _ if few => now,
            Reach::UpTo(noted) => noted,
            _ => bookmark.upto,
        };
        let visitor = Visitor {
            scope,
            options: Options::for_watching(scope)?,
            now,
        };
        let walked = self.walk(&visitor, bookmark.upto..to, few, &snapshot)?;
        let passed = &walked.passed;
        let since = match reach {
            Reach::UpTo(noted) => noted,
            _ => walked.oldest,
        };
        let awaited = bookmark.is_awaited() || passed.stopped == Stopped::AtAwaited;
        let worth = !few || awaited || bookmark.is_ahead || since < now - STALE_US;
        let stored = worth && bookmark.move_to(scope, passed, now, &snapshot)?;
        let made = stored && !bookmark.is_stored();
        let further = (stored && passed.upto > bookmark.upto) || walked.moved;
        self.more |= made || (passed.stopped == Stopped::Here && further && self.is_spent());
        Ok(())
    }

    /// Entries of both lanes after the bookmark, of rows that are over, too; counted to WORTH_MOVING.
    fn entries(&self, scope: &[u8], from: i64, to: i64, snapshot: &Snapshot) -> Result<usize> {
        let mut entries = 0;
        for name in [FIRST_ATTEMPT, LOOKED_AFTER] {
            let keys = &mut lane(scope, name, from, to);
            let most = WORTH_MOVING - entries;
            entries += self.table.count_entries(BY_LOOK, keys, snapshot, most)?;
        }
        Ok(entries)
    }

    /// Passes the keys of both lanes in the order of their look_at, up to the first that cannot be. Of a few no key is
    /// moved: what would have to be ends what is passed, and only one that waits for a completer is looked for behind it.
    fn walk(
        &mut self,
        visitor: &Visitor,
        range: Range<i64>,
        few: bool,
        snapshot: &Snapshot,
    ) -> Result<Walked> {
        let mut lanes = [
            self.lane(visitor.scope, FIRST_ATTEMPT, &range, snapshot)?,
            self.lane(visitor.scope, LOOKED_AFTER, &range, snapshot)?,
        ];
        let mut walked = Walked {
            passed: Passed {
                upto: range.start,
                stopped: Stopped::Nowhere,
            },
            moved: false,
            oldest: lanes[0].place.at().min(lanes[1].place.at()),
        };
        loop {
            let which = usize::from(lanes[1].place.at() < lanes[0].place.at());
            let lane = &mut lanes[which];
            match lane.place {
                Place::End => {
                    walked.reach(range.end);
                    return Ok(walked);
                }
                Place::Tired(at) => {
                    walked.reach(at.saturating_sub(1));
                    // However many have the same look_at, a call gets further than that.
                    if walked.passed.upto > range.start || walked.moved {
                        walked.passed.stopped = Stopped::Here;
                        return Ok(walked);
                    }
                    lane.go_on(&mut { WORTH_MOVING });
                }
                Place::Row(at) => {
                    // Keys with the same look_at may follow.
                    walked.reach(at - 1);
                    let may_move = !few && at < visitor.now - MOVED_AFTER_US;
                    match lane.visit(visitor, may_move, self.table, snapshot)? {
                        Visit::Passed => {}
                        Visit::Moved => {
                            walked.moved = true;
                            self.moves = self.moves.saturating_sub(1);
                        }
                        Visit::Busy => {
                            walked.passed.stopped = Stopped::Here;
                            if !few {
                                return Ok(walked);
                            }
                        }
                        Visit::Awaited => {
                            walked.passed.stopped = Stopped::AtAwaited;
                            return Ok(walked);
                        }
                    }
                    if self.moves == 0 {
                        self.looks = 0;
                    }
                    lane.go_on(&mut self.looks);
                }
            }
        }
    }

    fn lane<'s>(
        &mut self,
        scope: &[u8],
        name: u8,
        range: &Range<i64>,
        snapshot: &'s Snapshot,
    ) -> Result<Lane<'s>> {
        let keys = &mut lane(scope, name, range.start, range.end);
        let mut lane = Lane {
            scan: self.table.scan_with_entries(BY_LOOK, keys, snapshot)?,
            place: Place::Tired(range.start),
        };
        lane.go_on(&mut self.looks);
        Ok(lane)
    }
}

/// What a walk over a scope's keys came to.
struct Walked {
    passed: Passed,
    /// Keys were moved forward.
    moved: bool,
    /// Where it began, by look_at.
    oldest: i64,
}

impl Walked {
    fn reach(&mut self, upto: i64) {
        if self.passed.stopped == Stopped::Nowhere {
            self.passed.upto = self.passed.upto.max(upto);
        }
    }
}

/// One lane of the index, and where it stands.
struct Lane<'s> {
    scan: Scan<'s>,
    place: Place,
}

/// Where a lane stands, by look_at.
#[derive(Clone, Copy)]
enum Place {
    Row(i64),
    /// No looks were left; all before it were seen.
    Tired(i64),
    End,
}

impl Place {
    fn at(self) -> i64 {
        match self {
            Place::Row(at) | Place::Tired(at) => at,
            Place::End => i64::MAX,
        }
    }
}

impl Lane<'_> {
    fn go_on(&mut self, looks: &mut usize) {
        let here = self.place.at();
        self.place = match self.scan.step(looks) {
            Step::Row(slot) => Place::Row(Record::look(slot).i64(Col::LookAt)),
            Step::End => Place::End,
            Step::Tired => {
                let entry = |entry: &[Option<pg_sys::Datum>]| entry[2].map(|d| d.value() as i64);
                Place::Tired(self.scan.entry(entry).flatten().unwrap_or(here))
            }
        };
    }

    fn visit(
        &self,
        visitor: &Visitor,
        may_move: bool,
        table: &Table,
        snapshot: &Snapshot,
    ) -> Result<Visit> {
        match self.scan.present() {
            Some(slot) if may_move => visitor.visit(table, &mut Record::look(slot), snapshot),
            Some(slot) => Ok(visitor.look(&Record::look(slot))),
            None => Ok(Visit::Busy),
        }
    }
}

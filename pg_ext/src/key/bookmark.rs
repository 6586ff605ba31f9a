//! `once.key_bookmark`: how far the keys of a scope have been passed, through the index (scope, look_lane, look_at).
//!
//! Invariant: every key of the scope with look_at at or before the bookmark is finished or has been moved forward, so
//! whoever looks for unfinished keys reads only what comes after it: takes (`abandoned.rs`), which pass what they
//! read; sweeps (`passing.rs`), which pass what no completer takes; metrics.
//!
//! A claim that commits late could appear behind the bookmark. Claims read the clock after they have a transaction id,
//! so once every transaction that ran at time T has ended, nothing new appears before T: the bookmark first notes (T,
//! next transaction id), and moves up to T when all ids below that have ended, as far as everything was passed under
//! the snapshot that shows it. An open transaction keeps it where it is; it hides nothing and stops nothing. A clock
//! that steps back by less than MARGIN hides nothing either; what a larger step hides from completers (never from
//! claims) is shown to them again by the sweep task key_tombstone, at the latest a ttl later.
//!
//! Without its row everything is read from the beginning: that is slow, and never wrong.

use super::identity::KeyId;
use crate::call::varlena;
use crate::error::Result;
use crate::row;
use crate::settings;
use crate::table::{self, Name, Outcome, ScanKey, Slot, Snapshot, Step, Table, Wait};
use crate::trylock::TryLock;
use pgrx::pg_sys::{Datum, ItemPointerData};

const TABLE: Name = c"key_bookmark";
const BY_SCOPE: Name = c"key_bookmark_pkey";
/// Entries that have to be read again and again before a write is worth it that spares them.
pub const WORTH_MOVING: usize = 64;
/// How far behind the present the noted time stays.
const MARGIN_US: i64 = 5_000_000;
/// `-infinity`.
const EVER: i64 = i64::MIN;
/// The transaction id of a note whose transactions have ended, where the key behind the bookmark waits for a
/// completer: an older library, too, takes it for ended.
const AWAITED: i64 = 0;

/// A row of `once.key_bookmark`, or where to begin without one.
pub struct Bookmark {
    /// Where to go on.
    pub upto: i64,
    /// There is a row, and it says nothing: its clock was ahead of this one.
    pub is_ahead: bool,
    stored: Option<Stored>,
}

struct Stored {
    tid: ItemPointerData,
    upto: i64,
    note: Note,
}

/// Where the bookmark may go once every transaction with an id below `xid` has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Note {
    upto: i64,
    xid: i64,
}

/// How far what is seen now may move the bookmark.
#[derive(Clone, Copy)]
pub enum Reach {
    /// Nothing is noted.
    Unknown,
    /// A transaction is open that ran when the mark was noted.
    Blocked,
    UpTo(i64),
}

/// What a pass over the keys behind a bookmark came to.
pub struct Passed {
    /// Every key up to here is finished or moved forward.
    pub upto: i64,
    pub stopped: Stopped,
}

/// What stands behind the last key that was passed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// The end of what was to be read, or something that is noted anew by the next pass.
    Nowhere,
    /// More to read, or a key that somebody has locked.
    Here,
    /// A key that waits for a completer.
    AtAwaited,
}

impl Stored {
    fn read(slot: &Slot) -> Stored {
        let int = |column| slot.column(column).map_or(EVER, |d| d.value() as i64);
        Stored {
            tid: slot.tid(),
            upto: int(2),
            note: Note {
                upto: int(3),
                xid: int(4),
            },
        }
    }
}

impl Bookmark {
    /// The bookmark of a scope.
    pub fn of(scope: &[u8], now: i64, snapshot: &Snapshot) -> Result<Bookmark> {
        let table = Table::to_read(TABLE)?;
        let key = &mut [ScanKey::text(1, row::text(scope))];
        let Some(slot) = table.find(BY_SCOPE, key, snapshot)? else {
            return Ok(Bookmark {
                upto: EVER,
                is_ahead: false,
                stored: None,
            });
        };
        let stored = Stored::read(&slot);
        // A clock that a test has moved, or that went back, makes the bookmark worthless.
        let is_ahead = stored.upto > now;
        let useless = settings::fake_now()?.is_some() || is_ahead;
        Ok(Bookmark {
            upto: if useless { EVER } else { stored.upto },
            is_ahead,
            stored: Some(stored),
        })
    }

    /// How far what this snapshot shows may move it.
    pub fn reach(&self, now: i64, snapshot: &Snapshot) -> Reach {
        match self.stored.as_ref().map(|stored| stored.note) {
            // Noted before the clock went back.
            Some(note) if note.upto > now => Reach::Unknown,
            Some(note) if table::ended_before(snapshot, note.xid) => Reach::UpTo(note.upto),
            Some(_) => Reach::Blocked,
            None => Reach::Unknown,
        }
    }

    /// There is a row.
    pub fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    /// The last sweep has found a key that waits for a completer.
    pub fn is_awaited(&self) -> bool {
        let note = self.stored.as_ref().map(|stored| stored.note);
        note.is_some_and(|note| note.xid == AWAITED)
    }

    /// Stores how far a pass under that snapshot has come, where that changes anything and nobody else is at it;
    /// true: it was stored. Nothing is noted anew before what was noted is reached.
    pub fn move_to(
        &self,
        scope: &[u8],
        passed: &Passed,
        now: i64,
        snapshot: &Snapshot,
    ) -> Result<bool> {
        let next = Note {
            upto: now - MARGIN_US,
            xid: table::next_xid(),
        };
        let (upto, note) = match self.reach(now, snapshot) {
            Reach::Blocked => return Ok(false),
            Reach::Unknown => (self.upto, next),
            Reach::UpTo(noted) => {
                let note = match passed.stopped {
                    Stopped::AtAwaited if passed.upto < noted => Note {
                        upto: noted,
                        xid: AWAITED,
                    },
                    Stopped::Here if passed.upto < noted => {
                        self.stored.as_ref().map_or(next, |stored| stored.note)
                    }
                    _ => next,
                };
                (passed.upto.min(noted).max(self.upto), note)
            }
        };
        self.store(scope, upto, note)
    }

    fn store(&self, scope: &[u8], upto: i64, note: Note) -> Result<bool> {
        // What a pretended clock says is nobody else's; above READ COMMITTED a snapshot shows too little.
        if settings::fake_now()?.is_some() || table::above_read_committed() {
            return Ok(false);
        }
        let same = |stored: &Stored| stored.upto == upto && stored.note == note;
        if self.stored.as_ref().is_some_and(same) {
            return Ok(false);
        }
        let Some(lock) = TryLock::acquire(KeyId::of(b"", scope).lock_hash()) else {
            return Ok(false);
        };
        let values = [
            Some(row::text(scope)),
            Some(Datum::from(upto)),
            Some(Datum::from(note.upto)),
            Some(Datum::from(note.xid)),
        ];
        let table = Table::to_write(TABLE)?;
        match &self.stored {
            // A row that somebody has, or has changed since, is left alone.
            Some(stored) => {
                let free = table.lock(stored.tid, &Snapshot::latest(), Wait::No)? == Outcome::Done;
                Ok(free && table.update(stored.tid, &values)? == Outcome::Done)
            }
            None => {
                let key = &mut [ScanKey::text(1, row::text(scope))];
                if table.find(BY_SCOPE, key, &Snapshot::latest())?.is_some() {
                    return Ok(false);
                }
                table.insert(&values)?;
                // Kept to the end of the transaction: a second insert would have to wait for it.
                lock.keep();
                Ok(true)
            }
        }
    }
}

fn scope_of(slot: &Slot) -> Option<Vec<u8>> {
    slot.column(1).map(|d| varlena(d).to_vec())
}

/// Scopes that have bookmarks: those of one page of their table, which one is left to chance.
pub fn some(chance: u64, snapshot: &Snapshot) -> Result<Vec<Vec<u8>>> {
    let table = Table::to_read(TABLE)?;
    let mut scopes = Vec::new();
    let pages = u64::from(table.pages());
    if pages > 0 {
        table.page((chance % pages) as u32, snapshot, |slot| {
            scopes.extend(scope_of(slot));
        });
    }
    Ok(scopes)
}

/// Removes a bookmark, unless somebody is at it: nothing is lost with it.
pub fn forget(scope: &[u8]) -> Result<()> {
    let table = Table::to_write(TABLE)?;
    let snapshot = Snapshot::latest();
    let key = &mut [ScanKey::text(1, row::text(scope))];
    if let Some(slot) = table.find(BY_SCOPE, key, &snapshot)?
        && table.lock(slot.tid(), &snapshot, Wait::No)? == Outcome::Done
    {
        table.delete(slot.tid(), &snapshot);
    }
    Ok(())
}

/// Scopes behind that one, by name, where the last sweep has found a key that waits for a completer, the oldest such
/// keys first, at most `most`; among so many bookmarks.
pub fn awaited(
    after: &[u8],
    most: usize,
    mut looks: usize,
    snapshot: &Snapshot,
) -> Result<Vec<Vec<u8>>> {
    let table = Table::to_read(TABLE)?;
    let key = &mut [ScanKey::text_above(1, row::text(after))];
    let mut scan = table.scan(BY_SCOPE, key, snapshot)?;
    let mut found = Vec::new();
    while let Step::Row(slot) = scan.step(&mut looks) {
        let stored = Stored::read(slot);
        if stored.note.xid == AWAITED {
            found.push((stored.upto, scope_of(slot)));
        }
    }
    found.sort();
    found.truncate(most);
    Ok(found.into_iter().filter_map(|(_, scope)| scope).collect())
}

//! The sweep task `key_abandon`: unfinished keys whose first lease is over move into the lane of index key_look that
//! completers and metrics read ([`PENDING`]), so that nobody else has to tell them from finished ones.
//!
//! once.key_mark: every key with look_at at or before the mark (its row '') is finished or moved, but for two kinds:
//! - A claim that commits late. It holds ROW EXCLUSIVE on once.key since before it read the clock, so whoever holds that
//!   when a run begins gets a row with the mark of then. Once it has ended, a run reads on from there once more.
//!   Meanwhile the mark moves on, so an open transaction delays nobody else's key.
//! - A key that somebody has locked. Its id is in once.key_locked, and every run tries it again.
//!
//! A run reads a bounded number of entries, the oldest of all scopes, and again as many for late claims. Without rows in
//! once.key_mark everything is read from the beginning: slow, and never wrong.
//!
//! A clock that steps back by more than a key's lease hides that key from completers (never from claims) until its ttl is
//! over, when key_tombstone shows it.

use super::identity::KeyId;
use super::record::{self, BY_LOOK, Col, KeyRow, ORDINARY, TABLE, lane};
use crate::clock;
use crate::digest::hex;
use crate::error::Result;
use crate::row;
use crate::settings;
use crate::spi::{self, Kept, column};
use crate::swept::Swept;
use crate::table::{ScanKey, Snapshot, Step, Table};
use crate::trylock::TryLock;
use pgrx::pg_sys::{self, Datum};
use std::collections::BinaryHeap;
use std::ffi::CStr;

/// Entries that are read for each key that may be moved, and in all.
const READS_PER_KEY: usize = 100;
const MOST_READS: usize = 1_000_000;
/// A mark that nothing was read behind is not stored again before.
const IDLE_US: i64 = 30_000_000;

// $1: once.key. Answers the mark, the transactions that have ended, and the oldest mark among them. A prepared
// transaction has another name than before it was prepared: it may be one of those that seem to have ended.
const BEGIN: &CStr = c"
    WITH open AS MATERIALIZED (
        SELECT l.virtualtransaction AS name, pg_catalog.bool_or(l.pid IS NULL) AS is_prepared
          FROM pg_catalog.pg_locks l
         WHERE l.locktype = 'relation' AND l.relation = $1 AND l.mode = 'RowExclusiveLock' AND l.granted
           AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d
                              WHERE d.datname = pg_catalog.current_database())
           AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
         GROUP BY l.virtualtransaction),
    mark AS (SELECT COALESCE(pg_catalog.min(m.look_at), '-infinity') AS look_at
               FROM once.key_mark m WHERE m.waits_for = ''),
    ended AS (SELECT pg_catalog.array_agg(m.waits_for) AS names, pg_catalog.min(m.look_at) AS look_at
                FROM once.key_mark m WHERE m.waits_for <> '' AND m.waits_for NOT IN (SELECT o.name FROM open o)),
    noted AS (
        INSERT INTO once.key_mark (waits_for, look_at)
        SELECT o.name, CASE WHEN o.is_prepared THEN LEAST(mark.look_at, ended.look_at) ELSE mark.look_at END
          FROM open o CROSS JOIN mark CROSS JOIN ended ON CONFLICT DO NOTHING)
    SELECT mark.look_at, ended.look_at, ended.names FROM mark CROSS JOIN ended";

// $1: ids of unfinished keys. Those that are locked, or have changed, wait for the next run.
const MOVE: &CStr = c"
    WITH candidate AS MATERIALIZED (
        SELECT c.id FROM pg_catalog.unnest($1::uuid[]) c (id) UNION SELECT l.id FROM once.key_locked l),
    free AS MATERIALIZED (
        SELECT k.id FROM once.key k WHERE k.id = ANY (ARRAY(SELECT c.id FROM candidate c))
           FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE once.key k SET look_lane = '1', look_at = k.lease_until
         WHERE k.id = ANY (ARRAY(SELECT f.id FROM free f)) AND k.look_lane = '0' AND k.status = 'r' RETURNING 1),
    locked AS MATERIALIZED (
        SELECT k.id FROM once.key k
         WHERE k.id = ANY (ARRAY(SELECT c.id FROM candidate c EXCEPT SELECT f.id FROM free f))),
    noted AS (INSERT INTO once.key_locked (id) SELECT l.id FROM locked l ON CONFLICT DO NOTHING),
    forgotten AS (DELETE FROM once.key_locked l WHERE l.id NOT IN (SELECT k.id FROM locked k))
    SELECT pg_catalog.count(*) FROM moved";

// $1: the mark; $2: of the ended transactions $3; NULL: they are done with.
const END: &CStr = c"
    WITH done AS (DELETE FROM once.key_mark m WHERE m.waits_for = ANY ($3) AND $2 IS NULL),
    later AS (UPDATE once.key_mark m SET look_at = $2 WHERE m.waits_for = ANY ($3) AND m.look_at < $2)
    INSERT INTO once.key_mark AS m (waits_for, look_at) VALUES ('', $1)
    ON CONFLICT (waits_for) DO UPDATE SET look_at = excluded.look_at WHERE m.look_at <> excluded.look_at";

const BY_INDEX: &[(&CStr, &CStr)] = &[
    (c"enable_seqscan", c"off"),
    (c"enable_bitmapscan", c"off"),
    (c"jit", c"off"),
];

thread_local! {
    static BEGUN: Kept = const { Kept::new(BEGIN, &[pg_sys::OIDOID]) };
    static MOVED: Kept = const { Kept::new(MOVE, &[pg_sys::TEXTARRAYOID]) };
    static ENDED: Kept = const {
        Kept::new(END, &[pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZOID, pg_sys::TEXTARRAYOID])
    };
}

/// Moves at most `max` keys, and as many that were claimed late. None: another session is at it.
pub fn key_abandon(max: i64) -> Result<Option<Swept>> {
    let Some(lock) = TryLock::acquire(KeyId::hashed(b"", b"key_abandon").lock_hash()) else {
        return Ok(None);
    };
    lock.keep();
    if settings::fake_now()?.is_some() {
        // What a pretended clock says is nobody else's: everything is read, and nothing is noted.
        let all = OverdueKeys::find(i64::MIN, clock::now_us()?, usize::MAX, usize::MAX)?;
        return move_all(all.ids(), false).map(Some);
    }
    let table = Table::to_read(TABLE)?;
    // In this order: the clock, who is open, the snapshot of the reading.
    let now = clock::now_us()?;
    let begun = spi::query_latest(&BEGUN, &[Some(Datum::from(table.oid()))])?;
    let told = |i| begun.first().and_then(|row| column(row, i));
    let time = |i| told(i).map(|d: Datum| d.value() as i64);
    let stored = time(0).unwrap_or(i64::MIN);
    // A mark of a clock that has gone back is of no use.
    let mark = stored.min(now);
    let max = max as usize;
    let reads = max.saturating_mul(READS_PER_KEY).min(MOST_READS);
    let new = OverdueKeys::find(mark, now, max, reads)?;
    let late = match time(1).filter(|from| *from < mark) {
        Some(from) => Some(OverdueKeys::find(from, mark, max, reads)?),
        None => None,
    };
    let late_upto = late
        .as_ref()
        .map(|late| late.upto)
        .filter(|upto| *upto < mark);
    let more = new.upto < now || late_upto.is_some();
    let is_idle = new.read.is_empty() && (0..IDLE_US).contains(&now.saturating_sub(stored));
    let upto = if is_idle { mark } else { new.upto };
    let ids = late.iter().flat_map(OverdueKeys::ids).chain(new.ids());
    let swept = move_all(ids, more)?;
    if !is_idle || told(2).is_some() {
        let args = [Some(Datum::from(upto)), late_upto.map(Datum::from), told(2)];
        spi::query_latest(&ENDED, &args)?;
    }
    Ok(Some(swept))
}

/// Moves these keys and those that were locked before.
fn move_all(ids: impl Iterator<Item = String>, more: bool) -> Result<Swept> {
    let ids: Vec<String> = ids.collect();
    let ids: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    let rows = settings::under(BY_INDEX, || {
        spi::query_latest(&MOVED, &[Some(row::texts(&ids))])
    })?;
    Ok(Swept {
        done: spi::first(&rows).map_or(0, |d| d.value() as i64),
        more,
        ..Swept::default()
    })
}

/// The oldest entries of the lane ORDINARY in a range of look_at, of all scopes.
pub struct OverdueKeys {
    from: i64,
    /// All entries up to here are in it.
    upto: i64,
    /// look_at of each.
    read: BinaryHeap<i64>,
    /// look_at and id of the unfinished ones.
    found: BinaryHeap<(i64, [u8; 16])>,
    /// Entries of the index that may be looked at, those of rows that are over among them.
    looks: usize,
}

impl OverdueKeys {
    fn new(from: i64, upto: i64, looks: usize) -> OverdueKeys {
        OverdueKeys {
            from,
            upto,
            read: BinaryHeap::new(),
            found: BinaryHeap::new(),
            looks,
        }
    }

    /// After `from`, at most `upto`: at most `most` unfinished ones of at most `reads`. More only where they have the
    /// same look_at.
    fn find(from: i64, upto: i64, most: usize, reads: usize) -> Result<OverdueKeys> {
        let mut overdue = OverdueKeys::new(from, upto, usize::MAX);
        overdue.read_scopes((most, reads))?;
        Ok(overdue)
    }

    /// How many a run would find, among so many entries, and the look_at of the oldest.
    pub fn count(now: i64, looks: usize) -> Result<(usize, Option<i64>)> {
        let mut overdue = OverdueKeys::new(mark()?, now, looks);
        overdue.read_scopes((looks, looks))?;
        let oldest = overdue.found.iter().map(|(at, _)| *at).min();
        Ok((overdue.found.len(), oldest))
    }

    fn read_scopes(&mut self, bounds: (usize, usize)) -> Result<()> {
        let table = Table::to_read(TABLE)?;
        let snapshot = Snapshot::latest();
        let mut scope = Vec::new();
        while self.from < self.upto
            && self.looks > 0
            && let Some(next) =
                record::first_scope(&table, ScanKey::text_above(1, row::text(&scope)), &snapshot)?
        {
            scope = next;
            let keys = &mut lane(&scope, ORDINARY, self.from, self.upto);
            let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
            while let Step::Row(slot) = scan.step(&mut self.looks) {
                let key = KeyRow::look(slot);
                let look_at = key.i64(Col::LookAt);
                if look_at > self.upto {
                    break;
                }
                self.read.push(look_at);
                if !key.status().finished() {
                    let id = KeyId::hashed(&scope, key.bytes(Col::Key).unwrap_or_default());
                    self.found.push((look_at, *id.bytes()));
                }
                self.bound(bounds);
                pg_sys::check_for_interrupts!();
            }
        }
        Ok(())
    }

    /// Leaves out the newest where there are too many, but keeps at least one moment.
    fn bound(&mut self, (most, reads): (usize, usize)) {
        let too_many = (self.found.len() > most).then(|| self.found.peek().map(|(at, _)| *at));
        let too_far = (self.read.len() > reads).then(|| self.read.peek().copied());
        let newest = [too_many, too_far].into_iter().flatten().flatten().min();
        let Some(upto) = newest.map(|at| at - 1).filter(|upto| *upto > self.from) else {
            return;
        };
        self.upto = upto;
        while self.read.peek().is_some_and(|at| *at > upto) {
            self.read.pop();
        }
        while self.found.peek().is_some_and(|(at, _)| *at > upto) {
            self.found.pop();
        }
    }

    fn ids(&self) -> impl Iterator<Item = String> {
        self.found.iter().map(|(_, id)| hex(id))
    }
}

/// The mark, for those who only look.
fn mark() -> Result<i64> {
    let table = Table::to_read(c"key_mark")?;
    let key = &mut [ScanKey::text(1, row::text(b""))];
    let slot = table.find(c"key_mark_pkey", key, &Snapshot::now())?;
    let stored = slot.and_then(|slot| slot.column(2).map(|d| d.value() as i64));
    let is_real = settings::fake_now()?.is_none();
    Ok(stored.filter(|_| is_real).unwrap_or(i64::MIN))
}

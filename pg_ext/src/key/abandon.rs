//! The sweep task `key_abandon`: an unfinished key whose first lease has expired moves to the index lane [`PENDING`].
//! Completers read only that lane, so they never read finished keys. The lane ORDINARY has the finished keys, and the
//! keys in their first lease. The function once.metrics reads a bounded part of this lane.
//!
//! The mark is a time, stored in the row '' of once.key_mark. Every key with look_at up to the mark is finished or
//! moved, with two exceptions:
//! - A claim that commits late. Its transaction has locked once.key in ROW EXCLUSIVE mode before the claim reads the
//!   clock. The first run that sees this lock copies the present mark into a second row, the transaction's mark. While
//!   the transaction is open, its mark stays. The mark in the row '' advances, and runs move other keys. An open
//!   transaction delays only its own keys. When it has ended, the next run reads again from the transaction's mark on.
//! - A locked key. Its id is in once.key_locked, and every run tries it again.
//!
//! A run scans twice: above the mark, and for late claims. Each scan reads all scopes. It keeps a bounded number of
//! entries, those with the earliest look_at. Without rows in once.key_mark, runs begin with the very oldest entry,
//! which is slow but correct.
//!
//! A clock that steps back by more than a key's lease can hide that key from completers, but never from claims.
//! key_reap finds the key at its reap_at (`fill` in claim.rs).

use super::identity::KeyId;
use super::record::{self, BY_LOOK, Col, KeyRow, ORDINARY, TABLE, lane};
use crate::clock;
use crate::digest::hex;
use crate::error::Result;
use crate::row;
use crate::settings;
use crate::spi::{self, Kept, column};
use crate::swept::Swept;
use crate::table::{ScanKey, ScanStep, Snapshot, Table};
use crate::trylock::TryLock;
use pgrx::pg_sys::{self, Datum, OIDOID, TEXTARRAYOID, TIMESTAMPTZOID};
use std::collections::BinaryHeap;
use std::ffi::CStr;

/// A scan that may find `max` keys keeps at most `max` * READS_PER_KEY entries, and never more than MOST_READS.
const READS_PER_KEY: usize = 100;
const MOST_READS: usize = 1_000_000;
/// A run that reads no entry stores a new mark only if the stored mark is older than this, or in the future.
const IDLE_US: i64 = 30_000_000;

// $1: once.key. Answers the mark, the oldest mark of the ended transactions, and their names. PREPARE TRANSACTION gives
// an open transaction a new name, and its old name then counts as ended. Nothing shows which old name belongs to the
// new one. So the new name of a prepared transaction gets the oldest mark of the ended transactions.
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

// $1: ids of unfinished keys. Locked keys wait for the next run.
const INTO_PENDING_LANE: &CStr = c"
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

// $1: the new mark. $2: the look_at that the scan for late claims reached, or NULL after a complete scan. $3: the names
// of the ended transactions.
const END: &CStr = c"
    WITH done AS (DELETE FROM once.key_mark m WHERE m.waits_for = ANY ($3) AND $2 IS NULL),
    later AS (UPDATE once.key_mark m SET look_at = $2 WHERE m.waits_for = ANY ($3) AND m.look_at < $2)
    INSERT INTO once.key_mark AS m (waits_for, look_at) VALUES ('', $1)
    ON CONFLICT (waits_for) DO UPDATE SET look_at = excluded.look_at WHERE m.look_at <> excluded.look_at";

static BEGUN: Kept = Kept::new(BEGIN, &[OIDOID]);
static PUT_IN_PENDING_LANE: Kept = Kept::new(INTO_PENDING_LANE, &[TEXTARRAYOID]);
static ENDED: Kept = Kept::new(END, &[TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTARRAYOID]);

/// Moves about `max` keys of each of the two scans, and keys that were locked before. None: another run is active.
pub fn key_abandon(max: i64) -> Result<Option<Swept>> {
    let Some(lock) = TryLock::acquire(KeyId::hashed(b"", b"key_abandon").lock_hash()) else {
        return Ok(None);
    };
    lock.keep();
    if settings::fake_now()?.is_some() {
        // Other sessions have another clock, so this run reads everything and stores no mark.
        let bounds = (usize::MAX, usize::MAX);
        let all = OverdueKeys::find(i64::MIN, clock::now_us()?, bounds, usize::MAX)?;
        return move_all(&[all], false).map(Some);
    }
    let table = Table::to_read(TABLE)?;
    // The order matters: first the clock, then the open transactions, then the snapshot of the scan.
    let now = clock::now_us()?;
    let begun = spi::query_latest(&BEGUN, &[Some(Datum::from(table.oid()))])?;
    let answer = |i| begun.first().and_then(|row| column(row, i));
    let time = |i| answer(i).map(|d: Datum| d.value() as i64);
    let stored = time(0).unwrap_or(i64::MIN);
    // The clock may have stepped back since the mark was stored.
    let mark = stored.min(now);
    let max = max as usize;
    let bounds = (max, max.saturating_mul(READS_PER_KEY).min(MOST_READS));
    let new = OverdueKeys::find(mark, now, bounds, usize::MAX)?;
    let late = OverdueKeys::find(time(1).unwrap_or(mark), mark, bounds, usize::MAX)?;
    let late_upto = (late.upto < mark).then_some(late.upto);
    let more = late_upto.is_some() || new.upto < now;
    let is_idle = new.read.is_empty() && (0..IDLE_US).contains(&now.saturating_sub(stored));
    let upto = if is_idle { mark } else { new.upto };
    let swept = move_all(&[late, new], more)?;
    if !is_idle || answer(2).is_some() {
        let args = [
            Some(Datum::from(upto)),
            late_upto.map(Datum::from),
            answer(2),
        ];
        spi::query_latest(&ENDED, &args)?;
    }
    Ok(Some(swept))
}

/// Moves the unfinished keys, and the keys that an earlier run found locked.
fn move_all(overdue: &[OverdueKeys], more: bool) -> Result<Swept> {
    let unfinished = overdue.iter().flat_map(OverdueKeys::unfinished);
    let ids: Vec<String> = unfinished.map(|(_, id)| hex(id)).collect();
    let ids: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    let rows =
        settings::by_index(|| spi::query_latest(&PUT_IN_PENDING_LANE, &[Some(row::texts(&ids))]))?;
    Ok(Swept {
        done: spi::first(&rows).map_or(0, |d| d.value() as i64),
        more,
        ..Swept::default()
    })
}

/// The oldest entries of the lane ORDINARY in a range of look_at, of all scopes.
pub struct OverdueKeys {
    from: i64,
    /// `read` has all entries of the range up to this look_at, unless `find` stopped at its limit of index entries.
    upto: i64,
    /// look_at of each entry, and the id of each unfinished key.
    read: BinaryHeap<(i64, Option<[u8; 16]>)>,
    /// The number of unfinished keys in `read`.
    found: usize,
}

impl OverdueKeys {
    /// Keeps the oldest entries with from < look_at <= upto: at most `reads` entries and `most` unfinished keys.
    /// Entries with equal look_at are all kept or all dropped. Stops after `looks` index entries, dead rows included.
    fn find(
        from: i64,
        upto: i64,
        (most, reads): (usize, usize),
        mut looks: usize,
    ) -> Result<OverdueKeys> {
        let mut overdue = OverdueKeys {
            from,
            upto,
            read: BinaryHeap::new(),
            found: 0,
        };
        let table = Table::to_read(TABLE)?;
        let snapshot = Snapshot::latest();
        let mut scope = Vec::new();
        while from < overdue.upto
            && looks > 0
            && let Some(next) =
                record::first_scope(&table, ScanKey::text_above(1, row::text(&scope)), &snapshot)?
        {
            scope = next;
            let keys = &mut lane(&scope, ORDINARY, from, overdue.upto);
            let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
            while let ScanStep::Row(slot) = scan.step(&mut looks) {
                let key = KeyRow::borrow(slot);
                let look_at = key.i64(Col::LookAt);
                if look_at > overdue.upto {
                    break;
                }
                let name = key.bytes(Col::Key).unwrap_or_default();
                let id = || *KeyId::hashed(&scope, name).bytes();
                overdue.add(look_at, (!key.status().finished()).then(id));
                overdue.bound(most, reads);
                pg_sys::check_for_interrupts!();
            }
        }
        Ok(overdue)
    }

    /// Counts the keys that a run would find in at most `looks` index entries. Also answers the look_at of the oldest
    /// key.
    pub fn count(now: i64, looks: usize) -> Result<(usize, Option<i64>)> {
        let overdue = OverdueKeys::find(mark()?, now, (looks, looks), looks)?;
        let oldest = overdue.unfinished().map(|(at, _)| at).min();
        Ok((overdue.found, oldest))
    }

    fn add(&mut self, look_at: i64, id: Option<[u8; 16]>) {
        self.found += usize::from(id.is_some());
        self.read.push((look_at, id));
    }

    /// Drops the newest entries while there are too many. The range stays at least one microsecond long.
    fn bound(&mut self, most: usize, reads: usize) {
        while self.found > most || self.read.len() > reads {
            let newest = self.read.peek().map_or(self.from, |(at, _)| *at);
            if newest.saturating_sub(1) <= self.from {
                return;
            }
            self.upto = newest - 1;
            while let Some((at, _)) = self.read.peek()
                && *at > self.upto
            {
                let left_out = self.read.pop();
                self.found -= usize::from(left_out.is_some_and(|(_, id)| id.is_some()));
            }
        }
    }

    fn unfinished(&self) -> impl Iterator<Item = (i64, &[u8; 16])> {
        (self.read.iter()).filter_map(|(at, id)| id.as_ref().map(|id| (*at, id)))
    }
}

/// The time of the next useful run: now if a key was locked, else the earliest look_at above the mark.
pub fn next_look() -> Result<Option<i64>> {
    let locked = Table::to_read(c"key_locked")?;
    if locked
        .find(c"key_locked_pkey", &mut [], &Snapshot::now())?
        .is_some()
    {
        return clock::now_us().map(Some);
    }
    let next = OverdueKeys::find(mark()?, i64::MAX, (1, 1), usize::MAX)?;
    Ok(next.read.into_iter().map(|(at, _)| at).min())
}

/// The mark, for a call that only reads.
fn mark() -> Result<i64> {
    let table = Table::to_read(c"key_mark")?;
    let key = &mut [ScanKey::text(1, row::text(b""))];
    let slot = table.find(c"key_mark_pkey", key, &Snapshot::now())?;
    let stored = slot.and_then(|slot| slot.column(2).map(|d| d.value() as i64));
    let is_real = settings::fake_now()?.is_none();
    Ok(stored.filter(|_| is_real).unwrap_or(i64::MIN))
}

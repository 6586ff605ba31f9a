//! Leases that are alive or overdue: of keys, and of the actions of each machine.
//!
//! No index tells an unfinished key from a finished one (that would cost every completion its HOT update), so entries of
//! the index by look_at are looked at that come after the scope's bookmark: half of them the oldest, because takes and
//! sweeps move the bookmark up to the oldest key that waits for somebody, and half the newest, because those are alive.
//! How far that went is told, too.

use super::{Sheet, entries_for};
use crate::action::lease::{BY_LOOK as LEASES_BY_LOOK, Col as LeaseCol, Lease, State};
use crate::call::{shown, varlena};
use crate::clock::{self, INFINITY};
use crate::error::Result;
use crate::key::bookmark::{self, Bookmark, WORTH_MOVING};
use crate::key::decide::{self, Decision};
use crate::key::record::{self, Col, FIRST_ATTEMPT, LOOKED_AFTER, Record, Status, lane};
use crate::key::scope::Options;
use crate::machine::stored;
use crate::row;
use crate::table::{ScanKey, Snapshot, Step, Table};
use pgrx::itemptr::item_pointer_to_u64;
use pgrx::pg_sys::Datum;
use std::collections::HashSet;

/// Entries of the index that one call looks at, and scopes.
const LOOKS: usize = 4_000;
const SCOPES: usize = 200;
/// Where there are more scopes: bookmarks that are looked through for those in which a sweep has found an overdue key,
/// and how many of them are looked at, too.
const BOOKMARKS: usize = 20_000;
const AWAITED: usize = 50;
/// Looks at each of these: more than the living keys that a sweep of a small scope leaves before an overdue one.
const LOOKS_AWAITED: usize = 2 * WORTH_MOVING;
/// Of each machine at least so many.
const LEAST_LOOKS: usize = 200;

const COMPLETE: &str = "1: every lease was looked at; 0: only the oldest and the newest 2000 keys that no take and no sweep has passed, of the first 200 scopes and of those where a sweep has found an overdue key, or the first 4000 leases of actions, were, and the counts are lower bounds. The oldest overdue key is told all the same where sweeps run (of 20000 scopes).";

/// What the keys' leases are at.
#[derive(Default)]
pub struct Keys {
    pub alive: u64,
    pub overdue: u64,
    pub waiting: u64,
    pub parked: u64,
    pub oldest_us: i64,
    pub cut_short: bool,
}

/// Leases of keys.
pub fn keys(sheet: &Sheet) -> Result<()> {
    let keys = Keys::look()?;
    let states = [
        ("alive", keys.alive),
        ("overdue", keys.overdue),
        ("waiting", keys.waiting),
    ];
    for (state, count) in states {
        sheet.put(
            "pg_once_key_leases",
            &[("state", state)],
            count as f64,
            "Unfinished keys: alive: somebody is at it; overdue: its lease ran out, or it was released and is due, and nobody goes on; waiting: released, not due yet. Bounded, see pg_once_leases_complete.",
        )?;
    }
    sheet.put(
        "pg_once_keys_overdue_seconds",
        &[],
        keys.oldest_us as f64 / 1e6,
        "For how long the oldest overdue key that was looked at has waited for somebody to go on; 0: none. However many newer keys there are, the sweeps see to it that it is looked at; without them, see pg_once_leases_complete.",
    )?;
    sheet.put(
        "pg_once_keys_parked",
        &[],
        keys.parked as f64,
        "Keys that wait for key_resolve: parked by a call, by on_expiry or by max_attempts. Bounded, see pg_once_leases_complete.",
    )?;
    let complete = f64::from(u8::from(!keys.cut_short));
    sheet.put(
        "pg_once_leases_complete",
        &[("of", "keys")],
        complete,
        COMPLETE,
    )
}

impl Keys {
    /// As far as the bounds go.
    pub fn look() -> Result<Keys> {
        let mut keys = Keys::default();
        let table = Table::to_read(record::TABLE)?;
        let snapshot = Snapshot::now();
        let mut scopes: Vec<Vec<u8>> = Vec::new();
        let mut awaited = Vec::new();
        // By entries, so that a scope whose keys are all gone, and kept by an old snapshot, costs one probe, too.
        loop {
            let last = scopes.last().map_or(&b""[..], Vec::as_slice);
            let range = ScanKey::text_above(1, row::text(last));
            let Some(scope) = record::first_scope(&table, range, &snapshot)? else {
                break;
            };
            if scopes.len() >= SCOPES {
                keys.cut_short = true;
                awaited = bookmark::awaited(last, AWAITED, BOOKMARKS, &snapshot)?;
                break;
            }
            scopes.push(scope);
        }
        let (mut left, mut spare) = (LOOKS, AWAITED * LOOKS_AWAITED);
        for (i, scope) in scopes.iter().enumerate() {
            let share = left / (scopes.len() - i);
            let looked = keys.look_at(scope, share, &mut spare, &table, &snapshot)?;
            left -= looked.min(share);
        }
        for scope in &awaited {
            keys.look_at(scope, 0, &mut { LOOKS_AWAITED }, &table, &snapshot)?;
        }
        Ok(keys)
    }

    /// At most `most` entries of a scope, those that were claimed again or put aside first, they are few; from `spare`
    /// as many as lead to a key that waits for a completer.
    fn look_at(
        &mut self,
        scope: &[u8],
        most: usize,
        spare: &mut usize,
        table: &Table,
        snapshot: &Snapshot,
    ) -> Result<usize> {
        let now = clock::now_us()?;
        let bookmark = Bookmark::of(scope, now, snapshot)?;
        let watch = Watch {
            scope,
            now,
            options: Options::for_watching(scope)?,
            passed: bookmark.upto,
        };
        let mut most = most;
        if bookmark.is_awaited() {
            let more = LOOKS_AWAITED.saturating_sub(most).min(*spare);
            (most, *spare) = (most + more, *spare - more);
        }
        let mut left = most;
        // The few take no more than half of the looks from the others, however often their entries have changed.
        for (lane, share) in [(LOOKED_AFTER, most / 2), (FIRST_ATTEMPT, most)] {
            let mut looks = share.min(left);
            left -= looks;
            self.look_at_lane(&watch, lane, &mut looks, table, snapshot)?;
            left += looks;
        }
        Ok(most - left)
    }

    /// Half of the looks go to the oldest entries of a lane, what is left to the newest, and none is counted twice.
    fn look_at_lane(
        &mut self,
        watch: &Watch,
        lane: u8,
        looks: &mut usize,
        table: &Table,
        snapshot: &Snapshot,
    ) -> Result<()> {
        let mut first = looks.div_ceil(2);
        *looks -= first;
        // Those with the last look_at: others may have the same, and a btree shows those in no certain order.
        let (mut seen_to, mut seen) = (watch.passed, HashSet::new());
        let keys = &mut watch.after(lane, watch.passed);
        let mut scan = table.scan(record::BY_LOOK, keys, snapshot)?;
        loop {
            match scan.step(&mut first) {
                Step::Row(slot) => {
                    let key = Record::look(slot);
                    if key.i64(Col::LookAt) > seen_to {
                        seen_to = key.i64(Col::LookAt);
                        seen.clear();
                    }
                    seen.insert(item_pointer_to_u64(slot.tid()));
                    self.note(&key, watch);
                }
                Step::End => {
                    *looks += first;
                    return Ok(());
                }
                Step::Tired => break,
            }
        }
        let keys = &mut watch.after(lane, seen_to.saturating_sub(1).max(watch.passed));
        let mut scan = table.scan(record::BY_LOOK, keys, snapshot)?.backwards();
        loop {
            match scan.step(looks) {
                Step::Row(slot) if seen.contains(&item_pointer_to_u64(slot.tid())) => {}
                Step::Row(slot) => self.note(&Record::look(slot), watch),
                Step::End => return Ok(()),
                Step::Tired => {
                    self.cut_short = true;
                    return Ok(());
                }
            }
        }
    }

    fn note(&mut self, key: &Record, watch: &Watch) {
        let Watch { now, options, .. } = watch;
        if key.status().finished() {
            return;
        }
        let until = key.i64(Col::LeaseUntil);
        match (decide::unfinished(key, *now, options), key.status()) {
            (Decision::Parked, _) => self.parked += 1,
            (Decision::TakeOver, _) => {
                self.overdue += 1;
                self.oldest_us = self.oldest_us.max(now.saturating_sub(until));
            }
            (_, Status::Running) => self.alive += 1,
            _ => self.waiting += 1,
        }
    }
}

/// A scope that is looked at.
struct Watch<'a> {
    scope: &'a [u8],
    now: i64,
    options: Options,
    /// Every key up to here is finished, or has been moved forward.
    passed: i64,
}

impl Watch<'_> {
    /// The scan keys of a lane behind a look_at; keys that are put aside stand at infinity.
    fn after(&self, name: u8, from: i64) -> [ScanKey; 4] {
        lane(self.scope, name, from, INFINITY)
    }
}

/// What the leases of a machine's actions are at.
#[derive(Default)]
pub struct Actions {
    pub alive: u64,
    pub overdue: u64,
    /// Overdue ones that a sweep could not revert.
    pub put_off: u64,
    pub oldest_us: i64,
    /// What the sweep said of one of them.
    pub note: Option<String>,
    pub cut_short: bool,
}

impl Actions {
    /// At most `most` leases of a machine, those that a sweep would look at first.
    pub fn look(machine: &[u8], most: usize) -> Result<Actions> {
        let mut actions = Actions::default();
        let table = Table::to_read(crate::action::lease::TABLE)?;
        let snapshot = Snapshot::now();
        let now = clock::now_us()?;
        let keys = &mut [ScanKey::text(1, row::text(machine))];
        let mut scan = table.scan(LEASES_BY_LOOK, keys, &snapshot)?;
        let mut looks = entries_for(most);
        for _ in 0..=most {
            let lease = match scan.step(&mut looks) {
                Step::Row(slot) => Lease::look(slot),
                Step::End => return Ok(actions),
                Step::Tired => break,
            };
            if lease.state() == State::Held && lease.i64(LeaseCol::LookAt) < INFINITY {
                actions.note(&lease, now);
            }
        }
        actions.cut_short = true;
        Ok(actions)
    }

    fn note(&mut self, lease: &Lease, now: i64) {
        let over = now.saturating_sub(lease.i64(LeaseCol::LeaseUntil));
        if over < 0 {
            self.alive += 1;
            return;
        }
        self.overdue += 1;
        self.oldest_us = self.oldest_us.max(over);
        if lease.i32(LeaseCol::Failures) > 0 {
            self.put_off += 1;
            self.note = lease.bytes(LeaseCol::Note).map(shown);
        }
    }
}

/// The names of all machines.
pub fn machines() -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    stored::each_stored(&mut |stored| {
        let name = stored
            .column(stored::Col::Machine)
            .map(|d: Datum| varlena(d).to_vec());
        names.extend(name);
        Ok(())
    })?;
    Ok(names)
}

/// Leases of actions.
pub fn actions(sheet: &Sheet) -> Result<()> {
    let machines = machines()?;
    let share = (LOOKS / machines.len().max(1)).max(LEAST_LOOKS);
    let mut cut_short = false;
    for name in machines {
        let actions = Actions::look(&name, share)?;
        cut_short |= actions.cut_short;
        let machine = shown(&name);
        let states = [
            ("alive", actions.alive),
            ("overdue", actions.overdue),
            ("put_off", actions.put_off),
        ];
        for (state, count) in states {
            sheet.put(
                "pg_once_action_leases",
                &[("machine", &machine), ("state", state)],
                count as f64,
                "Leases of actions: alive; overdue: the next sweep reverts its row; put_off: those of the overdue that a sweep could not revert. Bounded, see pg_once_leases_complete.",
            )?;
        }
        sheet.put(
            "pg_once_machine_overdue_seconds",
            &[("machine", &machine)],
            actions.oldest_us as f64 / 1e6,
            "For how long the oldest overdue lease that was looked at has waited for a sweep; 0: none.",
        )?;
    }
    let complete = f64::from(u8::from(!cut_short));
    sheet.put(
        "pg_once_leases_complete",
        &[("of", "actions")],
        complete,
        COMPLETE,
    )
}

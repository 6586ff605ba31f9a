//! Leases that are alive or overdue: of keys, and of the actions of each machine.
//!
//! Overdue keys are in the lane PENDING: key_abandon moves a key there when its first lease has expired. Until then the
//! key is in the lane ORDINARY, with finished keys. An index that separates unfinished keys would prevent HOT
//! updates of completions. So a bounded number of keys is read; pg_once_leases_complete is 0 if there may be more.

use super::{Sheet, entries_for};
use crate::action::lease::{BY_LOOK as LEASES_BY_LOOK, Lease, LeaseCol, LeaseState};
use crate::call::shown;
use crate::clock::{self, INFINITY};
use crate::error::Result;
use crate::key::decide::{self, KeyDecision};
use crate::key::record::{self, Col, KeyRow, KeyStatus, ORDINARY, PENDING, lane};
use crate::key::scope::ScopeOptions;
use crate::machine::stored;
use crate::row;
use crate::table::{ScanKey, ScanStep, Snapshot, Table};

/// Limits of a call: MOST_ENTRIES index entries of pending keys, MOST_ENTRIES of other keys, MOST_ENTRIES leases of
/// actions, and SCOPES scopes. Each scope and machine may read LEAST_* at least, so many of them may read more.
const MOST_ENTRIES: usize = 4_000;
const SCOPES: usize = 2_000;
const LEAST_ENTRIES_OF_SCOPE: usize = 8;
/// `too_long` has up to this many keys.
const NAMED: usize = 5;
/// The limit of leases per machine is never below this number.
const LEAST_LEASES: usize = 200;

const COMPLETE: &str = "1: every lease was read; 0: the counts are lower bounds. One call reads, in at most 2000 scopes, about 4000 pending keys (the oldest first) and about 4000 other keys (the newest first), and about 4000 leases of actions.";

/// The numbers of unfinished keys, by state.
#[derive(Default)]
pub struct KeyLeases {
    pub alive: u64,
    pub overdue: u64,
    pub waiting: u64,
    pub parked: u64,
    pub oldest_us: i64,
    pub cut_short: bool,
    /// (scope, key) of up to NAMED keys whose lease ends more than max_lease_life from now.
    pub too_long: Vec<(String, String)>,
}

pub fn keys(sheet: &Sheet) -> Result<()> {
    let keys = KeyLeases::count()?;
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
            "Unfinished keys: alive: under a lease; overdue: to be resumed, because the lease expired (a first lease counts after the next sweep) or because the key was released and is due; waiting: released, not due yet. Bounded, see pg_once_leases_complete.",
        )?;
    }
    sheet.put(
        "pg_once_keys_overdue_seconds",
        &[],
        keys.oldest_us as f64 / 1e6,
        "For how long the oldest overdue key has waited to be resumed; 0: none. A key whose first lease expired counts after the next sweep (key_abandon).",
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

impl KeyLeases {
    /// Counts the keys, up to the bounds.
    pub fn count() -> Result<KeyLeases> {
        let mut keys = KeyLeases::default();
        let table = Table::to_read(record::TABLE)?;
        let snapshot = Snapshot::now();
        let mut scopes: Vec<Vec<u8>> = Vec::new();
        // Reads the first index entry of each scope. That entry may belong to a deleted key. It is not skipped, because
        // a scope may have very many such entries.
        loop {
            let last = scopes.last().map_or(&b""[..], Vec::as_slice);
            let range = ScanKey::text_above(1, row::text(last));
            let Some(scope) = record::first_scope(&table, range, &snapshot)? else {
                break;
            };
            if scopes.len() >= SCOPES {
                keys.cut_short = true;
                break;
            }
            scopes.push(scope);
        }
        for lane in [PENDING, ORDINARY] {
            let mut left = MOST_ENTRIES;
            for (i, scope) in scopes.iter().enumerate() {
                let mut looks = (left / (scopes.len() - i)).max(LEAST_ENTRIES_OF_SCOPE);
                left = left.saturating_sub(looks);
                keys.look_at_lane(scope, lane, &mut looks, &table, &snapshot)?;
                left += looks;
            }
        }
        Ok(keys)
    }

    /// Reads pending keys, the oldest first, or keys of the other lane, the newest first.
    fn look_at_lane(
        &mut self,
        scope: &[u8],
        name: u8,
        looks: &mut usize,
        table: &Table,
        snapshot: &Snapshot,
    ) -> Result<()> {
        let (now, options) = (clock::now_us()?, ScopeOptions::for_watching(scope)?);
        let from = if name == PENDING { i64::MIN } else { now };
        let keys = &mut lane(scope, name, from, INFINITY);
        let mut scan = table.scan(record::BY_LOOK, keys, snapshot)?;
        if name == ORDINARY {
            scan = scan.backwards();
        }
        loop {
            match scan.step(looks) {
                ScanStep::Row(slot) => self.note(&KeyRow::borrow(slot), now, &options),
                ScanStep::End => return Ok(()),
                ScanStep::LimitReached => {
                    self.cut_short = true;
                    return Ok(());
                }
            }
        }
    }

    fn note(&mut self, key: &KeyRow, now: i64, options: &ScopeOptions) {
        if key.status().finished() {
            return;
        }
        let until = key.i64(Col::LeaseUntil);
        match (decide::unfinished(key, now, options), key.status()) {
            (KeyDecision::Parked, _) => self.parked += 1,
            (KeyDecision::TakeOver, _) => {
                self.overdue += 1;
                self.oldest_us = self.oldest_us.max(now.saturating_sub(until));
            }
            (_, KeyStatus::Running) => {
                self.alive += 1;
                if until.saturating_sub(now) > options.max_lease_life_us
                    && self.too_long.len() < NAMED
                {
                    let text = |col| shown(key.bytes(col).unwrap_or_default());
                    self.too_long.push((text(Col::Scope), text(Col::Key)));
                }
            }
            _ => self.waiting += 1,
        }
    }
}

#[derive(Default)]
pub struct ActionLeases {
    pub alive: u64,
    pub overdue: u64,
    /// Overdue leases that a sweep could not revert.
    pub deferred: u64,
    pub oldest_us: i64,
    /// The column `note` of one of the deferred leases.
    pub note: Option<String>,
    pub cut_short: bool,
}

impl ActionLeases {
    /// Reads up to `most` + 1 leases of a machine, in the order in which a sweep looks at them.
    pub fn count(machine: &[u8], most: usize) -> Result<ActionLeases> {
        let mut actions = ActionLeases::default();
        let table = Table::to_read(crate::action::lease::TABLE)?;
        let snapshot = Snapshot::now();
        let now = clock::now_us()?;
        let keys = &mut [ScanKey::text(1, row::text(machine))];
        let mut scan = table.scan(LEASES_BY_LOOK, keys, &snapshot)?;
        let mut looks = entries_for(most);
        for _ in 0..=most {
            let lease = match scan.step(&mut looks) {
                ScanStep::Row(slot) => Lease::borrow(slot),
                ScanStep::End => return Ok(actions),
                ScanStep::LimitReached => break,
            };
            if lease.state() == LeaseState::Held && lease.i64(LeaseCol::LookAt) < INFINITY {
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
            self.deferred += 1;
            self.note = lease.bytes(LeaseCol::Note).map(shown);
        }
    }
}

pub fn actions(sheet: &Sheet) -> Result<()> {
    let machines = stored::names()?;
    let share = (MOST_ENTRIES / machines.len().max(1)).max(LEAST_LEASES);
    let mut cut_short = false;
    for name in machines {
        let actions = ActionLeases::count(&name, share)?;
        cut_short |= actions.cut_short;
        let machine = shown(&name);
        let states = [
            ("alive", actions.alive),
            ("overdue", actions.overdue),
            ("deferred", actions.deferred),
        ];
        for (state, count) in states {
            sheet.put(
                "pg_once_action_leases",
                &[("machine", &machine), ("state", state)],
                count as f64,
                "Leases of actions: alive; overdue: the next sweep reverts its row; deferred: overdue, and a sweep could not revert its row. Bounded, see pg_once_leases_complete.",
            )?;
        }
        sheet.put(
            "pg_once_machine_overdue_seconds",
            &[("machine", &machine)],
            actions.oldest_us as f64 / 1e6,
            "For how long the oldest overdue lease that was read has waited for a sweep; 0: none.",
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

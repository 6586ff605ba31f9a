//! Leases that are alive or overdue: of keys, and of the actions of each machine.
//!
//! No index tells an unfinished key from a finished one (that would cost every completion its HOT update), so the
//! newest entries of the index by look_at are looked at, down to what key_take_abandoned has passed; how far that went
//! is told, too.

use super::{Sheet, entries_for};
use crate::action::lease::{BY_LOOK as LEASES_BY_LOOK, Col as LeaseCol, Lease, State};
use crate::call::{shown, varlena};
use crate::clock::{self, INFINITY};
use crate::error::Result;
use crate::key::abandoned;
use crate::key::decide::{self, Decision};
use crate::key::record::{self, Col, FIRST_ATTEMPT, LOOKED_AFTER, Record, Status};
use crate::key::scope::Options;
use crate::machine::stored;
use crate::row;
use crate::table::{ScanKey, Snapshot, Step, Table};
use pgrx::pg_sys::Datum;

/// Entries of the index that one call looks at, and scopes.
const LOOKS: usize = 4_000;
const SCOPES: usize = 200;
/// Of each machine at least so many.
const LEAST_LOOKS: usize = 200;

const COMPLETE: &str = "1: every lease was looked at; 0: only the newest 4000 keys of the first 200 scopes, or the first 4000 leases of actions, were, and the counts are lower bounds (for keys a completer, key_take_abandoned, keeps the rest out of the way).";

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
        "For how long the oldest overdue key that was looked at has waited for somebody to go on; 0: none. Bounded, see pg_once_leases_complete.",
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
        // By entries, so that a scope whose keys are all gone, and kept by an old snapshot, costs one probe, too.
        let name = |entry: &[Option<Datum>]| entry[0].map(|d| varlena(d).to_vec());
        loop {
            let after = scopes.last().map_or(&b""[..], Vec::as_slice);
            let key = &mut [ScanKey::text_above(1, row::text(after))];
            let found = table.first_entry(record::BY_LOOK, key, &snapshot, name)?;
            let Some(scope) = found.flatten() else {
                break;
            };
            if scopes.len() >= SCOPES {
                keys.cut_short = true;
                break;
            }
            scopes.push(scope);
        }
        let mut left = LOOKS;
        for (i, scope) in scopes.iter().enumerate() {
            let share = left / (scopes.len() - i);
            left -= keys.look_at(scope, share, &table, &snapshot)?;
        }
        Ok(keys)
    }

    /// At most `most` entries of a scope: those that were claimed again or put aside first, they are few.
    fn look_at(
        &mut self,
        scope: &[u8],
        most: usize,
        table: &Table,
        snapshot: &Snapshot,
    ) -> Result<usize> {
        let now = clock::now_us()?;
        let options = Options::for_watching(scope)?;
        let passed = abandoned::passed(scope, now, snapshot)?;
        let mut left = most;
        // The few take no more than half of the looks from the others, however often their entries have changed.
        for (lane, share) in [(LOOKED_AFTER, most / 2), (FIRST_ATTEMPT, most)] {
            let mut looks = share.min(left);
            left -= looks;
            let keys = &mut [
                ScanKey::text(1, row::text(scope)),
                ScanKey::char(2, lane),
                ScanKey::after(3, passed),
            ];
            let mut scan = table.scan(record::BY_LOOK, keys, snapshot)?.backwards();
            loop {
                match scan.step(&mut looks) {
                    Step::Row(slot) => self.note(&Record::look(slot), now, &options),
                    Step::End => break,
                    Step::Tired => {
                        self.cut_short = true;
                        break;
                    }
                }
            }
            left += looks;
        }
        Ok(most - left)
    }

    fn note(&mut self, key: &Record, now: i64, options: &Options) {
        if key.status().finished() {
            return;
        }
        let until = key.i64(Col::LeaseUntil);
        match (decide::unfinished(key, now, options), key.status()) {
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

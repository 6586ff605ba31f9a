//! The sweep task `action_release`: puts rows with an overdue lease back to revert_to.
//!
//! For each machine the task reads the overdue leases by their index, in batches (`revert.rs`). Locked rows, and rows
//! whose trigger refuses, do not stop the other machines.
//!
//! Invariant: `more` is true only if this call changed something, so a loop on `more` ends.

use super::lease::{BY_LOOK, Lease, LeaseCol, LeaseState, REMEMBERED_US, TABLE};
use super::revert::{DueLease, LeaseChange, Reverted, change_lease, revert_due};
use crate::clock;
use crate::error::Result;
use crate::machine::stored::{self, StoredMachine};
use crate::row;
use crate::spi;
use crate::subxact::Failure;
use crate::swept::{self, ACTION_RELEASE, Swept};
use crate::table::{Scan, ScanKey, Snapshot, Table};

/// A sweep of up to `max` rows reads at most `max * LOOKS_PER_ROW` leases of a machine. The number is so high that
/// ended and locked leases hardly ever hide due leases.
const LOOKS_PER_ROW: usize = 1_000;
/// A sweep of up to `max` rows changes at most `max * TIDIED_PER_ROW` ended or extended leases of a machine.
const TIDIED_PER_ROW: usize = 10;

/// Work that a sweep does for a machine after reverting its rows. The inner error counts as the machine's failure.
pub type Beside = fn(&[u8]) -> Result<std::result::Result<(), Failure>>;

/// Sweeps at most `max` rows of one machine (`only`) or of all machines, and records the runs. The least recently swept
/// machine is first.
pub fn sweep_leases(max: i64, only: Option<&[u8]>, beside: Beside) -> Result<Swept> {
    let mut all = Swept::default();
    let mut runs = Vec::new();
    let mut left = max;
    // Only the names are read here. Each machine's definition is read later, in a subtransaction. The sweep counts an
    // unreadable definition as a failure, and goes on with the next machine.
    let names = match only {
        Some(name) => vec![StoredMachine::existing(name)?.name().to_vec()],
        None => stored::names()?,
    };
    for name in by_last_end(names)? {
        if left <= 0 {
            all.more = true;
            break;
        }
        let mut turn = sweep_machine(&name, left)?;
        left -= turn.settled;
        if let Err(failure) = beside(&name)? {
            turn.swept.add(Swept::failure(1, &failure.message));
        }
        all.add(turn.swept.clone());
        runs.push((name, turn.swept));
    }
    let is_good = all.failed == 0;
    swept::noting(&mut all, || {
        for (name, swept) in &runs {
            // A machine that was dropped during the sweep gets no record.
            if StoredMachine::find(name)?.is_some() {
                swept::record(ACTION_RELEASE, name, swept, swept.failed == 0)?;
            }
        }
        match only {
            // The task's own record counts no rows, because the machines' records do.
            None => swept::record(ACTION_RELEASE, b"", &Swept::default(), is_good),
            Some(_) => Ok(()),
        }
    })?;
    Ok(all)
}

/// Runs the caller's deferred triggers now, because they must not run as a table's owner. Their errors fail the sweep.
pub fn prepare() -> Result<()> {
    spi::run_as_caller(c"SET CONSTRAINTS ALL IMMEDIATE")
}

fn by_last_end(mut names: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    names.sort();
    let mut found = Vec::new();
    for name in names {
        found.push((swept::last_end(&name)?, name));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, name)| name).collect())
}

/// Reverts at most `max` rows of one machine.
fn sweep_machine(name: &[u8], max: i64) -> Result<Reverted> {
    let mut turn = Reverted::default();
    let mut looks = max as usize * LOOKS_PER_ROW;
    let mut to_tidy = max as usize * TIDIED_PER_ROW;
    let mut tidied = 0;
    let now = clock::now_us()?;
    let table = Table::to_read(TABLE)?;
    let snapshot = Snapshot::now();
    let keys = &mut [ScanKey::text(1, row::text(name)), ScanKey::until(2, now)];
    // One scan for all chunks: a second scan with this snapshot would return again the leases that this call changed.
    let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
    loop {
        let chunk = next_leases(&mut scan, now, looks, (max - turn.settled) as usize + 1);
        looks -= chunk.looked;
        let (now_tidied, later) = chunk.ended.split_at(chunk.ended.len().min(to_tidy));
        to_tidy -= now_tidied.len();
        tidied += tidy(now_tidied)?;
        turn.swept.more |= !later.is_empty() && tidied > 0;
        let mut due = &chunk.due[..];
        // A locked row does not count as settled, so a further row is tried in its place.
        while !due.is_empty() && turn.settled < max {
            let left = (max - turn.settled) as usize;
            let (now, later) = due.split_at(due.len().min(left));
            let reverted = revert_due(name, now)?;
            turn.settled += reverted.settled;
            turn.swept.add(reverted.swept);
            if reverted.is_cut_short {
                turn.swept.more = turn.settled > 0;
                return Ok(turn);
            }
            due = later;
        }
        if turn.settled >= max {
            turn.swept.more |= chunk.full || !due.is_empty();
            return Ok(turn);
        }
        if !chunk.full {
            return Ok(turn);
        }
        if looks == 0 {
            // If all rows were locked, another call at once would change nothing.
            turn.swept.more |= turn.settled + tidied > 0;
            return Ok(turn);
        }
    }
}

struct LeaseChunk {
    due: Vec<DueLease>,
    /// Ended or extended leases, which are deleted or get another look_at.
    ended: Vec<[u8; 16]>,
    looked: usize,
    /// Whether the scan may have more leases.
    full: bool,
}

/// The next leases of the scan. Stops after `most` leases, or after `most_due` due leases.
fn next_leases(scan: &mut Scan<'_>, now: i64, most: usize, most_due: usize) -> LeaseChunk {
    let mut chunk = LeaseChunk {
        due: Vec::new(),
        ended: Vec::new(),
        looked: 0,
        full: true,
    };
    while chunk.looked < most && chunk.due.len() < most_due {
        let Some(slot) = scan.advance() else {
            chunk.full = false;
            break;
        };
        let lease = Lease::borrow(slot);
        let Some(key) = lease.key() else {
            continue;
        };
        chunk.looked += 1;
        if lease.state() == LeaseState::Held && lease.i64(LeaseCol::LeaseUntil) <= now {
            chunk.due.push(DueLease {
                key,
                token: lease.i64(LeaseCol::Token),
                row_id: lease.bytes(LeaseCol::RowId).unwrap_or_default().to_vec(),
            });
        } else {
            chunk.ended.push(key);
        }
    }
    chunk
}

/// Deletes leases that ended long enough ago, and sets look_at of the other leases. Returns how many leases it changed.
fn tidy(keys: &[[u8; 16]]) -> Result<i64> {
    let mut tidied = 0;
    let table = Table::to_write(TABLE)?;
    for key in keys {
        tidied += i64::from(change_lease(&table, key, |lease, now| {
            let is_held = lease.state() == LeaseState::Held;
            let look_at = match is_held {
                true => (lease.i64(LeaseCol::LeaseUntil)).max(lease.i64(LeaseCol::LookAt)),
                false => lease.i64(LeaseCol::EndedAt).saturating_add(REMEMBERED_US),
            };
            if !is_held && look_at <= now {
                return LeaseChange::Delete;
            }
            lease.put_i64(LeaseCol::LookAt, look_at);
            LeaseChange::Write
        })?);
    }
    Ok(tidied)
}

//! The sweep task `action_release`: rows whose action's lease is overdue go back to revert_to.
//!
//! For each machine: its overdue leases by the index, in batches (`revert.rs`). What it cannot lock, and rows whose
//! trigger refuses, keep no other machine from its turn.
//!
//! Invariant: `more` is told only where this call has changed something, so whoever goes on while `more` comes to an end.

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

/// Leases that are looked at for each row that may be swept: reading is cheap, and what has ended or is locked
/// must not hide what is due.
const LOOKS_PER_ROW: usize = 1_000;
/// Ended or extended leases that are moved on or removed for each row that may be swept.
const TIDIED_PER_ROW: usize = 10;

/// What else is done in a machine's turn; an error of its own is the machine's failure.
pub type Beside = fn(&[u8]) -> Result<std::result::Result<(), Failure>>;

/// Sweeps every machine, those that were swept longest ago first, at most `max` rows in all, and notes each.
pub fn sweep_leases(max: i64, only: Option<&[u8]>, beside: Beside) -> Result<Swept> {
    let mut all = Swept::default();
    let mut runs = Vec::new();
    let mut left = max;
    // A definition that cannot be read is its machine's own failure.
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
            // None of one that was dropped meanwhile.
            if StoredMachine::find(name)?.is_some() {
                swept::record(ACTION_RELEASE, name, swept, swept.failed == 0)?;
            }
        }
        match only {
            // Its rows are counted for the machines.
            None => swept::record(ACTION_RELEASE, b"", &Swept::default(), is_good),
            Some(_) => Ok(()),
        }
    })?;
    Ok(all)
}

/// What the caller has deferred must not run as somebody else, and nothing is deferred from here on. What fails
/// by that is the caller's error.
pub fn prepare() -> Result<()> {
    spi::run_as_caller(c"SET CONSTRAINTS ALL IMMEDIATE")
}

/// Whose last sweep ended the longest ago comes first.
fn by_last_end(mut names: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    names.sort();
    let mut found = Vec::new();
    for name in names {
        found.push((swept::last_end(ACTION_RELEASE, &name)?, name));
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
    // One scan to the end: what is deferred meanwhile is not seen again by it.
    let mut scan = table.scan(BY_LOOK, keys, &snapshot)?;
    loop {
        let chunk = next_leases(&mut scan, now, looks, (max - turn.settled) as usize + 1);
        looks -= chunk.looked;
        let (now_tidied, later) = chunk.ended.split_at(chunk.ended.len().min(to_tidy));
        to_tidy -= now_tidied.len();
        tidied += tidy(now_tidied)?;
        turn.swept.more |= !later.is_empty() && tidied > 0;
        let mut due = &chunk.due[..];
        // Rows that somebody has locked take no other row's place.
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
            // Nor are they a reason to come back at once.
            turn.swept.more |= turn.settled + tidied > 0;
            return Ok(turn);
        }
    }
}

/// What the index says of one stretch of leases.
struct LeaseChunk {
    due: Vec<DueLease>,
    /// Ended, or extended since: to be removed or looked at later.
    ended: Vec<[u8; 16]>,
    looked: usize,
    /// The scan may have more.
    full: bool,
}

/// The next leases of the scan, until so many were looked at or were due.
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
        let lease = Lease::look(slot);
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

/// Removes leases that ended long enough ago and moves the others to their next look; how many.
fn tidy(keys: &[[u8; 16]]) -> Result<i64> {
    let mut tidied = 0;
    let table = Table::to_write(TABLE)?;
    for key in keys {
        tidied += i64::from(change_lease(&table, key, |lease, now| {
            match lease.state() {
                LeaseState::Held => {
                    let until = lease.i64(LeaseCol::LeaseUntil);
                    lease.put_i64(LeaseCol::LookAt, until.max(lease.i64(LeaseCol::LookAt)));
                    LeaseChange::Write
                }
                _ => {
                    let forget = lease.i64(LeaseCol::EndedAt).saturating_add(REMEMBERED_US);
                    match forget <= now {
                        true => LeaseChange::Delete,
                        false => {
                            lease.put_i64(LeaseCol::LookAt, forget);
                            LeaseChange::Write
                        }
                    }
                }
            }
        })?);
    }
    Ok(tidied)
}

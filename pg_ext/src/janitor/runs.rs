//! once.janitor: when each task last ran, and action_release for each machine.
//!
//! A run that found nothing to do is written at most every 30 seconds (a quarter of once.janitor_grace, if that is
//! shorter), so that an idle janitor hardly writes and still covers what machine_assert asks about. Nobody waits for
//! another session that notes a run: it says the same.
//!
//! The table of version 0.1.0 lacks the last columns: until ALTER EXTENSION pg_once UPDATE this library leaves them out.

use crate::action::sweep as actions;
use crate::call::{from_utf8, shown};
use crate::caller;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::janitor::Swept;
use crate::mark::call_mark;
use crate::row;
use crate::settings;
use crate::spi::{self, Kept};
use crate::table::{Column, Name, Outcome, Record, ScanKey, Snapshot, Table, Wait};
use crate::trylock::TryLock;
use crate::worker;
use pgrx::pg_sys;
use std::ffi::CStr;

const RUNS: Name = c"janitor";

const INSERT_RUN: &CStr = c"
    INSERT INTO once.janitor (task, machine, done, failed) VALUES ($1, $2, 0, 0) ON CONFLICT DO NOTHING";

/// Nothing new is noted again after that, or after a part of once.janitor_grace.
const STILL_FRESH_US: i64 = 30_000_000;
const PARTS_OF_GRACE: i64 = 4;

/// Columns of once.janitor in 0.1.0.
const AT_FIRST: usize = 7;

thread_local! {
    static NEW_RUN: Kept = const { Kept::new(INSERT_RUN, &[pg_sys::TEXTOID, pg_sys::TEXTOID]) };
}

/// Columns of once.janitor.
#[derive(Clone, Copy)]
enum Run {
    LastEnd = 3,
    GoodEnd,
    Done,
    Failed,
    LastError,
    ServedBy,
    Reached,
}

impl Column for Run {
    const AT_FIRST: Option<usize> = Some(AT_FIRST);

    fn number(self) -> usize {
        self as usize
    }
}

/// The schema is that of 0.1.0, which has fewer columns in once.janitor.
pub fn is_first_schema() -> Result<bool> {
    Ok(Table::to_read(RUNS)?.columns() == AT_FIRST)
}

type Row = Record<Run, 9>;

/// Notes a run of a task for one machine (empty: the task as a whole). False: another session is at it.
pub fn record(task: &str, machine: &[u8], swept: &Swept) -> Result<bool> {
    // Nothing was done, and it has not ended.
    if swept.cut_short && swept.done == 0 {
        return Ok(true);
    }
    write(&Table::to_write(RUNS)?, task, machine, swept)
}

fn write(table: &Table, task: &str, machine: &[u8], swept: &Swept) -> Result<bool> {
    let snapshot = Snapshot::latest();
    let Some(mut run) = find(table, task, machine, &snapshot)? else {
        // An INSERT would wait for a transaction that has noted the first run and is still open.
        let place = call_mark("janitor run", &[Some(task.as_bytes()), Some(machine)]);
        let Some(lock) = TryLock::acquire(place as u64) else {
            return Ok(false);
        };
        lock.keep();
        if table.has_triggers() {
            // What one leaves for the transaction's end would undo everybody's work.
            actions::prepare()?;
        }
        let args = [Some(row::text(task.as_bytes())), Some(row::text(machine))];
        spi::query(&NEW_RUN, &args)?;
        return match find(table, task, machine, &Snapshot::latest())? {
            Some(_) => write(table, task, machine, swept),
            None => Err(Error::new(
                Kind::InUse,
                "a trigger on once.janitor keeps its row back",
            )),
        };
    };
    let Some(tid) = run.tid() else {
        return Ok(false);
    };
    let now = clock::now_us()?;
    let is_first_schema = table.columns() == AT_FIRST;
    let who = (!is_first_schema).then(served_by);
    // One that ended early has not tried all.
    let good = swept.failed == 0 && swept.reached.is_none() && !swept.untried;
    let nothing_new = swept.done == 0 && good;
    let is_reached =
        is_first_schema || run.bytes(Run::Reached) == swept.reached.as_deref().map(str::as_bytes);
    if nothing_new && is_reached && is_fresh(&run, who.as_deref(), now) {
        return Ok(true);
    }
    if table.lock(tid, &snapshot, Wait::No)? != Outcome::Done {
        return Ok(false);
    }
    if !swept.cut_short {
        run.put_i64(Run::LastEnd, now);
    }
    if good {
        run.put_i64(Run::GoodEnd, now);
    }
    run.put_i64(Run::Done, run.i64(Run::Done).saturating_add(swept.done));
    let failed = run.i64(Run::Failed).saturating_add(swept.failed);
    run.put_i64(Run::Failed, failed);
    if let Some(error) = &swept.last_error {
        run.put_text(Run::LastError, Some(&from_utf8(error)));
    }
    if let Some(who) = &who {
        run.put_text(Run::ServedBy, Some(who));
        run.put_text(Run::Reached, swept.reached.as_deref().map(str::as_bytes));
    }
    run.update_at(table, tid, Wait::Yes)?;
    Ok(true)
}

/// What is stored says nearly the same already.
fn is_fresh(run: &Row, who: Option<&[u8]>, now: i64) -> bool {
    let fresh = STILL_FRESH_US.min(settings::janitor_grace_us() / PARTS_OF_GRACE);
    let last = run.raw(Run::LastEnd).map(|d| d.value() as i64);
    let good = run.raw(Run::GoodEnd).map(|d| d.value() as i64);
    last.is_some_and(|last| last == good.unwrap_or(i64::MIN) && (0..fresh).contains(&(now - last)))
        && who.is_none_or(|who| run.bytes(Run::ServedBy) == Some(who))
}

/// The background worker, or the role and its application_name.
fn served_by() -> Vec<u8> {
    if worker::is_here() {
        return worker::NAME.as_bytes().to_vec();
    }
    let mut who = caller::name();
    // SAFETY: a variable of this backend that the server sets to a C string.
    let application = unsafe {
        let name = pg_sys::application_name;
        (!name.is_null()).then(|| CStr::from_ptr(name).to_bytes())
    };
    if let Some(application) = application.filter(|a| !a.is_empty()) {
        who.extend([b" (", application, b")"].concat());
    }
    who
}

/// What once.janitor says of a task's last run.
#[derive(Default)]
pub struct Noted {
    /// None: it has not ended yet.
    pub last_end: Option<i64>,
    /// Where it ended before its end ([`Swept::reached`]).
    pub reached: Option<String>,
}

/// The last run of a task as a whole.
pub fn noted(task: &str) -> Result<Noted> {
    let table = Table::to_read(RUNS)?;
    if table.columns() == AT_FIRST {
        return Ok(Noted::default());
    }
    let run = find(&table, task, b"", &Snapshot::latest())?;
    Ok(run.map_or_else(Noted::default, |run| Noted {
        last_end: run.raw(Run::LastEnd).map(|d| d.value() as i64),
        reached: run.bytes(Run::Reached).map(shown),
    }))
}

/// When action_release last ended for a machine; i64::MIN: never.
pub fn last_end(task: &str, machine: &[u8]) -> Result<i64> {
    let run = find(&Table::to_read(RUNS)?, task, machine, &Snapshot::latest())?;
    let end = run.filter(|r| r.raw(Run::LastEnd).is_some());
    Ok(end.map_or(i64::MIN, |r| r.i64(Run::LastEnd)))
}

/// A sweep of the machine's claim states has ended without failure within once.janitor_grace.
pub fn covers(machine: &[u8]) -> Result<bool> {
    let run = of_machine(machine)?;
    let good = run.filter(|r| r.raw(Run::GoodEnd).is_some());
    let since = clock::now_us()?.saturating_sub(settings::janitor_grace_us());
    Ok(good.is_some_and(|r| r.i64(Run::GoodEnd) >= since))
}

/// What the last failure of a machine's sweep said.
pub fn last_error(machine: &[u8]) -> Result<Option<Vec<u8>>> {
    let run = of_machine(machine)?;
    Ok(run.and_then(|r| r.bytes(Run::LastError).map(<[u8]>::to_vec)))
}

fn of_machine(machine: &[u8]) -> Result<Option<Row>> {
    let table = Table::to_read(RUNS)?;
    find(&table, actions::TASK, machine, &Snapshot::latest())
}

fn find(table: &Table, task: &str, machine: &[u8], snapshot: &Snapshot) -> Result<Option<Row>> {
    let keys = &mut [
        ScanKey::text(1, row::text(task.as_bytes())),
        ScanKey::text(2, row::text(machine)),
    ];
    let found = table.find(c"janitor_pkey", keys, snapshot)?;
    Ok(found.map(Record::load))
}

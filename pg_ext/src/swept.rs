//! The result of a sweep task's run, and the table once.janitor, which holds the last run of each task. For
//! action_release it also holds the last run for each machine.
//!
//! A good run with nothing to do is not written if the last run was good, had the same served_by, and ended within the
//! last 30 seconds (or a quarter of once.janitor_grace, if that is shorter). So an idle janitor hardly writes. While
//! good runs come often enough, the stored one is not too old for [`covers`]. A run is not recorded if another session
//! has locked its row: no sweep waits for that lock.

use crate::call::from_utf8;
use crate::caller;
use crate::clock;
use crate::digest::call_mark;
use crate::error::Result;
use crate::row;
use crate::settings;
use crate::subxact;
use crate::table::{self, Name, Record, ScanKey, Snapshot, Table, Wait, WriteOutcome};
use crate::trylock::TryLock;
use pgrx::pg_sys;
use std::ffi::CStr;
use std::sync::OnceLock;

/// The task that reverts rows of machines whose lease expired.
pub const ACTION_RELEASE: &str = "action_release";

const JANITOR_TABLE: Name = c"janitor";

/// An idle run is written again after this time, or after this fraction of once.janitor_grace if that is shorter.
const STILL_FRESH_US: i64 = 30_000_000;
const PARTS_OF_GRACE: i64 = 4;

/// The result of one run of a task.
#[derive(Clone, Default)]
pub struct Swept {
    pub done: i64,
    pub failed: i64,
    pub more: bool,
    pub last_error: Option<String>,
}

impl Swept {
    /// Failures of `rows` rows, with one message.
    pub fn failure(rows: usize, reason: &str) -> Swept {
        Swept {
            failed: rows as i64,
            last_error: Some(reason.to_owned()),
            ..Swept::default()
        }
    }

    pub fn add(&mut self, other: Swept) {
        self.done += other.done;
        self.failed += other.failed;
        self.more |= other.more;
        self.last_error = other.last_error.or(self.last_error.take());
    }
}

/// The number of due rows, and since when the first is due.
#[derive(Default)]
pub struct DueWork {
    pub rows: i64,
    pub since: Option<i64>,
}

impl DueWork {
    /// Adds rows, the first of them due since `since`.
    pub fn add(&mut self, rows: i64, since: Option<i64>) {
        self.rows += rows;
        self.since = self.since.into_iter().chain(since).min();
    }
}

/// Columns of once.janitor.
#[derive(Clone, Copy)]
enum TaskRunCol {
    Task = 1,
    Machine,
    LastEnd,
    GoodEnd,
    Done,
    Failed,
    LastError,
    LastErrorAt,
    ServedBy,
}

table::columns!(TaskRunCol);

type TaskRun = Record<TaskRunCol, 9>;

/// Records the end of a run. If that fails, `swept` gets a failure with the reason, and the work of the run is kept.
pub fn noting(swept: &mut Swept, note: impl FnOnce() -> Result<()>) -> Result<()> {
    if let Err(why) = subxact::attempt_briefly(note)? {
        let message = swept.last_error.as_deref().unwrap_or("the run has ended");
        let message = format!("{message} (the run could not be recorded: {})", why.message);
        swept.add(Swept::failure(1, &message));
    }
    Ok(())
}

/// Records the end of a run of a task for one machine (empty: for the whole task). `is_good`: the run had no failures.
/// Does nothing while another session records a run of that task.
pub fn record(task: &str, machine: &[u8], swept: &Swept, is_good: bool) -> Result<()> {
    let table = Table::to_write(JANITOR_TABLE)?;
    let snapshot = Snapshot::latest();
    let Some(mut run) = find(&table, task, machine, &snapshot)? else {
        return insert(task, machine, swept, is_good);
    };
    let Some(tid) = run.tid() else {
        return Ok(());
    };
    let (now, who) = (clock::now_us()?, served_by());
    if swept.done == 0 && is_good && is_fresh(&run, &who, now) {
        return Ok(());
    }
    if table.lock(tid, &snapshot, Wait::No)? != WriteOutcome::Done {
        return Ok(());
    }
    add(&mut run, swept, is_good, now, &who);
    run.update_at(&table, tid)?;
    Ok(())
}

/// Records the first run. One session inserts, under a try-lock; the others do nothing instead of waiting.
fn insert(task: &str, machine: &[u8], swept: &Swept, is_good: bool) -> Result<()> {
    let place = call_mark("janitor run", &[Some(task.as_bytes()), Some(machine)]);
    let Some(lock) = TryLock::acquire(place as u64) else {
        return Ok(());
    };
    lock.keep();
    let table = Table::to_write(JANITOR_TABLE)?;
    if find(&table, task, machine, &Snapshot::latest())?.is_some() {
        return record(task, machine, swept, is_good);
    }
    let mut run = TaskRun::empty();
    run.put_text(TaskRunCol::Task, Some(task.as_bytes()));
    run.put_text(TaskRunCol::Machine, Some(machine));
    add(&mut run, swept, is_good, clock::now_us()?, &served_by());
    run.insert(&table)
}

fn add(run: &mut TaskRun, swept: &Swept, is_good: bool, now: i64, who: &[u8]) {
    run.put_i64(TaskRunCol::LastEnd, now);
    if is_good {
        run.put_i64(TaskRunCol::GoodEnd, now);
    }
    let done = run.i64(TaskRunCol::Done).saturating_add(swept.done);
    run.put_i64(TaskRunCol::Done, done);
    let failed = run.i64(TaskRunCol::Failed).saturating_add(swept.failed);
    run.put_i64(TaskRunCol::Failed, failed);
    if let Some(error) = &swept.last_error {
        run.put_text(TaskRunCol::LastError, Some(&from_utf8(error)));
        run.put_i64(TaskRunCol::LastErrorAt, now);
    }
    run.put_text(TaskRunCol::ServedBy, Some(who));
}

/// Whether the stored run is recent, was good, and has the same served_by.
fn is_fresh(run: &TaskRun, who: &[u8], now: i64) -> bool {
    let fresh = STILL_FRESH_US.min(settings::janitor_grace_us() / PARTS_OF_GRACE);
    let last = run.raw(TaskRunCol::LastEnd).map(|d| d.value() as i64);
    let good = run.raw(TaskRunCol::GoodEnd).map(|d| d.value() as i64);
    last.is_some_and(|last| last == good.unwrap_or(i64::MIN) && (0..fresh).contains(&(now - last)))
        && run.bytes(TaskRunCol::ServedBy) == Some(who)
}

/// The name of the background worker, if this process is one.
static WORKER: OnceLock<&str> = OnceLock::new();

/// A background worker calls this at its start. `worker` becomes the served_by of the runs that it records.
pub fn serve_as(worker: &'static str) {
    WORKER.get_or_init(|| worker);
}

/// The background worker, or the role and the session's application_name.
fn served_by() -> Vec<u8> {
    if let Some(worker) = WORKER.get() {
        return worker.as_bytes().to_vec();
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

/// When the last sweep of a machine's rows ended; i64::MIN: never.
pub fn last_end(machine: &[u8]) -> Result<i64> {
    let run = of_machine(machine)?;
    let end = run.filter(|r| r.raw(TaskRunCol::LastEnd).is_some());
    Ok(end.map_or(i64::MIN, |r| r.i64(TaskRunCol::LastEnd)))
}

/// Whether a sweep of the machine's claim states ended without a failure within the last once.janitor_grace.
pub fn covers(machine: &[u8]) -> Result<bool> {
    let run = of_machine(machine)?;
    let good = run.filter(|r| r.raw(TaskRunCol::GoodEnd).is_some());
    let since = clock::now_us()?.saturating_sub(settings::janitor_grace_us());
    Ok(good.is_some_and(|r| r.i64(TaskRunCol::GoodEnd) >= since))
}

/// The message of a machine's last failed sweep, unless a later one was good.
pub fn last_error(machine: &[u8]) -> Result<Option<Vec<u8>>> {
    let run = of_machine(machine)?;
    let failed = run.filter(|r| {
        let time = |col| r.raw(col).map(|d| d.value() as i64);
        time(TaskRunCol::LastErrorAt) > time(TaskRunCol::GoodEnd)
    });
    Ok(failed.and_then(|r| r.bytes(TaskRunCol::LastError).map(<[u8]>::to_vec)))
}

fn of_machine(machine: &[u8]) -> Result<Option<TaskRun>> {
    let table = Table::to_read(JANITOR_TABLE)?;
    find(&table, ACTION_RELEASE, machine, &Snapshot::latest())
}

fn find(table: &Table, task: &str, machine: &[u8], snapshot: &Snapshot) -> Result<Option<TaskRun>> {
    let keys = &mut [
        ScanKey::text(1, row::text(task.as_bytes())),
        ScanKey::text(2, row::text(machine)),
    ];
    let found = table.find(c"janitor_pkey", keys, snapshot)?;
    Ok(found.map(Record::load))
}

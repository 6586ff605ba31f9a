//! The worker of one database: passes over all tasks, with a rest between them.
//!
//! A task goes on while more is waiting, up to its share of the pass, so that no task waits long for another. A task that
//! fails stops no other and rests for once.janitor_naptime. The log has one line of it until it has gone well: at its
//! second failure in a row, because a lock that somebody holds for a moment is no matter for the log.

use super::server;
use crate::janitor::sweep;
use crate::janitor::task::Task;
use crate::raise;
use crate::settings;
use crate::subxact::Failure;
use crate::swept::Swept;
use pgrx::pg_sys::Oid;
use std::time::{Duration, Instant};

/// Rows of a batch.
const BATCH: i32 = 1_000;
/// How long one task may go on in a pass.
const SHARE: Duration = Duration::from_millis(500);
/// The rest after a pass that took longer than once.janitor_naptime.
const LEAST_REST: Duration = Duration::from_secs(1);

const AGAIN: &str = "It tries again after once.janitor_naptime, and logs this once until it has gone well. See once.janitor_status() and once.doctor().";

/// How a pass ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PassEnd {
    /// Everything that was due is done, or has failed.
    Clean,
    More,
    /// The extension is not installed.
    Absent,
    /// It could not begin.
    Failed,
}

/// Serves one database until the server stops this process.
pub fn main(database: Oid) {
    server::begin();
    server::connect(database);
    let mut worker = ServingWorker::default();
    loop {
        let begin = Instant::now();
        let pass = worker.pass(begin);
        match pass {
            PassEnd::Absent => server::show_rest(c"pg_once is not installed in this database"),
            _ => server::show_rest(c"resting until once.janitor_naptime is over"),
        }
        if !rest(pass, begin) {
            return server::exit(0);
        }
    }
}

/// Until naptime is over since the pass has begun, and at least a moment. False: the server wants this process to end.
fn rest(pass: PassEnd, begin: Instant) -> bool {
    let ended = Instant::now();
    loop {
        let nap = settings::covering_naptime();
        let left = match pass {
            PassEnd::More => Duration::ZERO,
            _ => (nap.saturating_sub(begin.elapsed()))
                .max(nap.min(LEAST_REST).saturating_sub(ended.elapsed())),
        };
        // The signal may have woken a lock wait of the pass, and does not wake the nap then.
        if server::is_told_to_stop() || !server::nap(Some(left)) {
            return false;
        }
        if left.is_zero() {
            return true;
        }
    }
}

/// What the worker remembers from pass to pass.
#[derive(Default)]
struct ServingWorker {
    beginning: Trouble,
    tasks: [Trouble; Task::ALL.len()],
}

/// Failures of a task.
#[derive(Default)]
struct Trouble {
    /// It failed at its last turn.
    fails: bool,
    /// The log says so.
    is_logged: bool,
    /// The begin of the pass since which it rests.
    since: Option<Instant>,
}

impl ServingWorker {
    /// Every task once, or as long as its share lasts.
    fn pass(&mut self, begin: Instant) -> PassEnd {
        match server::transaction(|| Ok(server::is_installed())) {
            Ok(true) => self.beginning = Trouble::default(),
            Ok(false) => return self.absent(),
            Err(error) => {
                self.beginning.log(&error.message);
                return PassEnd::Failed;
            }
        }
        let mut more = false;
        for (task, trouble) in Task::ALL.into_iter().zip(&mut self.tasks) {
            if trouble.rests() {
                continue;
            }
            let call = format!("once.sweep({BATCH}, '{}')", task.name());
            server::show_work(&server::c_text(&call));
            match serve(task) {
                Ok(swept) => {
                    more |= swept.more;
                    trouble.note(task, &swept, begin);
                }
                // Dropped in the middle of a pass, the extension is no failure.
                Err(_) if !is_still_installed() => return self.absent(),
                Err(error) => {
                    let failed = Swept::failure(1, &error.message);
                    trouble.note(task, &failed, begin);
                }
            }
            if server::is_told_to_stop() {
                break;
            }
        }
        match more {
            true => PassEnd::More,
            false => PassEnd::Clean,
        }
    }

    /// Failures of a dropped extension say nothing about the next one.
    fn absent(&mut self) -> PassEnd {
        self.tasks = Default::default();
        PassEnd::Absent
    }
}

impl Trouble {
    /// It failed less than once.janitor_naptime ago.
    fn rests(&self) -> bool {
        let nap = settings::covering_naptime();
        self.since.is_some_and(|since| since.elapsed() < nap)
    }

    /// Decides from a turn whether the task rests and whether the log says so. once.janitor has the failure already,
    /// unless the whole transaction failed.
    fn note(&mut self, task: Task, swept: &Swept, begin: Instant) {
        let only_fails = swept.failed > 0 && swept.done == 0 && !swept.more;
        self.since = only_fails.then_some(begin);
        let again = std::mem::replace(&mut self.fails, swept.failed > 0);
        if swept.failed == 0 {
            self.is_logged = false;
        } else if again {
            let error = swept.last_error.as_deref().unwrap_or_default();
            let (name, failed) = (task.name(), swept.failed);
            self.log(&format!("{name}: {failed} failed, the last said: {error}"));
        }
    }

    fn log(&mut self, error: &str) {
        if self.is_logged {
            return;
        }
        // Only a transaction can convert from another encoding than the database's.
        let logged = server::transaction(|| {
            let database = server::database_name();
            raise::warn(format!("{} of \"{database}\": {error}", super::NAME), AGAIN);
            Ok(())
        });
        self.is_logged = logged.is_ok();
    }
}

/// The work of a task within its share; `more` only where the share ended it.
fn serve(task: Task) -> Result<Swept, Failure> {
    let begin = Instant::now();
    let mut all = Swept::default();
    loop {
        let swept = server::transaction(|| sweep::run_task(task, BATCH))?;
        let more = swept.more && !server::is_told_to_stop();
        all.add(swept);
        all.more = more;
        if !more || begin.elapsed() >= SHARE {
            return Ok(all);
        }
    }
}

fn is_still_installed() -> bool {
    server::transaction(|| Ok(server::is_installed())) != Ok(false)
}

//! The worker of one database: passes over all tasks, with a rest between them.
//!
//! A task goes on while more is waiting, but not for longer than its share: what was due first is looked at again
//! within a few seconds however much another task has to do. One that fails keeps no other from its turn: it rests
//! until once.janitor_naptime is over, whatever the others still have to do, and the log says so once: at once where it
//! failed as a whole, at the next turn where rows of it failed, or it waited in vain for a lock. A session keeps
//! the settings of its database that it began with: after an ALTER DATABASE ... SET or RESET it ends, and the launcher
//! starts another one.

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

const AGAIN: &str = "It tries again after once.janitor_naptime, and says no more of this until it has gone well. once.janitor_status() and once.doctor() tell how it goes on.";

/// What came of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PassEnd {
    /// Everything that was due is done, or has failed.
    Clean,
    More,
    Absent,
    /// ALTER DATABASE has changed what a new session begins with.
    Outdated,
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
            PassEnd::Outdated => return server::exit(0),
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
        // What woke a lock wait of the pass up no longer wakes the nap.
        if server::is_told_to_stop() || !server::nap(Some(left)) {
            return false;
        }
        if left.is_zero() {
            return true;
        }
    }
}

/// What is remembered from pass to pass.
#[derive(Default)]
struct ServingWorker {
    began_with: Option<Vec<server::Version>>,
    beginning: Trouble,
    tasks: [Trouble; Task::ALL.len()],
}

/// Something that goes wrong, maybe again and again.
#[derive(Default)]
struct Trouble {
    /// It did so at its last turn.
    fails: bool,
    /// The log says so, once until it has gone well.
    is_told: bool,
    /// The begin of the pass since which it rests.
    since: Option<Instant>,
}

impl ServingWorker {
    /// Every task once, or as long as its share lasts.
    fn pass(&mut self, begin: Instant) -> PassEnd {
        let look = || Ok((server::settings_at_connect(), server::is_installed()));
        let (settings, installed) = match server::transaction(look) {
            Ok(found) => found,
            Err(error) => {
                self.beginning.tell(&error.message);
                return PassEnd::Failed;
            }
        };
        self.beginning = Trouble::default();
        if *self.began_with.get_or_insert_with(|| settings.clone()) != settings {
            return PassEnd::Outdated;
        }
        if !installed {
            return self.absent();
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
                    trouble.heed(task, &swept, begin);
                }
                // Dropped in the middle of a pass, the extension is no failure.
                Err(_) if !is_still_installed() => return self.absent(),
                Err(error) => trouble.failed(task, &error, begin),
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

    /// What an extension that is gone has failed at is no matter of the next one.
    fn absent(&mut self) -> PassEnd {
        self.tasks = Default::default();
        PassEnd::Absent
    }
}

impl Trouble {
    /// It has failed so lately that it is not its turn yet.
    fn rests(&self) -> bool {
        let nap = settings::covering_naptime();
        self.since.is_some_and(|since| since.elapsed() < nap)
    }

    /// What a task that has ended says of its failures, which it has noted by itself. A row that was put off, or a
    /// lock that somebody had for a moment, is no matter for the log: what fails at the next turn, too, is.
    fn heed(&mut self, task: Task, swept: &Swept, begin: Instant) {
        let only_fails = swept.failed > 0 && swept.done == 0 && !swept.more;
        self.since = only_fails.then_some(begin);
        let again = std::mem::replace(&mut self.fails, swept.failed > 0);
        match swept.failed {
            0 => self.is_told = false,
            failed if again => {
                let error = swept.last_error.as_deref().unwrap_or_default();
                let name = task.name();
                self.tell(&format!("{name}: {failed} failed, the last said: {error}"));
            }
            _ => {}
        }
    }

    /// The task itself has failed, with all that its transaction did: once.janitor says so from another one, and the
    /// log at once, unless somebody had a lock, as for `heed`.
    fn failed(&mut self, task: Task, failure: &Failure, begin: Instant) {
        self.since = Some(begin);
        let again = std::mem::replace(&mut self.fails, true);
        let (task_name, error) = (task.name(), &failure.message);
        match server::transaction(|| sweep::note_failed(task, error)) {
            Ok(()) if failure.is_wait && !again => {}
            Ok(()) => self.tell(&format!("{task_name}: {error}")),
            Err(why) => self.tell(&format!(
                "{task_name}: {error} (not noted: {})",
                why.message
            )),
        }
    }

    fn tell(&mut self, error: &str) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        // Other encodings than the database's can be converted in a transaction only.
        let told = server::transaction(|| {
            let database = server::database_name();
            raise::warn(format!("{} of \"{database}\": {error}", super::NAME), AGAIN);
            Ok(())
        });
        self.is_told = told.is_ok();
    }
}

/// What a task did within its share; more is told only where it was cut short.
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

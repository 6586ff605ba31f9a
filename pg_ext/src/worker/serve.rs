//! The worker of one database: passes over all tasks, with a rest between them.
//!
//! A task goes on while more is waiting, but not for longer than its share: what was due first is looked at again
//! within a few seconds however much another task has to do. A session keeps the settings of its database that it
//! began with: after an ALTER DATABASE ... SET or RESET it ends, and the launcher starts another one.

use super::server;
use crate::janitor::{self, Task};
use crate::raise;
use crate::settings;
use pgrx::pg_sys::Oid;
use std::time::{Duration, Instant};

/// Rows of a batch.
const BATCH: i32 = 1_000;
/// How long one task may go on in a pass.
const SHARE: Duration = Duration::from_millis(500);

/// What came of a pass.
enum Pass {
    /// Everything that was due is done.
    Clean,
    More,
    Absent,
    /// ALTER DATABASE has changed what a new session begins with.
    Outdated,
    /// An error that was not one of a task's own.
    Failed(String),
}

/// Serves one database until the server stops this process.
pub fn main(database: Oid) {
    server::begin();
    server::connect(database);
    let mut began_with = None;
    let mut told = None;
    loop {
        let pass = pass(&mut began_with);
        match &pass {
            Pass::Outdated => return server::exit(0),
            Pass::Absent => server::show_rest(c"pg_once is not installed in this database"),
            _ => server::show_rest(c"resting until once.janitor_naptime is over"),
        }
        match &pass {
            // The same again and again is told once.
            Pass::Failed(error) if told.as_ref() != Some(error) => {
                let hint = "It tries again after once.janitor_naptime.";
                raise::warn(format!("{}: {error}", super::NAME), hint);
                told = Some(error.clone());
            }
            Pass::Failed(_) => {}
            _ => told = None,
        }
        if !rest(&pass) {
            return server::exit(0);
        }
    }
}

/// False: the server wants this process to end.
fn rest(pass: &Pass) -> bool {
    if matches!(pass, Pass::More) {
        return !server::is_told_to_stop() && server::nap(Some(Duration::ZERO));
    }
    let begin = Instant::now();
    while let Some(left) = settings::janitor_naptime().checked_sub(begin.elapsed()) {
        if left.is_zero() {
            break;
        }
        if !server::nap(Some(left)) {
            return false;
        }
    }
    !server::is_told_to_stop()
}

/// Every task once, or as long as its share lasts.
fn pass(began_with: &mut Option<Vec<server::Version>>) -> Pass {
    let look = || Ok((server::settings_at_connect(), server::is_installed()));
    let (settings, installed) = match server::transaction(look) {
        Ok(found) => found,
        Err(error) => return Pass::Failed(error),
    };
    if *began_with.get_or_insert_with(|| settings.clone()) != settings {
        return Pass::Outdated;
    }
    if !installed {
        return Pass::Absent;
    }
    let mut more = false;
    for task in Task::ALL {
        server::show_work(&server::c_text(&format!(
            "once.sweep_{}({BATCH})",
            task.name()
        )));
        match serve(task) {
            Ok(left) => more |= left,
            Err(error) => return failed(error),
        }
        if server::is_told_to_stop() {
            break;
        }
    }
    match more {
        true => Pass::More,
        false => Pass::Clean,
    }
}

/// True: more is waiting.
fn serve(task: Task) -> Result<bool, String> {
    let begin = Instant::now();
    loop {
        let swept = server::transaction(|| janitor::run(task, BATCH))?;
        if !swept.more || server::is_told_to_stop() {
            return Ok(false);
        }
        if begin.elapsed() >= SHARE {
            return Ok(true);
        }
    }
}

/// An extension that is dropped in the middle of a pass is no failure.
fn failed(error: String) -> Pass {
    match server::transaction(|| Ok(server::is_installed())) {
        Ok(false) => Pass::Absent,
        _ => Pass::Failed(error),
    }
}

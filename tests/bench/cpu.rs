//! What the server's processes spent on a run.
//!
//! Invariant: a run is only counted when every backend of it has ended, so that the CPU time and the
//! statistics of one run never fall into the next one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::database::Database;

/// The kernel counts CPU time in /proc in hundredths of a second on every Linux.
const MICROSECONDS_PER_TICK: f64 = 10_000.0;

/// Looks at the server before a run and after it.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    postmaster: u32,
    children: usize,
    ticks: Option<f64>,
}

impl Meter {
    /// Begins, before the run's connections are made.
    pub fn start(database: &Database) -> Result<Self> {
        let postmaster = database.postmaster()?;
        Ok(Self {
            postmaster,
            children: children_of(postmaster),
            ticks: ended_children_ticks(postmaster),
        })
    }

    /// CPU microseconds of the backends that have come and gone since; none where /proc does not tell.
    pub fn stop(self) -> Result<Option<f64>> {
        wait_for_backends_to_end(self.postmaster, self.children)?;
        let now = ended_children_ticks(self.postmaster);
        Ok(self
            .ticks
            .zip(now)
            .map(|(before, after)| (after - before) * MICROSECONDS_PER_TICK))
    }
}

/// The words of /proc/PID/stat behind the name in parentheses, which may hold spaces itself.
fn stat_words(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let words = text.rsplit(')').next()?.split_whitespace();
    Some(words.map(str::to_owned).collect())
}

/// CPU time of the postmaster's children that have ended, user and system.
fn ended_children_ticks(postmaster: u32) -> Option<f64> {
    let words = stat_words(postmaster)?;
    let ticks = |i: usize| words.get(i)?.parse::<f64>().ok();
    Some(ticks(13)? + ticks(14)?)
}

/// CPU microseconds of all the server's processes so far; none where /proc does not tell.
pub fn so_far(database: &Database) -> Result<Option<f64>> {
    let postmaster = database.postmaster()?;
    let Some(mut ticks) = ended_children_ticks(postmaster) else {
        return Ok(None);
    };
    let parent = postmaster.to_string();
    for pid in std::fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    {
        let Some(words) = stat_words(pid).filter(|words| words.get(1) == Some(&parent)) else {
            continue;
        };
        let own = |i: usize| words.get(i).and_then(|word| word.parse::<f64>().ok());
        ticks += own(11).unwrap_or_default() + own(12).unwrap_or_default();
    }
    Ok(Some(ticks * MICROSECONDS_PER_TICK))
}

/// CPU microseconds of one process so far, as the scheduler counts them: exact where the ticks are too coarse.
pub fn of_process(pid: i64) -> Result<f64> {
    let path = format!("/proc/{pid}/schedstat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let nanoseconds = text.split_whitespace().next().context(path)?;
    Ok(nanoseconds.parse::<f64>()? / 1e3)
}

/// How many children the postmaster has, those included that it has not buried yet: their CPU time
/// is not counted before that.
fn children_of(postmaster: u32) -> usize {
    let parent = postmaster.to_string();
    let is_child = |pid: u32| stat_words(pid).is_some_and(|words| words.get(1) == Some(&parent));
    std::fs::read_dir("/proc").map_or(0, |entries| {
        let pids = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| is_child(*pid)).count()
    })
}

fn wait_for_backends_to_end(postmaster: u32, before: usize) -> Result<()> {
    let begin = Instant::now();
    while children_of(postmaster) > before {
        if begin.elapsed() > Duration::from_secs(30) {
            bail!("the run has ended, but its backends have not");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

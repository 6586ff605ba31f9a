//! Deliberate crashes: a real `kill -9` of this process at a named point.
//!
//! `PG_ONCE_CRASH_AT` lists the points; without it nothing happens. At a listed point the process crashes
//! at random, one time in `PG_ONCE_CRASH_ONE_IN` (default 1: always). Invariant: the crash is a SIGKILL,
//! so no destructor runs and no buffer is written, as in a power cut.

use std::sync::LazyLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;

struct Plan {
    points: Vec<String>,
    one_in: u32,
}

static PLAN: LazyLock<Plan> = LazyLock::new(|| {
    let points = std::env::var("PG_ONCE_CRASH_AT").unwrap_or_default();
    let one_in = std::env::var("PG_ONCE_CRASH_ONE_IN")
        .ok()
        .and_then(|n| n.parse().ok());
    Plan {
        points: points
            .split(',')
            .map(|point| point.trim().to_owned())
            .collect(),
        one_in: one_in.filter(|n| *n > 0).unwrap_or(1),
    }
});

/// If the point is listed and chosen at random, prints the point's name on standard error and crashes.
pub fn point(name: &str) {
    if PLAN.points.iter().any(|point| point == name)
        && rand::rng().random_range(0..PLAN.one_in) == 0
    {
        eprintln!("crash_at={name}");
        // Cannot fail for a process's own id.
        let _ = kill(Pid::this(), Signal::SIGKILL);
    }
}

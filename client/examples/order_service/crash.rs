//! Owns dying on purpose: a real `kill -9` of this very process at a named point.
//!
//! `PG_ONCE_CRASH_AT` lists the points; without it nothing happens. A visit is the last at random, one in
//! `PG_ONCE_CRASH_ONE_IN`; by default the first is. Invariant: the death is a SIGKILL, so no destructor
//! runs and no buffer is written: what a power cut would do to the process.

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

/// Dies here, if the plan and the dice say so. The line on standard error says where.
pub fn point(name: &str) {
    if PLAN.points.iter().any(|point| point == name)
        && rand::rng().random_range(0..PLAN.one_in) == 0
    {
        eprintln!("crash_at={name}");
        // Cannot fail for a process's own id.
        let _ = kill(Pid::this(), Signal::SIGKILL);
    }
}

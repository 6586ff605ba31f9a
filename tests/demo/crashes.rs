//! Hands out the points at which service processes are to kill themselves.
//!
//! Invariant: a point leaves the list only when a process has died there, so every point is hit
//! while the load lasts, however the dice fall.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Where a process dies, and at which of its passes there, on average.
#[derive(Clone, Copy)]
pub struct Crash {
    pub point: &'static str,
    pub one_in: usize,
}

pub struct Crashes {
    waiting: Mutex<VecDeque<&'static str>>,
    /// How many wait when every point was handed out once.
    after_first_round: usize,
    lanes: usize,
    passes_left: AtomicUsize,
}

impl Crashes {
    /// Each of `points`, `times` times, by `lanes` processes that will pass each point about `passes`
    /// times together.
    pub fn new(points: &[&'static str], times: usize, lanes: usize, passes: usize) -> Self {
        let waiting = (0..times).flat_map(|_| points.iter().copied()).collect();
        Self {
            waiting: Mutex::new(waiting),
            after_first_round: points.len() * times.saturating_sub(1),
            lanes,
            passes_left: AtomicUsize::new(passes),
        }
    }

    /// For processes that die only when the supervisor says so.
    pub fn none() -> Self {
        Self::new(&[], 0, 1, 0)
    }

    /// One of the expected passes has begun.
    pub fn one_started(&self) {
        let less = |left: usize| left.checked_sub(1);
        // An error says that it was 0 already: more came than were expected.
        let _ = self
            .passes_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// What a new process is armed with: such odds that the list is done before the load is, and
    /// the first round early, because every point must be hit once.
    pub fn next(&self) -> Option<Crash> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = waiting.len();
        let point = waiting.pop_front()?;
        let passes = self.passes_left.load(Ordering::Relaxed) / (lives + self.lanes);
        let one_in = if lives > self.after_first_round {
            (passes / 4).clamp(1, 100)
        } else {
            (passes * 5 / 6).clamp(2, 100)
        };
        Some(Crash { point, one_in })
    }

    /// The process armed with this died of something else.
    pub fn give_back(&self, point: Option<&'static str>) {
        if let Some(point) = point {
            self.waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_front(point);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_comes_back_when_the_process_died_of_something_else() {
        let crashes = Crashes::new(&["a", "b"], 1, 2, 100);
        let first = crashes.next().map(|crash| crash.point);
        crashes.give_back(first);
        let mut handed: Vec<_> = std::iter::from_fn(|| crashes.next())
            .map(|crash| crash.point)
            .collect();
        handed.sort_unstable();
        assert_eq!(handed, ["a", "b"]);
    }

    #[test]
    fn the_odds_rise_towards_the_end_of_the_load() {
        let crashes = Crashes::new(&["a", "b"], 1, 2, 60);
        let early = crashes.next().map(|crash| crash.one_in);
        (0..55).for_each(|_| crashes.one_started());
        let late = crashes.next().map(|crash| crash.one_in);
        assert!(late < early);
    }
}

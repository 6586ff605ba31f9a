//! Hands out the recovery points at which service processes are to kill themselves.
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
    orders_left: AtomicUsize,
}

impl Crashes {
    /// Each of `points`, `times` times.
    pub fn new(points: &[&'static str], times: usize, lanes: usize, orders: usize) -> Self {
        let waiting = (0..times).flat_map(|_| points.iter().copied()).collect();
        Self {
            waiting: Mutex::new(waiting),
            after_first_round: points.len() * times.saturating_sub(1),
            lanes,
            orders_left: AtomicUsize::new(orders),
        }
    }

    pub fn order_started(&self) {
        self.orders_left.fetch_sub(1, Ordering::Relaxed);
    }

    /// What a new process is armed with: such odds that the list is done before the load is, and
    /// the first round early, because every point must be hit once.
    pub fn next(&self) -> Option<Crash> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = waiting.len();
        let point = waiting.pop_front()?;
        // A process passes each point about once for each order that reaches it.
        let passes = self.orders_left.load(Ordering::Relaxed) / (lives + self.lanes);
        let one_in = if lives > self.after_first_round {
            passes / 4
        } else {
            passes * 5 / 6
        };
        Some(Crash {
            point,
            one_in: one_in.clamp(2, 100),
        })
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
        (0..55).for_each(|_| crashes.order_started());
        let late = crashes.next().map(|crash| crash.one_in);
        assert!(late < early);
    }
}

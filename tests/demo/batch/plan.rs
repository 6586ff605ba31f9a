//! The load, written down before it runs: which jobs there are, what the queue delivers twice, and
//! who cancels what, when and how.
//!
//! Invariant: the same seed gives the same plan, so both services get the same.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

/// Wallets, so that several jobs share each.
const CUSTOMERS: u32 = 24;
/// What is in a wallet at the start: more than all its jobs cost.
pub const START_POINTS: i64 = 1_000_000;
/// How long a job waits in the queue, in milliseconds: some are cancelled before anybody has them.
const QUEUED_MS: std::ops::Range<u64> = 0..300;
/// A job with nothing going wrong takes a few hundred milliseconds: most cancellations meet it.
const CANCELLED_WITHIN_MS: u64 = 800;

pub struct Item {
    pub input: String,
    pub points: i64,
    /// The costly service says no, and it costs nothing.
    pub fails: bool,
}

/// How a user cancels, beyond timing out and asking again, which all of them do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Plain,
    /// Presses the button twice.
    Twice,
    /// Asks once and never comes back.
    Leaves {
        after: Duration,
    },
}

#[derive(Clone, Copy)]
pub struct Cancel {
    /// Since the job was submitted.
    pub after: Duration,
    pub manner: Manner,
}

pub struct Job {
    pub id: i64,
    pub customer: String,
    pub items: Vec<Item>,
    /// When its user submits it.
    pub starts: Duration,
    /// How much later the queue delivers it.
    pub queued_for: Duration,
    /// The queue delivers it again, so much later, whatever became of the first.
    pub again_after: Option<Duration>,
    pub cancel: Option<Cancel>,
    /// Where the randomness of its clients' backoff begins.
    pub seed: u64,
}

impl Job {
    /// What the queue sends.
    pub fn message(&self) -> String {
        let items: Vec<_> = self
            .items
            .iter()
            .map(|item| json!({"input": item.input, "points": item.points, "fails": item.fails}))
            .collect();
        json!({ "items": items }).to_string()
    }

    /// What the whole job costs when it is done.
    pub fn price(&self) -> i64 {
        let paid = self.items.iter().filter(|item| !item.fails);
        paid.map(|item| item.points).sum()
    }
}

/// The names of all wallets.
pub fn customers() -> impl Iterator<Item = String> {
    (0..CUSTOMERS).map(customer)
}

fn customer(number: u32) -> String {
    format!("customer-{number:02}")
}

/// `count` jobs spread over `window`, in the order of their start.
pub fn plan(count: usize, window: Duration, seed: u64) -> Vec<Job> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut jobs: Vec<Job> = (0..count).map(|_| job(&mut rng, window)).collect();
    jobs.sort_by_key(|job| job.starts);
    for (id, job) in (1..).zip(&mut jobs) {
        job.id = id;
    }
    jobs
}

fn job(rng: &mut StdRng, window: Duration) -> Job {
    let items = (1..=rng.random_range(5..=20))
        .map(|number| Item {
            input: format!("input-{number:02}"),
            points: rng.random_range(1..=50),
            fails: rng.random_bool(0.04),
        })
        .collect();
    Job {
        id: 0,
        customer: customer(rng.random_range(0..CUSTOMERS)),
        items,
        starts: window.mul_f64(rng.random()),
        queued_for: Duration::from_millis(rng.random_range(QUEUED_MS)),
        again_after: rng
            .random_bool(0.25)
            .then(|| Duration::from_millis(rng.random_range(0..400))),
        cancel: rng.random_bool(0.5).then(|| cancel(rng)),
        seed: rng.random(),
    }
}

fn cancel(rng: &mut StdRng) -> Cancel {
    Cancel {
        after: Duration::from_millis(rng.random_range(0..CANCELLED_WITHIN_MS)),
        manner: match rng.random_range(0..100) {
            0..35 => Manner::Twice,
            35..50 => Manner::Leaves {
                after: Duration::from_micros(rng.random_range(2_000..40_000)),
            },
            _ => Manner::Plain,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_jobs_and_another_seed_others() {
        let messages = |seed| {
            plan(20, Duration::from_secs(1), seed)
                .iter()
                .map(Job::message)
                .collect::<Vec<_>>()
        };
        assert_eq!(messages(1), messages(1));
        assert_ne!(messages(1), messages(2));
    }

    #[test]
    fn a_plan_of_the_smallest_size_has_every_manner() {
        let jobs = plan(100, Duration::from_secs(1), 20);
        let manners: Vec<Manner> = jobs
            .iter()
            .filter_map(|job| job.cancel)
            .map(|cancel| cancel.manner)
            .collect();
        assert!(manners.contains(&Manner::Plain));
        assert!(manners.contains(&Manner::Twice));
        let leaves = |manner: &Manner| matches!(manner, Manner::Leaves { .. });
        assert!(manners.iter().any(leaves));
        assert!(jobs.iter().any(|job| job.again_after.is_some()));
        assert!(
            jobs.iter()
                .any(|job| job.items.iter().any(|item| item.fails))
        );
    }
}

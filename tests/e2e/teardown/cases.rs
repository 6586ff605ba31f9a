//! What the explorer explores: who meets whom, how they write, and how many orders of their statements there are.

use Cast::{BothTearDown, LateFinish, Run, TwoTeardowns, TwoWorkers};
use Writes::{Fenced, Inserts, Updates};

use crate::actor::{Actor, Writes};
use crate::playground::Playground;
use crate::shop::Job;

/// Who meets whom.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cast {
    /// A worker, an endpoint and a sweep.
    Run,
    /// A worker who tears down himself once he is told to, and an endpoint.
    BothTearDown,
    /// A teardown whose finish has an older snapshot, and a worker as in TwoTeardowns.
    LateFinish,
    /// Two workers, to whom the queue has given the same job, and a sweep.
    TwoWorkers,
    /// Two teardowns of a flagged job and a worker that has lost its lease and does not know it.
    TwoTeardowns,
}

/// What is explored: every order of these actors' statements.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub cast: Cast,
    pub writes: Writes,
    pub guard: bool,
    /// The sweep's clock says that the worker's lease has run out; else it finds nothing to do.
    pub due: bool,
}

const fn case(cast: Cast, writes: Writes, guard: bool, due: bool) -> Case {
    Case {
        cast,
        writes,
        guard,
        due,
    }
}

/// Cases with more interleavings are for `make test-long`: at READ COMMITTED, and above it.
pub const SHORT: [u64; 3] = [1_500, 250, 250];

/// How many interleavings there are at each level, and of what. Above READ COMMITTED there are fewer, since what is
/// tried again has the floor. Without the guard the fence of `action_extend` is what a program has; with it also one
/// that writes its items without a fence is safe.
pub const CASES: [(&[u64], Case); 12] = [
    (&[241], case(Run, Fenced, false, false)),
    (&[283], case(Run, Updates, true, false)),
    (&[283], case(Run, Inserts, true, false)),
    (&[241, 241, 176], case(Run, Fenced, true, false)),
    (&[95, 95, 95], case(TwoWorkers, Fenced, true, true)),
    (&[423, 423, 418], case(BothTearDown, Fenced, true, true)),
    (&[348, 348, 242], case(Run, Fenced, false, true)),
    (&[348, 348, 242], case(Run, Fenced, true, true)),
    (&[779, 779, 627], case(Run, Updates, true, true)),
    (&[1001, 911, 849], case(Run, Inserts, true, true)),
    (&[1726, 1572, 1572], case(TwoTeardowns, Inserts, true, true)),
    (&[18, 18, 18], case(LateFinish, Inserts, true, true)),
];

impl Case {
    /// What tells that the walk did not come everywhere.
    pub fn wrong(self, level: &str, least: u64, counts: Counts) -> Option<&'static str> {
        // Where the server sees a conflict is its own business, and may differ between versions.
        let least = if level == "serializable" {
            least * 9 / 10
        } else {
            least
        };
        let (done, cancelled) = match self.cast {
            TwoWorkers => (true, false),
            TwoTeardowns | LateFinish => (false, true),
            Run | BothTearDown => (true, true),
        };
        let rules = [
            ("choices were given up", counts.given_up == 0),
            ("there are more interleavings", counts.schedules >= least),
            (
                "no job, or one too many, was done",
                (counts.done > 0) == done,
            ),
            (
                "no job, or one too many, was cancelled",
                (counts.cancelled > 0) == cancelled,
            ),
        ];
        let broken = rules.iter().find(|(_, holds)| !holds);
        broken.map(|(rule, _)| *rule)
    }
}

impl Cast {
    /// Whether the first two actors do the same.
    pub fn twins(self) -> bool {
        matches!(self, TwoWorkers | TwoTeardowns)
    }

    pub async fn actors(self, job: &Job, writes: Writes, play: &Playground) -> Vec<Actor> {
        let worker = || Actor::worker(job, writes, self == BothTearDown, vec![job.todo()]);
        match self {
            Run => vec![worker(), Actor::endpoint(job), Actor::sweep(job)],
            BothTearDown => vec![worker(), Actor::endpoint(job)],
            TwoWorkers => vec![worker(), worker(), Actor::sweep(job)],
            TwoTeardowns | LateFinish => {
                let request = job.call("outcome", "cancel_request", "");
                assert_eq!(play.show(&request).await, "teardown");
                let writer = Actor::late_writer(job, writes);
                if self == LateFinish {
                    return vec![Actor::late_teardown(job), writer];
                }
                let [first, second] = ["first teardown", "second teardown"];
                vec![
                    Actor::teardown(first, job),
                    Actor::teardown(second, job),
                    writer,
                ]
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Interleavings that were run, and all that they stand for.
    pub schedules: u64,
    pub stand_for: u64,
    pub statements: u64,
    pub waits: u64,
    pub astray: u64,
    pub given_up: u64,
    pub done: u64,
    pub cancelled: u64,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.schedules += other.schedules;
        self.stand_for += other.stand_for;
        self.statements += other.statements;
        self.waits += other.waits;
        self.astray += other.astray;
        self.given_up += other.given_up;
        self.done += other.done;
        self.cancelled += other.cancelled;
    }
    pub fn line(self) -> String {
        format!(
            "{} interleavings run, which stand for {}: {} statements of which {} waited, {} times astray, {} given up; {} jobs done, {} cancelled",
            self.schedules,
            self.stand_for,
            self.statements,
            self.waits,
            self.astray,
            self.given_up,
            self.done,
            self.cancelled
        )
    }
}

//! Every interleaving of a worker, an endpoint that cancels and a sweep, statement by statement, with the
//! worker's transactions left open across the others' statements: whatever the order, the job ends `done`
//! with nothing given back or `cancelled` with everything given back once.
//!
//! Each lane has a database for itself (at SERIALIZABLE the server tells lanes apart by it) and its
//! sessions for all schedules; a schedule has a job and a wallet of its own.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::runtime;

use crate::actor::{Actor, Item, Writes};
use crate::playground::Playground;
use crate::shop::{self, Job};
use crate::stage::{Path, Seat, Stage};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

const LANES: usize = 4;

/// Who meets whom.
#[derive(Clone, Copy, Debug)]
enum Cast {
    /// A worker (who tears down himself, where asked for), an endpoint and a sweep.
    Run { tears_down: bool },
    /// Two teardowns of a flagged job and a worker that has lost its lease and does not know it.
    Teardowns,
}

/// What is explored: every order of these actors' statements.
#[derive(Clone, Copy, Debug)]
struct Case {
    cast: Cast,
    writes: Writes,
    guard: bool,
    /// The sweep's clock says that the worker's lease has run out; else it finds nothing to do.
    due: bool,
}

const fn run(writes: Writes, guard: bool, due: bool) -> Case {
    let cast = Cast::Run { tears_down: false };
    Case {
        cast,
        writes,
        guard,
        due,
    }
}

const fn teardowns(writes: Writes) -> Case {
    Case {
        cast: Cast::Teardowns,
        writes,
        guard: true,
        due: true,
    }
}

/// Without the guard the fence of `action_extend` is what a program has, with it also one that writes its
/// items without a fence is safe.
const CASES: [Case; 11] = [
    run(Writes::Fenced, true, true),
    run(Writes::Fenced, true, false),
    run(Writes::Fenced, false, true),
    run(Writes::Fenced, false, false),
    run(Writes::Updates, true, true),
    run(Writes::Updates, true, false),
    run(Writes::Inserts, true, true),
    run(Writes::Inserts, true, false),
    Case {
        cast: Cast::Run { tears_down: true },
        ..run(Writes::Fenced, true, true)
    },
    teardowns(Writes::Updates),
    teardowns(Writes::Inserts),
];

#[derive(Clone, Copy, Default)]
struct Counts {
    schedules: u64,
    statements: u64,
    waits: u64,
    astray: u64,
    done: u64,
    cancelled: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.schedules += other.schedules;
        self.statements += other.statements;
        self.waits += other.waits;
        self.astray += other.astray;
        self.done += other.done;
        self.cancelled += other.cancelled;
    }
}

/// A database, its sessions and its jobs.
struct Lane {
    play: Playground,
    seats: Vec<Seat>,
    jobs: u64,
}

impl Lane {
    async fn open() -> Lane {
        let play = shop::open().await;
        let mut seats = Vec::new();
        for _ in 0..3 {
            seats.push(Seat::take(&play).await);
        }
        Lane {
            play,
            seats,
            jobs: 0,
        }
    }

    async fn explore(&mut self, level: &str, case: Case) -> Counts {
        shop::guard(&self.play, case.guard).await;
        for seat in &self.seats {
            let set = format!("set default_transaction_isolation = '{level}'");
            seat.session.show(&set).await;
        }
        let clock = match case.due {
            true => {
                "select set_config('once.fake_now', (clock_timestamp() + interval '1 hour')::text, false)"
            }
            false => "reset once.fake_now",
        };
        self.sweeper().show(clock).await;
        let (mut counts, mut path) = (Counts::default(), Path::default());
        loop {
            counts.add(self.schedule(case, &mut path).await);
            if !path.advance() {
                break;
            }
        }
        counts.astray = path.astray;
        counts
    }

    fn sweeper(&self) -> &Playground {
        &self.seats[2].session
    }

    async fn schedule(&mut self, case: Case, path: &mut Path) -> Counts {
        self.jobs += 1;
        let job = shop::job(&self.play, &format!("w{}", self.jobs)).await;
        let actors = self.actors(case, &job).await;
        let mut stage = Stage::new(actors, &self.seats, &self.play);
        stage.play(path).await;
        let (waits, told, actors) = (stage.waits, stage.told, stage.actors);
        let outcome = self.converge(&job, case).await.and_then(|end| {
            let broken = actors.iter().find(|actor| {
                actor.promised && end != "cancelled" || actor.ended.is_some_and(|it| it != end)
            });
            match broken {
                Some(actor) => Err(format!("{} was told otherwise: {end}", actor.name)),
                None => Ok(end),
            }
        });
        let end = outcome.unwrap_or_else(|wrong| panic!("{case:?}\n{told:#?}\n{wrong}"));
        Counts {
            schedules: 1,
            statements: told.iter().filter(|line| line.contains("->")).count() as u64,
            waits,
            done: u64::from(end == "done"),
            cancelled: u64::from(end == "cancelled"),
            astray: 0,
        }
    }

    async fn actors(&self, case: Case, job: &Job) -> Vec<Actor> {
        match case.cast {
            Cast::Run { tears_down } => vec![
                Actor::worker(job, case.writes, tears_down, vec![job.todo()]),
                Actor::endpoint(job),
                Actor::sweep(job),
            ],
            Cast::Teardowns => {
                let request = job.call("outcome", "cancel_request", "");
                assert_eq!(self.play.show(&request).await, "teardown");
                vec![
                    Actor::teardown("first teardown", job),
                    Actor::teardown("second teardown", job),
                    Actor::late_writer(job, case.writes),
                ]
            }
        }
    }

    /// What happens anyway in the end: a sweep once the lease has run out, a teardown worker that finds
    /// the flagged job, the queue that delivers the other one again. Then the job has to be right.
    async fn converge(&self, job: &Job, case: Case) -> Result<String, String> {
        for _ in 0..3 {
            let end = job.end(&self.play).await;
            if matches!(end.status.as_str(), "done" | "cancelled") {
                return match job.wrong(&end) {
                    None => Ok(end.status),
                    Some(wrong) => Err(format!("{wrong}: {end:?}")),
                };
            }
            if case.due {
                Stage::alone(self.sweeper(), &mut Actor::sweep(job)).await;
            }
            let mut next = if end.flagged {
                self.pending(job).await?;
                Actor::teardown("teardown worker", job)
            } else {
                Actor::worker(job, Writes::Fenced, true, self.items(job).await)
            };
            Stage::alone(&self.seats[0].session, &mut next).await;
        }
        Err(format!("does not end: {:?}", job.end(&self.play).await))
    }

    async fn pending(&self, job: &Job) -> Result<(), String> {
        let listed = "select string_agg(id, ' ') from once.cancel_pending('batch_job', 100000)";
        let listed = self.play.show(listed).await;
        let found = listed == job.id.to_string();
        found
            .then_some(())
            .ok_or(format!("cancel_pending lists {listed}"))
    }

    /// What is left to be done for a worker that starts anew.
    async fn items(&self, job: &Job) -> Vec<Item> {
        let sql = "select id, artifact from batch_item where state in ('pending', 'working') and job_id = ";
        let rows = self.play.show(&format!("{sql}{}", job.id)).await;
        let items = rows.lines().map(|row| {
            let (id, artifact) = row.split_once('|').unwrap();
            (id.parse().unwrap(), artifact.to_owned())
        });
        items.collect()
    }
}

type Results = BTreeMap<(usize, usize), Counts>;

/// Explores cases from the list until there is none left.
async fn work(todo: &Mutex<Vec<(usize, usize)>>, results: &Mutex<Results>) {
    let mut lane = Lane::open().await;
    loop {
        let Some((level, case)) = todo.lock().unwrap().pop() else {
            break;
        };
        let counts = lane.explore(LEVELS[level], CASES[case]).await;
        results.lock().unwrap().insert((level, case), counts);
    }
}

#[test]
fn every_interleaving_of_worker_endpoint_and_sweep_ends_right() {
    let all = (0..CASES.len()).flat_map(|case| (0..LEVELS.len()).map(move |level| (level, case)));
    let todo: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new(all.collect()));
    let results = Arc::new(Mutex::new(Results::new()));
    let lanes: Vec<_> = (0..LANES)
        .map(|_| {
            let (todo, results) = (Arc::clone(&todo), Arc::clone(&results));
            thread::spawn(move || {
                // A thread of its own for each lane: no statement waits for another lane's thread.
                let runtime = runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(work(&todo, &results));
            })
        })
        .collect();
    let ended: Vec<_> = lanes.into_iter().map(thread::JoinHandle::join).collect();
    report(&results.lock().unwrap());
    assert!(ended.iter().all(Result::is_ok), "a lane failed");
}

/// Says how many there were. Written past the test harness, which hides what a passing test prints.
fn report(results: &Results) {
    let mut text = String::new();
    for (level, name) in LEVELS.iter().enumerate() {
        let mut sum = Counts::default();
        for (case, what) in CASES.iter().enumerate() {
            if let Some(counts) = results.get(&(level, case)) {
                sum.add(*counts);
                text += &format!("  {name}, {what:?}: {}\n", line(*counts));
            }
        }
        text += &format!("{name}: {}\n", line(sum));
    }
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

fn line(counts: Counts) -> String {
    format!(
        "{} interleavings, {} statements of which {} waited, {} times astray; {} jobs done, {} cancelled",
        counts.schedules,
        counts.statements,
        counts.waits,
        counts.astray,
        counts.done,
        counts.cancelled
    )
}

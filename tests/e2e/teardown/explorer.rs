//! Every interleaving of a worker, an endpoint that cancels and a sweep, statement by statement, with the
//! worker's transactions left open across the others' statements: whatever the order, the job ends `done`
//! with nothing given back or `cancelled` with everything given back once.
//!
//! At SERIALIZABLE a transaction may be told 40001 at any of its statements, by a conflict that is one or that
//! the server takes for one. It is tried again from its beginning and has the floor meanwhile (`stage`): each
//! transaction is interleaved with the others once, and not once more for each time that it is tried.
//!
//! Each lane has a server for itself: a transaction that another lane has open, in whatever database, makes
//! the server take schedules that are over for concurrent ones, and tell conflicts with them. A lane has its
//! sessions for all schedules; a schedule has a job and a wallet of its own.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::thread;

use pg_once_tests::{Cluster, is_long};
use tokio::runtime;

use crate::actor::{Actor, Item, Writes};
use crate::cases::{CASES, Case, Cast, Counts, SHORT};
use crate::playground::Playground;
use crate::shop::{self, Job};
use crate::stage::{Path, Seat, Stage};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// So many jobs are made, and looked at in the end, in one statement.
const BATCH: usize = 100;

const LANES: usize = 8;

/// Ended leases of the schedules before: a sweep that happens to write to one of them conflicts with more.
const TIDY: &str = "delete from once.action_lease where state <> 'h'";

/// A schedule that has been played: what its actors said and heard, and the status that the job has to have.
struct Played {
    job: Job,
    told: Vec<String>,
    status: String,
}

/// A server, its sessions and its jobs.
struct Lane {
    _cluster: Cluster,
    play: Playground,
    seats: Vec<Seat>,
    fresh: Vec<Job>,
    wallets: usize,
    played: Vec<Played>,
    /// What was wrong with jobs in the end.
    wrong: Vec<String>,
}

impl Lane {
    async fn open() -> Lane {
        // Autovacuum has transactions of its own.
        let builder = Cluster::builder().setting("autovacuum", "off");
        let cluster = builder.launch().unwrap();
        let created = cluster.create_database_with_extension("shop").await;
        drop(created.unwrap());
        let play = Playground::on(&cluster, "shop").await;
        shop::prepare(&play).await;
        let mut seats = Vec::new();
        for _ in 0..3 {
            seats.push(Seat::take(Playground::on(&cluster, "shop").await).await);
        }
        Lane {
            _cluster: cluster,
            play,
            seats,
            fresh: Vec::new(),
            wallets: 0,
            played: Vec::new(),
            wrong: Vec::new(),
        }
    }

    /// All schedules that begin with these choices, but for those that it leaves to others.
    async fn explore(
        &mut self,
        level: &str,
        case: Case,
        first: Vec<usize>,
        mut leave: impl FnMut(Vec<usize>),
    ) -> Counts {
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
        let (mut counts, mut path) = (Counts::default(), Path::of(first));
        loop {
            counts.add(self.schedule(case, &mut path).await);
            path.others.drain(..).for_each(&mut leave);
            let more = path.advance();
            if !more || self.played.len() == BATCH {
                self.judge(case).await;
            }
            if !more || !self.wrong.is_empty() {
                break;
            }
        }
        (counts.astray, counts.given_up) = (path.astray, path.given_up);
        counts
    }

    fn sweeper(&self) -> &Playground {
        &self.seats[2].session
    }

    async fn job(&mut self) -> Job {
        if self.fresh.is_empty() {
            let wallets = (self.wallets..).take(BATCH).map(|n| format!("w{n}"));
            self.wallets += BATCH;
            self.fresh = shop::jobs(&self.play, &wallets.collect::<Vec<_>>()).await;
        }
        self.fresh.remove(0)
    }

    async fn schedule(&mut self, case: Case, path: &mut Path) -> Counts {
        let job = self.job().await;
        self.play.show(TIDY).await;
        let actors = case.cast.actors(&job, case.writes, &self.play).await;
        let twins = case.cast.twins();
        let mut stage = Stage::new(actors, twins, &self.seats, &self.play);
        stage.play(path).await;
        let (waits, told, actors) = (stage.waits, stage.told, stage.actors);
        let status = match actors.iter().find_map(|actor| actor.ended) {
            Some(status) => Ok(status.to_owned()),
            None => self.converge(&job, case).await,
        };
        let status = status.unwrap_or_else(|wrong| panic!("{case:?}\n{told:#?}\n{wrong}"));
        let otherwise = actors.iter().find(|actor| {
            actor.promised && status != "cancelled" || actor.ended.is_some_and(|it| it != status)
        });
        if let Some(actor) = otherwise {
            panic!(
                "{case:?}\n{told:#?}\n{} was told otherwise: {status}",
                actor.name
            );
        }
        let counts = Counts {
            schedules: 1,
            stand_for: if twins { 2 } else { 1 },
            statements: told.iter().filter(|line| line.contains("->")).count() as u64,
            waits,
            done: u64::from(status == "done"),
            cancelled: u64::from(status == "cancelled"),
            ..Counts::default()
        };
        self.played.push(Played { job, told, status });
        counts
    }

    /// Looks at the jobs of the last schedules and keeps what is wrong with any of them.
    async fn judge(&mut self, case: Case) {
        let mut played = std::mem::take(&mut self.played);
        played.sort_by_key(|one| one.job.id);
        let jobs: Vec<&Job> = played.iter().map(|one| &one.job).collect();
        let ends = shop::ends(&self.play, &jobs).await;
        assert_eq!(ends.len(), played.len());
        for (one, end) in played.iter().zip(&ends) {
            assert_eq!(end.status, one.status, "{case:?}\n{:#?}", one.told);
            if let Some(wrong) = one.job.wrong(end) {
                let told = format!("{case:?}\n{:#?}\n{wrong} {end:?}", one.told);
                self.wrong.push(told);
            }
        }
    }

    /// What happens anyway in the end: a sweep once the lease has run out, a teardown worker that finds
    /// the flagged job, the queue that delivers the other one again.
    async fn converge(&self, job: &Job, case: Case) -> Result<String, String> {
        for _ in 0..3 {
            let (status, flagged) = job.status(&self.play).await;
            if matches!(status.as_str(), "done" | "cancelled") {
                return Ok(status);
            }
            if case.due {
                Stage::alone(self.sweeper(), &mut Actor::sweep(job)).await;
            }
            let mut next = if flagged {
                self.pending(job).await?;
                Actor::teardown("teardown worker", job)
            } else {
                Actor::worker(job, Writes::Fenced, true, self.items(job).await)
            };
            Stage::alone(&self.seats[0].session, &mut next).await;
        }
        Err(format!("does not end: {:?}", job.status(&self.play).await))
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

/// By level and case.
type Results = BTreeMap<(usize, usize), Counts>;

/// Level, case, and what the schedules begin with.
type Part = (usize, usize, Vec<usize>);

/// The levels and cases that are explored, each with the number of its interleavings.
fn wanted() -> impl Iterator<Item = (usize, usize, u64)> {
    let all = CASES.iter().enumerate().flat_map(|(case, (counts, _))| {
        let levels = counts.iter().enumerate();
        levels.map(move |(level, least)| (level, case, *least))
    });
    all.filter(|(level, _, least)| *least <= SHORT[*level] || is_long())
}

/// Explores parts from the list until there is none left. Each leaves others there soon.
async fn work(todo: &Mutex<Vec<Part>>, results: &Mutex<Results>) {
    let mut lane = Lane::open().await;
    loop {
        let Some((level, case, first)) = todo.lock().unwrap().pop() else {
            break;
        };
        let leave = |first| todo.lock().unwrap().push((level, case, first));
        let (name, what) = (LEVELS[level], CASES[case].1);
        let counts = lane.explore(name, what, first, leave).await;
        assert!(lane.wrong.is_empty(), "{}", lane.wrong[0]);
        let mut results = results.lock().unwrap();
        results.entry((level, case)).or_default().add(counts);
    }
}

#[tokio::test]
async fn without_guard_and_fence_the_explorer_finds_what_goes_wrong() {
    let mut lane = Lane::open().await;
    let unsafe_writes = Case {
        cast: Cast::Run,
        writes: Writes::Updates,
        guard: false,
        due: true,
    };
    let mut todo = vec![Vec::new()];
    let mut counts = Counts::default();
    // An item that is written and paid for after its refund, and its artifact made after the cleanup.
    let is_found = |lane: &Lane| lane.wrong.iter().any(|told| told.contains("\nwallet"));
    while let Some(first) = todo.pop()
        && !is_found(&lane)
    {
        let leave = |first| todo.push(first);
        counts.add(lane.explore(LEVELS[0], unsafe_writes, first, leave).await);
    }
    assert!(is_found(&lane), "{counts:?} {:?}", lane.wrong);
}

#[test]
fn every_interleaving_of_worker_endpoint_and_sweep_ends_right() {
    // Taken from the end, where the long ones are.
    let all = wanted().map(|(level, case, _)| (level, case, vec![]));
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
    let results = results.lock().unwrap();
    report(&results);
    assert!(ended.iter().all(Result::is_ok), "a lane failed");
    for (level, case, least) in wanted() {
        let (what, counts) = (CASES[case].1, results[&(level, case)]);
        let wrong = what.wrong(LEVELS[level], least, counts);
        assert_eq!(wrong, None, "{} {what:?}: {}", LEVELS[level], counts.line());
    }
}

/// Says how many there were. Written past the test harness, which hides what a passing test prints.
fn report(results: &Results) {
    let mut text = String::new();
    for (level, name) in LEVELS.iter().enumerate() {
        let mut sum = Counts::default();
        for (case, (_, what)) in CASES.iter().enumerate() {
            if let Some(counts) = results.get(&(level, case)) {
                sum.add(*counts);
                text += &format!("    {what:?}: {}\n", counts.line());
            }
        }
        text += &format!("{name}: {}\n", sum.line());
    }
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

//! A worker process that is killed with SIGKILL at any point, with artifacts on disk: its job is taken up
//! again or torn down, nothing is given back twice, no artifact is left.
//!
//! The worker is this very program, started once more for its one ignored test; it says at which point it
//! stands and goes on when it is told to.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use pg_once_tests::{Cluster, race};
use tokio_postgres::NoTls;

use crate::actor::Actor;
use crate::playground::{Playground, cluster};
use crate::shop::{self, Job};
use crate::stage::Stage;

const URL: &str = "TEARDOWN_WORKER_URL";
const JOB: &str = "TEARDOWN_WORKER_JOB";
const STORE: &str = "TEARDOWN_WORKER_STORE";

/// Where the worker stops, in the order in which it comes there.
const POINTS: [&str; 7] = [
    "claimed",
    "begun",
    "made",
    "written and not committed",
    "committed",
    "finished and not committed",
    "done",
];

#[tokio::test]
#[ignore = "not a test: the worker that the others start and kill"]
async fn worker_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let (job, store) = (std::env::var(JOB).unwrap(), std::env::var(STORE).unwrap());
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    run_job(&Playground::of(client, "shop"), &job, Path::new(&store)).await;
}

/// Tells at which point the worker stands, and waits to be told to go on.
fn pause(point: &str) {
    println!("\n@{point}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

async fn run_job(play: &Playground, job: &str, store: &Path) {
    let claim = "select outcome, token from once.action_claim('batch_job', 'JOB', 'run', 'worker')";
    let claimed = play.show(&claim.replace("JOB", job)).await;
    let ("claimed", token) = claimed.split_once('|').unwrap() else {
        return pause(&claimed);
    };
    pause("claimed");
    let extend =
        format!("begin; select cancelling from once.action_extend('batch_job', '{job}', {token})");
    let items = format!(
        "select id, artifact from batch_item where job_id = {job} and state in ('pending', 'working') order by id"
    );
    for row in play.show(&items).await.lines() {
        let (item, artifact) = row.split_once('|').unwrap();
        // The row says that there may be an artifact before there is one.
        if play.show(&extend).await == "t" {
            return give_up(play, job, token).await;
        }
        let update = format!("update batch_item set state = 'working' where id = {item}; commit");
        play.show(&update).await;
        pause("begun");
        fs::write(store.join(artifact), item).unwrap();
        pause("made");
        if play.show(&extend).await == "t" {
            return give_up(play, job, token).await;
        }
        play.show(&format!(
            "with i as (update batch_item set state = 'succeeded' where id = {item} returning points, job_id)
             update wallet as w set points = w.points - i.points
               from i join batch_job as j on j.id = i.job_id where w.customer = j.customer"
        ))
        .await;
        pause("written and not committed");
        play.show("commit").await;
        pause("committed");
    }
    let finish = format!("select outcome from once.action_finish('batch_job', '{job}', {token})");
    if play.show(&format!("begin; {finish}")).await == "cancelling" {
        return give_up(play, job, token).await;
    }
    play.show(&format!(
        "update batch_item set settled = 'kept' where job_id = {job}"
    ))
    .await;
    pause("finished and not committed");
    play.show("commit").await;
    pause("done");
}

async fn give_up(play: &Playground, job: &str, token: &str) {
    play.show("rollback").await;
    let release = format!("select status from once.action_release('batch_job', '{job}', {token})");
    play.show(&release).await;
    pause("released");
}

/// The worker as a process of its own.
struct Worker {
    process: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(play: &Playground, job: &Job, store: &Path) -> Worker {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "killed::worker_process",
                "--ignored",
                "--nocapture",
            ])
            .env(URL, cluster().front_url(&play.database.name).unwrap())
            .env(JOB, job.id.to_string())
            .env(STORE, store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Worker {
            orders: process.stdin.take().unwrap(),
            lines: BufReader::new(process.stdout.take().unwrap()).lines(),
            process,
        }
    }

    /// The next point at which it stands.
    fn stands_at(&mut self) -> String {
        for line in self.lines.by_ref() {
            if let Some(point) = line.unwrap().strip_prefix('@') {
                return point.to_owned();
            }
        }
        panic!("the worker ended");
    }

    /// Lets it go on to the point.
    fn go_to(&mut self, point: &str) {
        while self.stands_at() != point {
            self.orders.write_all(b"\n").unwrap();
        }
    }

    fn kill_9(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A directory of artifacts, gone with the value.
struct Disk(PathBuf);

impl Disk {
    fn of(job: &Job) -> Disk {
        let name = format!("pg_once-teardown-{}-{}", std::process::id(), job.wallet);
        let disk = Disk(std::env::temp_dir().join(name));
        fs::create_dir_all(&disk.0).unwrap();
        for artifact in job.store.lock().unwrap().iter() {
            fs::write(disk.0.join(artifact), "").unwrap();
        }
        disk
    }

    fn artifacts(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    /// Reads into the job's store what is on disk now.
    fn read(&self, job: &Job) {
        *job.store.lock().unwrap() = self.artifacts().into_iter().collect();
    }

    /// Deletes what is not in the job's store any more.
    fn write(&self, job: &Job) {
        let store = job.store.lock().unwrap();
        for artifact in self.artifacts() {
            if !store.contains(&artifact) {
                fs::remove_file(self.0.join(artifact)).unwrap();
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flagged {
    Never,
    BeforeTheKill,
    AfterTheKill,
}

/// Sweeps once the lease has run out, until the row is back: the server may not have seen yet that the
/// killed worker's connection is gone.
async fn sweep_back(sweeper: &Playground, job: &Job) {
    let status = format!("select status from batch_job where id = {}", job.id);
    let back = race::poll_async("the sweep to revert the job", async || {
        let sweep = "select failed from once.sweep(10, 'action_release', 'batch_job')";
        assert_eq!(sweeper.show(sweep).await, "0");
        Ok((sweeper.show(&status).await != "running").then_some(()))
    });
    back.await.unwrap();
}

async fn request(play: &Playground, job: &Job) -> String {
    play.show(&job.call("outcome", "cancel_request", "")).await
}

async fn tear_down(play: &Playground, job: &Job) {
    let pending = "select string_agg(id, ' ') from once.cancel_pending('batch_job')";
    assert_eq!(play.show(pending).await, job.id.to_string());
    Stage::alone(play, &mut Actor::teardown("teardown worker", job)).await;
}

/// Kills a worker at `point` and brings the job to its end.
async fn killed_at(play: &Playground, sweeper: &Playground, point: &str, flagged: Flagged) {
    let job = shop::job(play, &format!("{point}-{flagged:?}")).await;
    let disk = Disk::of(&job);
    let mut worker = Worker::start(play, &job, &disk.0);
    worker.go_to(point);
    if flagged == Flagged::BeforeTheKill {
        // A row that is about to be done is locked; the request would wait for it.
        assert_eq!(request(play, &job).await, "accepted");
    }
    worker.kill_9();
    if flagged == Flagged::AfterTheKill {
        assert_eq!(request(play, &job).await, "accepted");
    }
    let claim = job.call("outcome", "action_claim", ", 'run', 'worker'");
    assert_eq!(play.show(&claim).await, "in_progress");
    sweep_back(sweeper, &job).await;
    if flagged == Flagged::Never {
        let mut next = Worker::start(play, &job, &disk.0);
        next.go_to("done");
        next.kill_9();
    } else {
        disk.read(&job);
        tear_down(play, &job).await;
        disk.write(&job);
    }
    disk.read(&job);
    let end = job.assert_ended(play).await;
    let cancelled = flagged != Flagged::Never;
    assert_eq!(end.status == "cancelled", cancelled, "{point} {flagged:?}");
}

#[tokio::test]
async fn a_worker_killed_anywhere_leaves_a_job_that_is_run_again_or_torn_down() {
    let play = shop::open().await;
    let sweeper = play.another().await;
    sweeper
        .show("select set_config('once.fake_now', (clock_timestamp() + interval '1 hour')::text, false)")
        .await;
    for point in POINTS {
        for flagged in [
            Flagged::Never,
            Flagged::BeforeTheKill,
            Flagged::AfterTheKill,
        ] {
            let locked = point == "finished and not committed" && flagged != Flagged::Never;
            if point != "done" && !locked {
                killed_at(&play, &sweeper, point, flagged).await;
            }
        }
    }
    killed_in_its_last_transaction(&play, &sweeper).await;
    killed_after_its_end(&play).await;
}

/// The request waits for the worker's open transaction; the kill rolls it back.
async fn killed_in_its_last_transaction(play: &Playground, sweeper: &Playground) {
    let job = shop::job(play, "last").await;
    let disk = Disk::of(&job);
    let mut worker = Worker::start(play, &job, &disk.0);
    worker.go_to("finished and not committed");
    let sql = job.call("outcome", "cancel_request", "");
    let waiting = crate::waiting::Waiting::begin(play, play.another().await, &sql).await;
    worker.kill_9();
    assert_eq!(waiting.end().await.1.unwrap(), "accepted");
    sweep_back(sweeper, &job).await;
    disk.read(&job);
    tear_down(play, &job).await;
    disk.write(&job);
    disk.read(&job);
    assert_eq!(job.assert_ended(play).await.status, "cancelled");
}

async fn killed_after_its_end(play: &Playground) {
    let job = shop::job(play, "after").await;
    let disk = Disk::of(&job);
    let mut worker = Worker::start(play, &job, &disk.0);
    worker.go_to("done");
    worker.kill_9();
    assert_eq!(request(play, &job).await, "too_late");
    disk.read(&job);
    assert_eq!(job.assert_ended(play).await.status, "done");
}

#[tokio::test]
async fn an_artifact_of_an_item_that_never_succeeded_is_listed() {
    let play = shop::open().await;
    let sweeper = play.another().await;
    sweeper
        .show("select set_config('once.fake_now', (clock_timestamp() + interval '1 hour')::text, false)")
        .await;
    let job = shop::job(&play, "w").await;
    let disk = Disk::of(&job);
    let mut worker = Worker::start(&play, &job, &disk.0);
    worker.go_to("made");
    worker.kill_9();
    assert_eq!(request(&play, &job).await, "accepted");
    sweep_back(&sweeper, &job).await;
    play.show(&job.call("pass", "cancel_refund", "")).await;
    let listed = play
        .show(&job.call("item ->> 'artifact', item ->> 'state'", "cancel_items", ""))
        .await;
    let id = job.id;
    let expected = format!("{id}-made|succeeded\n{id}-todo|working\n{id}-lost|failed");
    assert_eq!(listed, expected);
    let mut on_disk = disk.artifacts();
    on_disk.sort();
    assert_eq!(
        on_disk,
        ["lost", "made", "todo"].map(|n| format!("{id}-{n}"))
    );
}

#[tokio::test]
async fn a_server_that_dies_with_the_worker_comes_back_to_the_same_story() {
    let mut cluster = Cluster::builder().fsync(true).launch().unwrap();
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    let play = Playground::on(&cluster, "shop").await;
    shop::prepare(&play).await;
    let jobs = [
        shop::job(&play, "claimed").await,
        shop::job(&play, "flagged").await,
        shop::job(&play, "refunded").await,
    ];
    let [claimed, flagged, refunded] = &jobs;
    for job in [claimed, flagged] {
        let claim = job.call(
            "outcome",
            "action_claim",
            ", 'run', 'worker', '1 microsecond'",
        );
        assert_eq!(play.show(&claim).await, "claimed");
    }
    assert_eq!(request(&play, flagged).await, "accepted");
    assert_eq!(request(&play, refunded).await, "teardown");
    play.show(&refunded.call("pass", "cancel_refund", ", 1"))
        .await;
    // One more refund that never commits.
    play.show(&format!(
        "begin; {}",
        refunded.call("pass", "cancel_refund", "")
    ))
    .await;
    cluster.kill_9().unwrap();
    cluster.start().unwrap();
    let play = Playground::on(&cluster, "shop").await;
    let swept = "select done, failed from once.sweep(10, 'action_release')";
    assert_eq!(play.show(swept).await, "2|0");
    let mut worker = Actor::worker(
        claimed,
        crate::actor::Writes::Fenced,
        true,
        vec![claimed.todo()],
    );
    Stage::alone(&play, &mut worker).await;
    for job in [flagged, refunded] {
        Stage::alone(&play, &mut Actor::teardown("teardown worker", job)).await;
    }
    for (job, status) in jobs.iter().zip(["done", "cancelled", "cancelled"]) {
        assert_eq!(job.assert_ended(&play).await.status, status);
    }
}

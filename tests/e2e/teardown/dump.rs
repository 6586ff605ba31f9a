//! A dump taken in the middle of teardowns, restored into a fresh cluster: each goes on where it was, the
//! guard stands, and nothing is given back a second time.

use pg_once_tests::Cluster;

use crate::actor::Actor;
use crate::playground::Playground;
use crate::shop::{self, Job};
use crate::stage::Stage;

async fn on(cluster: &Cluster, database: &str) -> Playground {
    Playground::on(cluster, database).await
}

const STORED: &str = "
select (select string_agg(c::text, ' ' order by c::text) from once.cancel as c),
       (select string_agg(r::text, ' ' order by r::text) from once.refund as r),
       (select string_agg(l::text, ' ' order by l::text) from once.action_lease as l),
       (select string_agg(j::text, ' ' order by j.id) from batch_job as j),
       (select string_agg(i::text, ' ' order by i.id) from batch_item as i),
       (select string_agg(w::text, ' ' order by w.customer) from wallet as w),
       once.machine_get('batch_job')";

/// How far each job has got when the dump is taken.
const STATES: [&str; 7] = [
    "queued",
    "running",
    "running and flagged",
    "flagged",
    "half refunded",
    "refunded",
    "confirmed",
];

/// A job for each state; the tokens of those that run.
async fn jobs(play: &Playground) -> (Vec<Job>, Vec<String>) {
    let (mut jobs, mut tokens) = (Vec::new(), Vec::new());
    for (n, state) in STATES.into_iter().enumerate() {
        let job = shop::job(play, state).await;
        if matches!(n, 1 | 2) {
            let claim = job.call("token", "action_claim", ", 'run', 'worker', '1 hour'");
            tokens.push(play.show(&claim).await);
        }
        if n >= 2 {
            play.show(&job.call("outcome", "cancel_request", "")).await;
        }
        if n >= 4 {
            play.show(&job.call("pass", "cancel_refund", ", 1")).await;
        }
        if n >= 5 {
            play.show(&job.call("pass", "cancel_refund", "")).await;
        }
        if n >= 6 {
            play.show(&job.call("confirmed", "cancel_confirm", ", 2"))
                .await;
            // Its artifacts are deleted already.
            job.store.lock().unwrap().clear();
        }
        jobs.push(job);
    }
    (jobs, tokens)
}

#[tokio::test]
async fn a_half_done_teardown_goes_on_in_the_restored_database() {
    let old = Cluster::launch().unwrap();
    old.create_database_with_extension("shop").await.unwrap();
    let play = on(&old, "shop").await;
    shop::prepare(&play).await;
    let (jobs, tokens) = jobs(&play).await;
    let before = play.show(STORED).await;
    drop(play);
    let new = Cluster::launch().unwrap();
    old.run("pg_dump", &["-d", "shop", "-Fc", "-f", "dump"])
        .unwrap();
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([old.directory().join("dump"), new.directory().join("dump")])
        .status()
        .unwrap();
    assert!(copied.success());
    drop(old);
    new.psql("postgres", "create database shop").unwrap();
    new.run("pg_restore", &["-d", "shop", "--exit-on-error", "dump"])
        .unwrap();
    let play = on(&new, "shop").await;
    assert_eq!(play.show(STORED).await, before);
    goes_on(&play, &jobs, &tokens).await;

    // And once more from there, as plain SQL: what is finished stays finished.
    let stored = play.show(STORED).await;
    let text = new
        .run("pg_dump", &["-d", "shop", "-f", "plain.sql"])
        .unwrap();
    assert_eq!(text.stderr, "");
    new.psql("postgres", "create database shop2").unwrap();
    let psql = [
        "-X",
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        "shop2",
        "-f",
        "plain.sql",
    ];
    new.run("psql", &psql).unwrap();
    let play = on(&new, "shop2").await;
    assert_eq!(play.show(STORED).await, stored);
    for job in &jobs {
        job.assert_ended(&play).await;
    }
}

async fn goes_on(play: &Playground, jobs: &[Job], tokens: &[String]) {
    // The guard came along.
    for sql in [
        "update batch_item set settled = null where settled is not null",
        "update batch_job set cancel_requested = false",
        "update batch_job set status = 'running' where status = 'queued'",
    ] {
        assert_eq!(play.code(sql).await, "ON002", "{sql}");
    }
    let pending = "select string_agg(id, ' ') from once.cancel_pending('batch_job')";
    let flagged = jobs[3..].iter().map(|job| job.id.to_string());
    assert_eq!(
        play.show(pending).await,
        flagged.collect::<Vec<_>>().join(" ")
    );
    // The holders of before the dump still are.
    let finish =
        |job: &Job, token: &str| job.call("outcome", "action_finish", &format!(", {token}"));
    assert_eq!(play.show(&finish(&jobs[1], &tokens[0])).await, "finished");
    play.show(&format!(
        "update batch_item set settled = 'kept' where job_id = {}",
        jobs[1].id
    ))
    .await;
    assert_eq!(play.show(&finish(&jobs[2], &tokens[1])).await, "cancelling");
    let release = jobs[2].call("status", "action_release", &format!(", {}", tokens[1]));
    assert_eq!(play.show(&release).await, "queued");
    let todo = vec![jobs[0].todo()];
    let mut worker = Actor::worker(&jobs[0], crate::actor::Writes::Fenced, true, todo);
    Stage::alone(play, &mut worker).await;
    for job in &jobs[2..] {
        Stage::alone(play, &mut Actor::teardown("teardown worker", job)).await;
    }
    for (n, job) in jobs.iter().enumerate() {
        let status = if n < 2 { "done" } else { "cancelled" };
        assert_eq!(job.assert_ended(play).await.status, status, "{}", STATES[n]);
    }
}

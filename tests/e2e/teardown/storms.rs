//! Many at once: refunds of one job, workers and endpoints over the same jobs, teardowns that share a
//! wallet. Nothing is given back twice and everything ends, also where the server ends a deadlock.

use std::sync::Arc;

use pg_once_tests::Cluster;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::actor::{Actor, Writes};
use crate::playground::{Playground, Refusal};
use crate::shop::{self, DEADLOCKS, FULL, Job};
use crate::stage::Stage;
use crate::waiting::{at_once, code, sessions};

#[tokio::test]
async fn ten_sessions_refund_one_job_and_the_wallet_grows_once() {
    let play = shop::open().await;
    let sessions = sessions(&play, 10).await;
    for round in 0..30 {
        let job = shop::job_of(&play, &format!("w{round}"), &[1, 2, 3]).await;
        play.show(&job.call("outcome", "cancel_request", "")).await;
        let refund = job.call(
            "items, amount, items_total, amount_total, pass",
            "cancel_refund",
            "",
        );
        let answers = at_once(&sessions, |_| refund.clone()).await;
        let mut answers: Vec<String> = answers.into_iter().map(Result::unwrap).collect();
        answers.sort();
        assert_eq!(answers.pop().unwrap(), "3|6|3|6|1");
        assert!(
            answers.iter().all(|told| told == "0|0|3|6|1"),
            "{answers:?}"
        );
        let wallet = format!("select points from wallet where customer = 'w{round}'");
        assert_eq!(play.show(&wallet).await, FULL.to_string());
    }
}

#[tokio::test]
async fn ten_sessions_refund_one_job_in_pages_and_the_wallet_grows_once_per_item() {
    let play = shop::open().await;
    let sessions = sessions(&play, 10).await;
    for round in 0..10 {
        let job = shop::job_of(&play, &format!("w{round}"), &[1; 20]).await;
        play.show(&job.call("outcome", "cancel_request", "")).await;
        let refund = job.call("items", "cancel_refund", ", 3");
        let mut items = 0;
        while items < 20 {
            for answer in at_once(&sessions, |_| refund.clone()).await {
                items += answer.unwrap().parse::<i64>().unwrap();
            }
        }
        assert_eq!(items, 20);
        let wallet = format!("select points from wallet where customer = 'w{round}'");
        assert_eq!(play.show(&wallet).await, FULL.to_string());
    }
}

#[tokio::test]
async fn above_read_committed_whoever_loses_the_race_for_a_refund_is_told_to_retry() {
    let play = shop::open().await;
    let sessions = sessions(&play, 10).await;
    for level in ["repeatable read", "serializable"] {
        at_once(&sessions, |_| {
            format!("set default_transaction_isolation = '{level}'")
        })
        .await;
        for round in 0..10 {
            let job = shop::job_of(&play, &format!("{level}{round}"), &[1, 2, 3]).await;
            play.show(&job.call("outcome", "cancel_request", "")).await;
            let refund = job.call("items", "cancel_refund", "");
            let mut items = 0;
            for answer in at_once(&sessions, |_| refund.clone()).await {
                match answer {
                    Ok(marked) => items += marked.parse::<i64>().unwrap(),
                    Err(refusal) => assert_eq!(refusal.code, "40001", "{refusal:?}"),
                }
            }
            assert_eq!(items, 3);
            let wallet = format!(
                "select points from wallet where customer = '{}'",
                job.wallet
            );
            assert_eq!(play.show(&wallet).await, FULL.to_string());
        }
    }
}

/// Goes over all jobs in an order of its own, as a worker or as an endpoint.
async fn storm(play: Arc<Playground>, mut jobs: Vec<Job>, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    jobs.shuffle(&mut random);
    for job in &jobs {
        let mut actor = if random.random_bool(0.6) {
            Actor::worker(job, Writes::Fenced, true, vec![job.todo()])
        } else {
            Actor::endpoint(job)
        };
        Stage::alone(&play, &mut actor).await;
    }
}

/// Sweeps with a clock that is an hour ahead, so that every lease it meets has run out, until told to end.
async fn impatient_sweeps(play: Playground, mut end: tokio::sync::oneshot::Receiver<()>) -> i64 {
    play.show(
        "select set_config('once.fake_now', (clock_timestamp() + interval '1 hour')::text, false)",
    )
    .await;
    let (mut done, mut over) = (0, false);
    while !over {
        // The last sweep is one that begins after that.
        over = end.try_recv().is_ok();
        let swept = play
            .show("select done, failed from once.sweep(3, 'action_release', 'batch_job')")
            .await;
        let (reverted, failed) = swept.split_once('|').unwrap();
        assert_eq!(failed, "0");
        done += reverted.parse::<i64>().unwrap();
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_storms_over_forty_jobs_leave_each_done_or_cancelled() {
    let play = shop::open().await;
    for round in 0..3 {
        let mut jobs = Vec::new();
        for n in 0..40 {
            jobs.push(shop::job(&play, &format!("w{round}-{n}")).await);
        }
        // Stalls with its lease, so that one is sure to run out, and goes on without knowing that it has.
        let mut stalled = Actor::worker(&jobs[0], Writes::Fenced, true, vec![jobs[0].todo()]);
        Stage::step(&play, &mut stalled).await;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let sweeps = tokio::spawn(impatient_sweeps(play.another().await, stopped));
        let storms: Vec<_> = sessions(&play, 8)
            .await
            .into_iter()
            .zip(1..)
            .map(|(session, seed)| tokio::spawn(storm(session, jobs.clone(), round * 100 + seed)))
            .collect();
        for storm in storms {
            storm.await.unwrap();
        }
        stop.send(()).unwrap();
        assert!(sweeps.await.unwrap() > 0, "no lease ran out");
        Stage::alone(&play, &mut stalled).await;
        assert_eq!(stalled.ended, None, "without its lease");
        let (mut done, mut cancelled) = (0, 0);
        for job in &jobs {
            finish(&play, job).await;
            match job.assert_ended(&play).await.status.as_str() {
                "done" => done += 1,
                _ => cancelled += 1,
            }
        }
        assert!(
            done > 0 && cancelled > 0,
            "{done} done, {cancelled} cancelled"
        );
        let audit = "select count(*) from once.cancel_audit('batch_job')";
        assert_eq!(play.show(audit).await, "0");
    }
    assert_eq!(play.show(DEADLOCKS).await, "0");
}

/// What the queue and the teardown worker do with a job that nobody has finished.
async fn finish(play: &Playground, job: &Job) {
    for _ in 0..3 {
        let (status, flagged) = job.status(play).await;
        let mut actor = match (status.as_str(), flagged) {
            ("done" | "cancelled", _) => return,
            (_, true) => Actor::teardown("teardown worker", job),
            _ => Actor::worker(job, Writes::Fenced, true, vec![job.todo()]),
        };
        Stage::alone(play, &mut actor).await;
    }
}

/// What a whole transaction comes to; a deadlock's victim runs it again.
async fn converged(play: &Playground, sql: &str) -> Result<String, Refusal> {
    loop {
        let answer = play.attempt(sql).await;
        if code(&answer) != "40P01" {
            return answer;
        }
        play.show("rollback").await;
    }
}

/// A writer of items of both jobs: items in key order and then the wallet, as the lock order says. Once a
/// job is cancelled the guard refuses its new items.
async fn write_items(play: Playground, jobs: [Job; 2], seed: u64) -> Vec<Refusal> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut refusals = Vec::new();
    for _ in 0..40 {
        let job = &jobs[usize::from(random.random_bool(0.5))];
        let (id, wallet) = (job.id, &job.wallet);
        let sql = match random.random_range(0..3) {
            0 => format!(
                "begin; update batch_item set input = 'seen' where id = (
                    select id from batch_item where job_id = {id} order by random() limit 1);
                 update wallet set points = points where customer = '{wallet}'; commit"
            ),
            1 => format!(
                "begin;
                 insert into batch_item (job_id, input, state, points, artifact) values ({id}, 'x', 'succeeded', 1, '');
                 update wallet set points = points - 1 where customer = '{wallet}'; commit"
            ),
            _ => format!(
                "with i as (select id from batch_item where job_id = {id} order by id for no key update)
                 update batch_item as b set artifact = 'y' from i where b.id = i.id and b.input = 'x'"
            ),
        };
        if let Err(refusal) = converged(&play, &sql).await {
            play.show("rollback").await;
            refusals.push(refusal);
        }
    }
    refusals
}

/// Tears both jobs down in small pages, each call a transaction, again from the beginning when somebody
/// has put in one more item.
async fn tear_down(play: Arc<Playground>, jobs: [Job; 2]) {
    for job in &jobs {
        play.show(&job.call("outcome", "cancel_request", "")).await;
        loop {
            let refund = job.call("remaining, pass", "cancel_refund", ", 2");
            let answer = converged(&play, &refund).await.unwrap();
            let (remaining, pass) = answer.split_once('|').unwrap();
            if remaining == "t" {
                continue;
            }
            let confirm = job.call("confirmed", "cancel_confirm", &format!(", {pass}"));
            if converged(&play, &confirm).await.unwrap() != "t" {
                continue;
            }
            let finish = converged(&play, &job.call("status", "cancel_finish", "")).await;
            match code(&finish) {
                "" => break,
                "ON005" => {}
                _ => panic!("{finish:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_that_share_a_wallet_are_torn_down_from_both_ends_beside_writers() {
    let cluster = Cluster::builder()
        .setting("deadlock_timeout", "20ms")
        .launch()
        .unwrap();
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    let play = Playground::on(&cluster, "shop").await;
    shop::prepare(&play).await;
    let session = async || Playground::on(&cluster, "shop").await;
    for round in 0..6 {
        let wallet = format!("w{round}");
        let jobs = [
            shop::job_of(&play, &wallet, &[1; 25]).await,
            shop::job_of(&play, &wallet, &[2; 25]).await,
        ];
        // It has paid for the first job's items only.
        let pay = format!("update wallet set points = points - 50 where customer = '{wallet}'");
        play.show(&pay).await;
        let [first, second] = jobs.clone();
        let mut tasks = Vec::new();
        for order in [[first.clone(), second.clone()], [second, first]] {
            for _ in 0..2 {
                let teardown = tear_down(Arc::new(session().await), order.clone());
                tasks.push(tokio::spawn(teardown));
            }
        }
        let mut writers = Vec::new();
        for seed in 0..4 {
            let writer = write_items(session().await, jobs.clone(), round * 10 + seed);
            writers.push(tokio::spawn(writer));
        }
        for task in tasks {
            task.await.unwrap();
        }
        for writer in writers {
            // After the end of the teardown the guard refuses; nothing else is ever refused.
            let refusals = writer.await.unwrap();
            let other = refusals.iter().find(|refusal| refusal.code != "ON002");
            assert!(other.is_none(), "{other:?}");
        }
        let left = "select points, (select count(*) from batch_job where status <> 'cancelled'),
                           (select count(*) from batch_item where settled is distinct from 'returned'),
                           (select count(*) from once.cancel_audit('batch_job'))
                      from wallet where customer = ";
        let shown = play.show(&format!("{left}'{wallet}'")).await;
        assert_eq!(shown, format!("{FULL}|0|0|0"));
        for (job, paid) in jobs.iter().zip([25, 50]) {
            let refunds = format!(
                "select bool_and(wallet = '{wallet}' and amount > 0), sum(amount) >= {paid},
                        sum(amount) = (select sum(points) from batch_item where job_id = {0})
                   from once.refund where machine = 'batch_job' and row_id = '{0}'",
                job.id
            );
            assert_eq!(play.show(&refunds).await, "t|t|t");
        }
    }
}

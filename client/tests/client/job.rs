//! The job runner: the outcomes of jobs and of their items.

use std::sync::Mutex;
use std::time::Duration;

use pg_once::{
    Action, ActionClaim, Backoff, Begin, BoxError, CleanupItem, Error, Job, JobFailure, JobOutcome,
    JobRunner, Json, MachineRow, OpenTransaction,
};

use tokio::sync::Notify;
use tokio_postgres::types::Type;
use tokio_util::sync::CancellationToken;

use crate::proxy::{Cut, Proxy};
use crate::support::{Jobs, Pool, QUICK, config, terminate, worker};

/// What happens while the second item is worked on or saved.
enum Trouble<'t> {
    None,
    Cancel,
    LoseLease(&'t Jobs),
    LoseLeaseAndHang(&'t Jobs),
    LoseAnswerTo(&'t Proxy, &'static str),
    Fail,
    Panic,
    Hang(&'t Notify),
    TakeLong(Duration),
    TerminateOnSave,
    LockWallet(&'t Jobs),
}

/// Works on three items and records the calls.
struct Script<'t> {
    pool: Pool,
    row: MachineRow,
    id: i64,
    trouble: Trouble<'t>,
    cancel_in_next: bool,
    worked: Vec<i64>,
    discarded: Vec<i64>,
    cleaned: Mutex<usize>,
    cleanup_fails: bool,
    saves: u32,
    locker: Option<tokio_postgres::Client>,
}

impl<'t> Script<'t> {
    fn new(jobs: &Jobs, trouble: Trouble<'t>) -> Self {
        Self {
            pool: jobs.pool.clone(),
            row: jobs.job.clone(),
            id: jobs.id,
            trouble,
            cancel_in_next: false,
            worked: vec![],
            discarded: vec![],
            cleaned: Mutex::new(0),
            cleanup_fails: false,
            saves: 0,
            locker: None,
        }
    }

    async fn run<P: Begin>(&mut self, runner: JobRunner<'_, P>) -> Result<JobOutcome, Error> {
        runner.requester("worker").backoff(QUICK).run(self).await
    }

    async fn cancel(&self) {
        self.row.cancel().request(&self.pool).await.unwrap();
    }
}

impl Job for Script<'_> {
    type Item = i64;
    type Made = ();

    async fn next(
        &mut self,
        transaction: &OpenTransaction,
        _: &Action,
    ) -> Result<Option<i64>, JobFailure> {
        let pending = "SELECT id FROM batch_item WHERE job_id = $1 AND state <> 'succeeded' \
            ORDER BY id LIMIT 1";
        let row = transaction
            .query_typed_opt(pending, &[(&self.id, Type::INT8)])
            .await?;
        if self.cancel_in_next && self.worked.len() == 1 {
            self.cancel().await;
        }
        Ok(row.map(|row| row.get(0)))
    }

    async fn work(&mut self, _: &Action, item: &i64) -> Result<(), JobFailure> {
        self.worked.push(*item);
        if self.worked.len() != 2 {
            return Ok(());
        }
        match &self.trouble {
            Trouble::None | Trouble::TerminateOnSave | Trouble::LockWallet(_) => {}
            Trouble::Cancel => self.cancel().await,
            Trouble::LoseLease(jobs) => jobs.swept_later().await,
            Trouble::LoseLeaseAndHang(jobs) => {
                jobs.swept_later().await;
                std::future::pending::<()>().await;
            }
            Trouble::LoseAnswerTo(proxy, text) => proxy.lose_answer_to(text),
            Trouble::Fail => return Err(JobFailure::release("the service says 503")),
            Trouble::Panic => panic!("an item of poison"),
            Trouble::Hang(begun) => {
                begun.notify_one();
                std::future::pending::<()>().await;
            }
            Trouble::TakeLong(time) => tokio::time::sleep(*time).await,
        }
        Ok(())
    }

    async fn save(
        &mut self,
        transaction: &OpenTransaction,
        item: &i64,
        _: &(),
    ) -> Result<(), JobFailure> {
        self.saves += 1;
        if let Trouble::LockWallet(jobs) = &self.trouble {
            // Another session locks the wallet during the first try to save the second item.
            self.locker = match self.saves {
                2 => Some(jobs.lock_wallet().await),
                _ => None,
            };
            transaction
                .batch_execute("SET LOCAL lock_timeout = '50ms'")
                .await?;
        }
        let done =
            "UPDATE batch_item SET state = 'succeeded' WHERE id = $1 AND state <> 'succeeded'";
        assert_eq!(transaction.execute(done, &[item]).await?, 1, "saved once");
        let burn = "UPDATE wallet SET points = points - 10 WHERE customer = 'ada'";
        transaction.execute(burn, &[]).await?;
        if matches!(self.trouble, Trouble::TerminateOnSave) && self.saves == 2 {
            let pid: i32 = transaction
                .query_one("SELECT pg_backend_pid()", &[])
                .await?
                .get(0);
            terminate(pid).await;
        }
        Ok(())
    }

    async fn result(&mut self) -> Result<Option<Json>, JobFailure> {
        Ok(Some(Json::from_text(r#"{"result": "all of them"}"#)))
    }

    async fn finish(&mut self, transaction: &OpenTransaction) -> Result<(), JobFailure> {
        let keep = "UPDATE batch_item SET settled = 'kept' WHERE job_id = $1 AND settled IS NULL";
        transaction.execute(keep, &[&self.id]).await?;
        Ok(())
    }

    async fn discard(&mut self, _: &Action, item: &i64) {
        self.discarded.push(*item);
    }

    async fn clean(&self, items: Vec<CleanupItem>) -> Result<(), BoxError> {
        if self.cleanup_fails {
            return Err("the store is away".into());
        }
        *self.cleaned.lock().unwrap() += items.len();
        Ok(())
    }
}

/// Asserts that the job is done, and each item was paid for once and settled as `kept`.
async fn assert_finished(jobs: &Jobs, outcome: &JobOutcome) {
    assert!(
        matches!(outcome, JobOutcome::Finished { status, .. } if status == "done"),
        "{outcome:?}"
    );
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("done", 70)
    );
    let kept =
        "SELECT count(*)::text FROM batch_item WHERE state = 'succeeded' AND settled = 'kept'";
    assert_eq!(jobs.text(kept).await, "3");
}

/// Asserts that the job is cancelled, each point was refunded once, and each artifact deleted.
async fn assert_cancelled(jobs: &Jobs, job: &Script<'_>, outcome: &JobOutcome, given_back: &str) {
    match outcome {
        JobOutcome::Cancelled(cancelled) => assert_eq!(cancelled.amount_total.as_str(), given_back),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("cancelled", 100)
    );
    assert_eq!(*job.cleaned.lock().unwrap(), 3);
    jobs.assert_audited().await;
}

#[tokio::test]
async fn every_item_is_worked_on_once_and_the_job_is_done() {
    let jobs = Jobs::guarded().await;
    let mut job = Script::new(&jobs, Trouble::None);
    let outcome = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert_finished(&jobs, &outcome).await;
    assert_eq!((job.worked.len(), job.discarded.len()), (3, 0));
    assert_eq!(
        jobs.text("SELECT result FROM batch_job").await,
        "all of them"
    );

    let again = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert!(matches!(again, JobOutcome::Refused { status } if status == "done"));
}

#[tokio::test]
async fn a_job_that_is_delivered_twice_is_run_once() {
    let jobs = Jobs::guarded().await;
    let action = jobs.claimed().await;
    let mut job = Script::new(&jobs, Trouble::None);
    let outcome = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert!(
        matches!(outcome, JobOutcome::InProgress { .. }),
        "{outcome:?}"
    );
    action.release(&jobs.pool, None).await.unwrap();

    let nobody = jobs.machine.row(999_999);
    let outcome = job.run(nobody.job(&jobs.pool, "run")).await.unwrap();
    assert!(matches!(outcome, JobOutcome::NotFound), "{outcome:?}");
    assert!(job.worked.is_empty());
}

#[tokio::test]
async fn a_cancellation_in_the_middle_of_an_item_is_seen_before_the_item_is_saved() {
    let jobs = Jobs::guarded().await;
    let mut job = Script::new(&jobs, Trouble::Cancel);
    let outcome = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert_cancelled(&jobs, &job, &outcome, "10").await;
    assert_eq!((job.worked.len(), job.saves), (2, 1));
}

#[tokio::test]
async fn a_cancellation_between_items_is_seen_before_the_next_one_begins() {
    let jobs = Jobs::guarded().await;
    let mut job = Script::new(&jobs, Trouble::None);
    job.cancel_in_next = true;
    let runner = jobs.job.job(&jobs.pool, "run").check_every(Duration::ZERO);
    let outcome = job.run(runner).await.unwrap();
    assert_cancelled(&jobs, &job, &outcome, "10").await;
    assert_eq!(job.worked.len(), 1);
}

#[tokio::test]
async fn a_cancellation_after_the_last_item_is_seen_before_the_end() {
    let jobs = Jobs::guarded().await;
    jobs.execute("DELETE FROM batch_item WHERE artifact <> 'item-1'")
        .await;
    let mut job = Script::new(&jobs, Trouble::None);
    job.cancel_in_next = true;
    let runner = jobs.job.job(&jobs.pool, "run").check_every(Duration::MAX);
    let outcome = job.run(runner).await.unwrap();
    assert!(matches!(outcome, JobOutcome::Cancelled(_)), "{outcome:?}");
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("cancelled", 100)
    );
}

#[tokio::test]
async fn a_delivery_of_a_job_that_is_being_cancelled_tears_it_down() {
    let jobs = Jobs::guarded().await;
    jobs.job.cancel().request(&jobs.pool).await.unwrap();
    let mut job = Script::new(&jobs, Trouble::None);
    let outcome = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert_cancelled(&jobs, &job, &outcome, "0").await;
    assert!(job.worked.is_empty());
}

#[tokio::test]
async fn a_cleanup_that_fails_leaves_the_job_to_the_next_teardown() {
    let jobs = Jobs::guarded().await;
    let mut job = Script::new(&jobs, Trouble::Cancel);
    job.cleanup_fails = true;
    let error = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap_err();
    assert!(matches!(error, Error::Other(_)), "{error:?}");
    assert_eq!(jobs.status().await, "queued");
    assert_eq!(jobs.pending().await, std::slice::from_ref(&jobs.job));

    job.cleanup_fails = false;
    let outcome = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert_cancelled(&jobs, &job, &outcome, "10").await;
}

#[tokio::test]
async fn an_item_whose_lease_was_lost_is_not_saved_and_what_it_made_is_deleted() {
    let jobs = Jobs::guarded().await;
    let mut job = Script::new(&jobs, Trouble::LoseLease(&jobs));
    let outcome = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert!(matches!(outcome, JobOutcome::LeaseLost), "{outcome:?}");
    assert_eq!(job.discarded, job.worked[1..]);
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("queued", 90)
    );

    // The next run continues with the item that was not saved.
    let mut next = Script::new(&jobs, Trouble::None);
    let outcome = next.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert_finished(&jobs, &outcome).await;
    assert_eq!(next.worked, [job.worked[1], job.worked[1] + 1]);
}

#[tokio::test]
async fn what_an_item_made_is_deleted_though_the_release_of_the_lost_lease_has_no_answer() {
    let jobs = Jobs::guarded().await;
    let proxy = Proxy::start().await;
    let pool = jobs.through(proxy.config());
    proxy.lose_answer_to("action_release");
    let mut job = Script::new(&jobs, Trouble::LoseLease(&jobs));
    let runner = jobs.job.job(&pool, "run").requester("worker");
    let runner = runner.backoff(Backoff { tries: 1, ..QUICK });
    let outcome = runner.run(&mut job).await.unwrap();
    assert!(matches!(outcome, JobOutcome::LeaseLost), "{outcome:?}");
    assert_eq!(job.discarded, job.worked[1..]);
    assert_eq!(proxy.lost(), 1);
}

#[tokio::test]
async fn a_lease_that_is_lost_under_a_long_item_stops_it() {
    let jobs = Jobs::guarded().await;
    let mut job = Script::new(&jobs, Trouble::LoseLeaseAndHang(&jobs));
    let runner = jobs
        .job
        .job(&jobs.pool, "run")
        .lease(Duration::from_millis(600));
    let outcome = job.run(runner).await.unwrap();
    assert!(matches!(outcome, JobOutcome::LeaseLost), "{outcome:?}");
    assert_eq!(job.discarded, job.worked[1..]);
}

#[tokio::test]
async fn the_lease_is_kept_alive_for_as_long_as_an_item_takes() {
    let jobs = Jobs::guarded().await;
    let lease = Duration::from_millis(1500);
    let mut job = Script::new(&jobs, Trouble::TakeLong(lease * 4));
    let run = async { job.run(jobs.job.job(&jobs.pool, "run").lease(lease)).await };
    let others = async {
        tokio::time::sleep(lease * 3).await;
        jobs.job.claim(&jobs.pool, "run", &worker()).await.unwrap()
    };
    let (outcome, other) = tokio::join!(run, others);
    assert!(matches!(other, ActionClaim::InProgress { .. }), "{other:?}");
    assert_finished(&jobs, &outcome.unwrap()).await;
}

#[tokio::test]
async fn a_job_that_fails_is_given_back_and_goes_on_later() {
    let jobs = Jobs::guarded().await;
    let mut job = Script::new(&jobs, Trouble::Fail);
    match job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap() {
        JobOutcome::Released { error } => assert_eq!(error, "the service says 503"),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("queued", 90)
    );
    let outcome = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert_finished(&jobs, &outcome).await;
}

#[tokio::test]
async fn a_refusal_of_the_database_gives_the_job_back_and_is_handed_on() {
    let jobs = Jobs::guarded().await;
    jobs.execute("UPDATE wallet SET points = 15").await;
    let mut job = Script::new(&jobs, Trouble::None);
    let error = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap_err();
    assert_eq!(error.code(), Some("23514"), "no wallet is overdrawn");
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("queued", 5)
    );
}

#[tokio::test]
async fn a_backend_that_is_terminated_under_an_item_costs_nothing_twice() {
    let jobs = Jobs::guarded().await;
    let mut job = Script::new(&jobs, Trouble::TerminateOnSave);
    let outcome = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert_finished(&jobs, &outcome).await;
    assert_eq!((job.worked.len(), job.discarded.len()), (4, 0));
}

#[tokio::test]
async fn an_item_that_loses_a_race_is_saved_later_and_not_worked_on_again() {
    let jobs = Jobs::guarded().await;
    let mut job = Script::new(&jobs, Trouble::LockWallet(&jobs));
    let outcome = job.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert_finished(&jobs, &outcome).await;
    assert_eq!(job.worked.len(), 3);
    assert!(job.saves > 3, "{}", job.saves);
}

#[tokio::test]
async fn an_item_whose_commit_was_not_answered_is_neither_done_again_nor_deleted() {
    let jobs = Jobs::guarded().await;
    let proxy = Proxy::start().await;
    let pool = jobs.through(proxy.config());
    let mut job = Script::new(&jobs, Trouble::LoseAnswerTo(&proxy, "COMMIT"));
    let outcome = job.run(jobs.job.job(&pool, "run")).await.unwrap();
    assert_finished(&jobs, &outcome).await;
    assert_eq!(
        (proxy.lost(), job.worked.len(), job.discarded.len()),
        (1, 3, 0)
    );
}

#[tokio::test]
async fn a_look_that_was_not_answered_is_taken_again() {
    let jobs = Jobs::guarded().await;
    let proxy = Proxy::start().await;
    let pool = jobs.through(proxy.config());
    // Loses the answer to the first check for a cancellation, before the first item.
    proxy.lose_answer_to("action_extend");
    let mut job = Script::new(&jobs, Trouble::None);
    let runner = jobs.job.job(&pool, "run").check_every(Duration::ZERO);
    let outcome = job.run(runner).await.unwrap();
    assert_finished(&jobs, &outcome).await;
    assert_eq!((proxy.lost(), job.worked.len()), (1, 3));
}

#[tokio::test]
async fn a_claim_or_a_release_whose_answer_is_lost_is_repeated() {
    let jobs = Jobs::guarded().await;
    let proxy = Proxy::start().await;
    let pool = jobs.through(proxy.config());
    proxy.lose_answer_to("action_claim");
    let mut job = Script::new(&jobs, Trouble::Fail);
    let outcome = job.run(jobs.job.job(&pool, "run")).await.unwrap();
    assert!(
        matches!(outcome, JobOutcome::Released { .. }),
        "{outcome:?}"
    );
    // A new pool: the proxy needs the statement's text, which sqlx sends once for each connection.
    let pool = jobs.through(proxy.config());
    proxy.lose_answer_to("action_release");
    let mut job = Script::new(&jobs, Trouble::Cancel);
    let outcome = job.run(jobs.job.job(&pool, "run")).await.unwrap();
    assert_eq!(proxy.lost(), 2);
    // Refunded: one item of the first run, one of the second.
    assert_cancelled(&jobs, &job, &outcome, "20").await;
}

#[tokio::test]
async fn a_commit_of_the_end_that_was_not_answered_is_found_out() {
    let jobs = Jobs::guarded().await;
    jobs.execute("DELETE FROM batch_item WHERE artifact <> 'item-1'")
        .await;
    let proxy = Proxy::start().await;
    let pool = jobs.through(proxy.config());
    // The only item is saved already. The first COMMIT ends the search for an item, the second one ends the job.
    jobs.execute("UPDATE batch_item SET state = 'succeeded'")
        .await;
    proxy.cut(Cut {
        text: "COMMIT",
        nth: 2,
        arrives: true,
        hold: false,
    });
    let mut job = Script::new(&jobs, Trouble::None);
    // Each call is tried once, and the answer to the second COMMIT is lost.
    let runner = jobs.job.job(&pool, "run");
    let runner = runner.backoff(Backoff { tries: 1, ..QUICK });
    let outcome = job.run(runner).await.unwrap();
    assert!(
        matches!(&outcome, JobOutcome::Finished { status, version: Some(2) } if status == "done"),
        "{outcome:?}"
    );
    assert_eq!((proxy.lost(), jobs.status().await.as_str()), (1, "done"));
}

#[tokio::test]
async fn a_job_that_is_told_to_stop_during_its_last_commit_is_finished() {
    let jobs = Jobs::guarded().await;
    jobs.execute("UPDATE batch_item SET state = 'succeeded'")
        .await;
    let proxy = Proxy::start().await;
    let pool = jobs.through(proxy.config());
    proxy.cut(Cut {
        text: "COMMIT",
        nth: 2,
        arrives: true,
        hold: true,
    });
    let stop = async {
        while proxy.lost() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut job = Script::new(&jobs, Trouble::None);
    let runner = jobs.job.job(&pool, "run").requester("worker");
    let outcome = runner.backoff(QUICK).run_until(stop, &mut job).await;
    assert!(
        matches!(&outcome, Ok(JobOutcome::Finished { status, .. }) if status == "done"),
        "{outcome:?}"
    );
    assert_eq!(jobs.status().await, "done");
}

#[tokio::test]
async fn a_runner_that_is_dropped_leaves_a_job_that_another_takes_up() {
    let jobs = Jobs::guarded().await;
    let begun = Notify::new();
    let mut job = Script::new(&jobs, Trouble::Hang(&begun));
    tokio::select! {
        outcome = job.run(jobs.job.job(&jobs.pool, "run")) => panic!("{outcome:?}"),
        () = begun.notified() => {}
    }
    jobs.swept_later().await;
    let mut next = Script::new(&jobs, Trouble::None);
    let outcome = next.run(jobs.job.job(&jobs.pool, "run")).await.unwrap();
    assert_finished(&jobs, &outcome).await;
    assert_eq!(job.worked.len() + next.worked.len(), 4);
}

#[tokio::test]
async fn a_pool_of_one_connection_is_enough() {
    let jobs = Jobs::guarded().await;
    let one = jobs.through(config());
    one.resize(1);
    let mut job = Script::new(&jobs, Trouble::None);
    job.pool = one.clone();
    let outcome = job.run(jobs.job.job(&one, "run")).await.unwrap();
    assert_finished(&jobs, &outcome).await;
}

#[tokio::test]
async fn in_test_mode_a_job_leaves_nothing_once_its_transaction_is_rolled_back() {
    let jobs = Jobs::guarded().await;
    for cancels in [false, true] {
        let test = jobs.begun().await;
        if cancels {
            jobs.job.cancel().request(&test).await.unwrap();
        }
        let mut job = Script::new(&jobs, Trouble::None);
        let outcome = job.run(jobs.job.job(&test, "run")).await.unwrap();
        match outcome {
            JobOutcome::Finished { status, .. } => {
                assert_eq!((status.as_str(), cancels), ("done", false))
            }
            JobOutcome::Cancelled(end) => {
                assert_eq!((end.status.as_str(), cancels), ("cancelled", true))
            }
            other => panic!("{other:?}"),
        }
        let points = test
            .0
            .query_one("SELECT points FROM wallet", &[])
            .await
            .unwrap();
        let (left, worked) = if cancels { (100, 0) } else { (70, 3) };
        assert_eq!((points.get::<_, i64>(0), job.worked.len()), (left, worked));
        test.0.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(
            (jobs.status().await.as_str(), jobs.points().await),
            ("queued", 100)
        );
    }
}

#[tokio::test]
async fn a_runner_can_be_spawned() {
    let jobs = Jobs::guarded().await;
    let outcome = spawned(&jobs, Trouble::None).await.unwrap();
    assert_finished(&jobs, &outcome).await;
}

async fn spawned(
    jobs: &Jobs,
    trouble: Trouble<'static>,
) -> Result<JobOutcome, tokio::task::JoinError> {
    let (pool, row, mut job) = (
        jobs.pool.clone(),
        jobs.job.clone(),
        Script::new(jobs, trouble),
    );
    tokio::spawn(async move { job.run(row.job(&pool, "run")).await.unwrap() }).await
}

#[tokio::test]
async fn a_job_that_panics_is_given_back_at_once_and_the_panic_goes_on() {
    let jobs = Jobs::guarded().await;
    assert!(spawned(&jobs, Trouble::Panic).await.unwrap_err().is_panic());
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("queued", 90)
    );
    let outcome = spawned(&jobs, Trouble::None).await.unwrap();
    assert_finished(&jobs, &outcome).await;
}

#[tokio::test]
async fn a_job_that_is_told_to_stop_discards_the_item_and_is_released() {
    let jobs = Jobs::guarded().await;
    let (begun, stop) = (Notify::new(), CancellationToken::new());
    let mut job = Script::new(&jobs, Trouble::Hang(&begun));
    let runner = jobs.job.job(&jobs.pool, "run").requester("worker");
    let run = runner.run_until(stop.clone().cancelled_owned(), &mut job);
    let told = async {
        begun.notified().await;
        stop.cancel();
    };
    let (outcome, ()) = tokio::join!(run, told);
    assert!(
        matches!(outcome, Ok(JobOutcome::Released { .. })),
        "{outcome:?}"
    );
    assert_eq!(job.discarded, job.worked[1..]);
    assert_eq!(jobs.status().await, "queued");
}

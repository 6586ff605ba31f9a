//! Actions: the writes of an action commit once, together with its end, also after network failures and kills.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use pg_once::{
    Acted, ActionRunner, Backoff, JobFailure, Json, Kind, Machine, MachineRow, OpenTransaction,
};
use tokio::sync::Notify;

use crate::proxy::{Cut, Proxy};
use crate::support::{Jobs, QUICK, config, connect, pool_to, terminate};

fn runner(row: &MachineRow) -> ActionRunner {
    row.action("run").requester("worker").backoff(QUICK)
}

/// The work: burns ten points and returns a result; its own attempt to commit is refused.
async fn pay(transaction: &OpenTransaction) -> Result<Option<Json>, JobFailure> {
    let early = transaction.clone().commit().await.unwrap_err();
    assert_eq!(early.kind(), Kind::InvalidArgument);
    let burn = "UPDATE wallet SET points = points - 10 WHERE customer = 'ada'";
    transaction.execute_typed(burn, &[]).await?;
    Ok(Some(Json::from_text(r#"{"result": "3 pages"}"#)))
}

fn finished() -> Acted {
    Acted::Finished {
        status: "done".to_owned(),
        version: Some(2),
    }
}

/// Asserts that nothing was written, and the row has its old status.
async fn assert_given_back(jobs: &Jobs) {
    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("queued", 100)
    );
}

#[tokio::test]
async fn the_writes_of_the_work_commit_with_the_end_of_the_action() {
    let jobs = &Jobs::guarded().await;
    let acted = runner(&jobs.job).run(&jobs.pool, |lease, transaction| async move {
        let lease = lease.expect("the requester has a claim state");
        assert_eq!(lease.status(), "running");
        // The claim was committed before the work: other sessions see it.
        assert_eq!(jobs.status().await, "running");
        pay(&transaction).await
    });
    assert_eq!(acted.await.unwrap(), finished());
    let result = jobs.text("SELECT result FROM batch_job").await;
    assert_eq!((result.as_str(), jobs.points().await), ("3 pages", 90));

    let again = runner(&jobs.job).run(&jobs.pool, |_, _| async { unreachable!() });
    let done = Acted::Refused {
        status: Some("done".to_owned()),
        version: Some(2),
    };
    assert_eq!(again.await.unwrap(), done);
    let nobody =
        runner(&jobs.machine.row(999_999)).run(&jobs.pool, |_, _| async { unreachable!() });
    assert_eq!(nobody.await.unwrap(), Acted::NotFound);
}

#[tokio::test]
async fn of_two_clerks_one_runs_the_work_and_the_other_is_told_when_to_ask_again() {
    let jobs = &Jobs::guarded().await;
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (first, pool) = (runner(&jobs.job), jobs.pool.clone());
    let (told, wait) = (Arc::clone(&begun), Arc::clone(&go));
    let first = tokio::spawn(async move {
        let work = |_, transaction: OpenTransaction| {
            let (told, wait) = (&told, &wait);
            async move {
                told.notify_one();
                wait.notified().await;
                pay(&transaction).await
            }
        };
        first.run(&pool, work).await
    });
    begun.notified().await;
    let second = runner(&jobs.job).run(&jobs.pool, |_, _| async { unreachable!() });
    match second.await.unwrap() {
        Acted::InProgress { retry_after } => assert!(!retry_after.is_zero()),
        other => panic!("{other:?}"),
    }
    go.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), finished());
    assert_eq!(jobs.points().await, 90);
}

#[tokio::test]
async fn work_whose_commit_was_not_answered_is_done_and_does_not_run_again() {
    for text in ["action_claim", "COMMIT"] {
        let jobs = &Jobs::guarded().await;
        let proxy = Proxy::start().await;
        let pool = jobs.through(proxy.config());
        if text == "action_claim" {
            proxy.lose_answer_to(text);
        }
        let mut runs = 0;
        let mut runner = runner(&jobs.job);
        if text == "COMMIT" {
            // Each call is tried once, and the answer to COMMIT is lost.
            runner = runner.backoff(Backoff { tries: 1, ..QUICK });
        }
        let acted = runner.run(&pool, |_, transaction| {
            runs += 1;
            if text == "COMMIT" {
                proxy.lose_answer_to(text);
            }
            async move { pay(&transaction).await }
        });
        assert_eq!(acted.await.unwrap(), finished());
        assert_eq!((runs, proxy.lost(), jobs.points().await), (1, 1, 90));
    }
}

#[tokio::test]
async fn a_row_is_released_although_the_server_is_away_for_longer_than_the_tries() {
    let jobs = &Jobs::guarded().await;
    let proxy = Proxy::start().await;
    let pool = jobs.through(proxy.config());
    let acted = runner(&jobs.job).run(&pool, |_, _| {
        proxy.be_away_for(4 * QUICK.tries);
        async { Err(JobFailure::release("the office is closed")) }
    });
    let error = "the office is closed".to_owned();
    assert_eq!(acted.await.unwrap(), Acted::Released { error });
    assert_given_back(jobs).await;
}

#[tokio::test]
async fn a_commit_on_a_connection_that_has_fallen_silent_is_found_out() {
    let jobs = &Jobs::guarded().await;
    let proxy = Proxy::start().await;
    let pool = jobs.through(proxy.config());
    let backoff = Backoff {
        call_timeout: Duration::from_secs(2),
        ..QUICK
    };
    let mut runs = 0;
    let acted = runner(&jobs.job)
        .backoff(backoff)
        .run(&pool, |_, transaction| {
            runs += 1;
            proxy.cut(Cut {
                text: "COMMIT",
                nth: 1,
                arrives: true,
                hold: true,
            });
            async move { pay(&transaction).await }
        });
    assert_eq!(acted.await.unwrap(), finished());
    assert_eq!((runs, jobs.points().await), (1, 90));
}

#[tokio::test]
async fn what_another_database_has_done_already_is_no_end_of_the_action() {
    let jobs = &Jobs::guarded().await;
    let proxy = Proxy::start().await;
    let pool = jobs.through(proxy.config());
    let mut runs = 0;
    let acted = runner(&jobs.job).run(&pool, |_, transaction| {
        runs += 1;
        let first = runs == 1;
        if first {
            proxy.cut(Cut {
                text: "COMMIT",
                nth: 1,
                arrives: false,
                hold: false,
            });
        }
        async move {
            if !first {
                let raise = "DO $$ BEGIN RAISE SQLSTATE 'ON006'; END $$";
                connect().await.batch_execute(raise).await?;
            }
            pay(&transaction).await
        }
    });
    assert_eq!(acted.await.unwrap_err().kind(), Kind::AlreadyDone);
    assert_eq!((runs, proxy.lost(), jobs.points().await), (2, 1, 100));
}

#[tokio::test]
async fn an_on006_that_the_commit_raises_is_no_end_of_the_action() {
    let jobs = &Jobs::guarded().await;
    jobs.execute(
        "CREATE FUNCTION done_elsewhere() RETURNS trigger LANGUAGE plpgsql
             AS $$ BEGIN RAISE SQLSTATE 'ON006'; END $$",
    )
    .await;
    jobs.execute(
        "CREATE CONSTRAINT TRIGGER elsewhere AFTER UPDATE ON wallet
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION done_elsewhere()",
    )
    .await;
    let acted = runner(&jobs.job).run(&jobs.pool, |_, transaction| async move {
        pay(&transaction).await
    });
    assert_eq!(acted.await.unwrap_err().kind(), Kind::AlreadyDone);
    assert_given_back(jobs).await;
}

#[tokio::test]
async fn a_session_that_dies_in_the_work_undoes_it_and_the_work_runs_again() {
    let jobs = &Jobs::guarded().await;
    let mut runs = 0;
    let acted = runner(&jobs.job).run(&jobs.pool, |_, transaction| {
        runs += 1;
        let first = runs == 1;
        async move {
            let patch = pay(&transaction).await?;
            if first {
                let asked = transaction.query_typed_one("SELECT pg_backend_pid()", &[]);
                terminate(asked.await?.get(0)).await;
            }
            Ok(patch)
        }
    });
    assert_eq!(acted.await.unwrap(), finished());
    assert_eq!((runs, jobs.points().await), (2, 90));
}

#[tokio::test]
async fn work_that_fails_gives_the_row_back_and_writes_nothing() {
    let jobs = &Jobs::guarded().await;
    let acted = runner(&jobs.job).run(&jobs.pool, |_, transaction| async move {
        pay(&transaction).await?;
        Err(JobFailure::release("tax office: bad VAT id"))
    });
    let error = "tax office: bad VAT id".to_owned();
    assert_eq!(acted.await.unwrap(), Acted::Released { error });
    assert_given_back(jobs).await;

    let refused = runner(&jobs.job).run(&jobs.pool, |_, transaction| async move {
        pay(&transaction).await?;
        transaction
            .execute_typed("UPDATE wallet SET points = -1", &[])
            .await?;
        Ok(None)
    });
    assert_eq!(refused.await.unwrap_err().code(), Some("23514"));
    assert_given_back(jobs).await;

    let swallowed = runner(&jobs.job).run(&jobs.pool, |_, transaction| async move {
        pay(&transaction).await?;
        let wrong = transaction.execute_typed("UPDATE wallet SET points = -1", &[]);
        assert!(wrong.await.is_err());
        Ok(None)
    });
    assert_eq!(swallowed.await.unwrap_err().code(), Some("25P02"));
    assert_given_back(jobs).await;

    let (job, pool) = (jobs.job.clone(), jobs.pool.clone());
    let panics = tokio::spawn(async move {
        let work = |_, _| async { panic!("poison") };
        runner(&job).run(&pool, work).await
    });
    assert!(panics.await.unwrap_err().is_panic());
    assert_given_back(jobs).await;
    let record = jobs.job.lease(&jobs.pool).await.unwrap().unwrap();
    assert_eq!(record.attempts, Some(4));
}

#[tokio::test]
async fn work_whose_lease_was_lost_writes_nothing() {
    let jobs = &Jobs::guarded().await;
    let acted = runner(&jobs.job).run(&jobs.pool, |_, transaction| async move {
        let patch = pay(&transaction).await?;
        jobs.swept_later().await;
        Ok(patch)
    });
    assert_eq!(acted.await.unwrap(), Acted::LeaseLost);
    assert_given_back(jobs).await;

    // The heartbeat notices the lost lease while the work stalls.
    let run = runner(&jobs.job).lease(Duration::from_millis(600));
    let acted = run.run(&jobs.pool, |_, _| async {
        jobs.swept_later().await;
        std::future::pending().await
    });
    assert_eq!(acted.await.unwrap(), Acted::LeaseLost);
    assert_given_back(jobs).await;
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_its_connection_without_a_transaction() {
    let jobs = &Jobs::guarded().await;
    let mut config = config();
    config.user(jobs.machine.as_str());
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    // The work has the only connection, so the heartbeat gets none.
    let one = Pool::builder(manager).max_size(1).build().unwrap();
    let begun = Notify::new();
    let run = runner(&jobs.job).run(&one, |_, transaction| {
        let begun = &begun;
        async move {
            let patch = pay(&transaction).await;
            begun.notify_one();
            std::future::pending::<()>().await;
            patch
        }
    });
    tokio::select! {
        _ = run => panic!("it does not end"),
        () = begun.notified() => {}
    }
    let burn = "UPDATE wallet SET points = points - 1 WHERE customer = 'ada'";
    one.get()
        .await
        .unwrap()
        .execute_typed(burn, &[])
        .await
        .unwrap();
    assert_eq!(
        jobs.points().await,
        99,
        "committed by itself, and nothing else"
    );
}

#[tokio::test]
async fn a_row_that_is_cancelled_meanwhile_is_given_back_for_its_teardown() {
    let jobs = &Jobs::guarded().await;
    for cancelled_before in [false, true] {
        let acted = runner(&jobs.job).run(&jobs.pool, |_, transaction| async move {
            assert!(!cancelled_before);
            let patch = pay(&transaction).await?;
            jobs.job.cancel().request(&jobs.pool).await?;
            Ok(patch)
        });
        assert_eq!(acted.await.unwrap(), Acted::Cancelling);
        assert_given_back(jobs).await;
    }
}

#[tokio::test]
async fn a_requester_without_a_claim_state_moves_the_row_with_the_writes_of_its_work() {
    let jobs = &Jobs::new().await;
    let mut definition: serde_json::Value =
        serde_json::from_str(include_str!("../../../sql/examples/batch_job.json")).unwrap();
    definition["machine"] = jobs.machine.as_str().into();
    definition["steps"][0]["successful_state"]["import"] = "done".into();
    let redefined = Machine::define(&jobs.pool, &definition.into()).await;
    redefined.unwrap();

    let import = || jobs.job.action("run").requester("import").backoff(QUICK);
    let unknown = import().run(&jobs.pool, |_, _| async { unreachable!() });
    assert_eq!(unknown.await.unwrap(), Acted::Unclaimed);

    let failing = import()
        .to("done")
        .run(&jobs.pool, |_, transaction| async move {
            pay(&transaction).await?;
            Err(JobFailure::release("no file"))
        });
    let error = "no file".to_owned();
    assert_eq!(failing.await.unwrap(), Acted::Released { error });
    assert_given_back(jobs).await;

    let moved = import()
        .to("done")
        .run(&jobs.pool, |lease, transaction| async move {
            assert!(lease.is_none());
            pay(&transaction).await
        });
    let done = Acted::Finished {
        status: "done".to_owned(),
        version: Some(1),
    };
    assert_eq!(moved.await.unwrap(), done);
    assert_eq!(jobs.points().await, 90);

    // The row is `done` already, so this move is refused and the writes are undone.
    let late = import()
        .to("done")
        .run(&jobs.pool, |_, transaction| async move {
            pay(&transaction).await
        });
    let late = late.await.unwrap();
    assert!(
        matches!(&late, Acted::Refused { status: Some(status), .. } if status == "done"),
        "{late:?}"
    );
    assert_eq!(jobs.points().await, 90);
}

/// The environment variable that tells the child process its machine and row.
const KILLED: &str = "PG_ONCE_TEST_KILLED_ACTION";

/// Runs in a child process only: writes, then waits with the transaction open until it is killed.
#[tokio::test]
async fn the_process_that_is_killed() {
    let Ok(which) = std::env::var(KILLED) else {
        return;
    };
    let (machine, id) = which.split_once(' ').unwrap();
    let mut as_owner = config();
    as_owner.user(machine);
    let row = Machine::new(machine).row(id);
    let pool = pool_to(as_owner);
    let acted = runner(&row).run(&pool, |_, transaction| async move {
        pay(&transaction).await?;
        println!("written");
        std::future::pending().await
    });
    panic!("it was not killed: {:?}", acted.await);
}

#[tokio::test]
async fn a_process_that_is_killed_in_the_work_leaves_nothing_and_another_goes_on_after_the_lease() {
    let jobs = &Jobs::guarded().await;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "act::the_process_that_is_killed", "--nocapture"])
        .env(KILLED, format!("{} {}", jobs.machine.as_str(), jobs.id))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(
        lines
            .map_while(Result::ok)
            .any(|line| line.ends_with("written"))
    );
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();

    assert_eq!(
        (jobs.status().await.as_str(), jobs.points().await),
        ("running", 100)
    );
    let early = runner(&jobs.job).run(&jobs.pool, |_, _| async { unreachable!() });
    assert!(matches!(early.await.unwrap(), Acted::InProgress { .. }));
    jobs.swept_later().await;
    let again = runner(&jobs.job).run(&jobs.pool, |_, transaction| async move {
        pay(&transaction).await
    });
    assert!(matches!(again.await.unwrap(), Acted::Finished { status, .. } if status == "done"));
    assert_eq!(jobs.points().await, 90);
}

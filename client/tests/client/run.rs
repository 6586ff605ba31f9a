//! The run helper: how the work ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pg_once::{
    Claim, ClaimOptions, Done, Failure, Json, KeyStatus, Kind, Outcome, Response, Step, Verdict,
};

use tokio_util::sync::CancellationToken;

use crate::proxy::Proxy;
use crate::support::{
    OnDrop, Pool, QUICK, claimed, config, directly, fresh_key, pool, pool_to, take_over,
};

#[tokio::test]
async fn the_work_runs_once_and_its_answer_is_replayed() {
    let (pool, key) = (pool(), fresh_key());
    let runs = AtomicU32::new(0);
    let request = Json::from_text(r#"{"amount": 100}"#);
    let run = || {
        let runner = key.clone().run(&pool).request(request.clone());
        let runs = &runs;
        async move {
            runner
                .run(|lease| async move {
                    assert_eq!((lease.attempt(), lease.recovery_point()), (1, "started"));
                    runs.fetch_add(1, Ordering::SeqCst);
                    Ok(Response::new(201).with_body("made")?.into())
                })
                .await
                .unwrap()
        }
    };
    assert!(matches!(run().await, Outcome::Ran(answer) if answer.code == 201));
    assert!(
        matches!(run().await, Outcome::Replayed(answer) if answer.parse::<String>().unwrap() == "made")
    );
    assert_eq!(runs.load(Ordering::SeqCst), 1);

    let other = key.run(&pool).request(Json::from_text("7"));
    assert!(matches!(
        other.run(|_| async { panic!("not to run") }).await.unwrap(),
        Outcome::Mismatched
    ));
}

#[tokio::test]
async fn an_answer_stored_in_the_work_s_own_transaction_commits_with_its_rows() {
    let (pool, key) = (pool(), fresh_key());
    let answer = Response::new(201);
    let work = |lease: pg_once::Lease| {
        let (pool, answer) = (pool.clone(), answer.clone());
        async move {
            let mut client = pool.get().await?;
            let transaction = client.transaction().await?;
            lease.complete(&transaction, &answer).await?;
            transaction.commit().await?;
            Ok(Done::Stored(answer))
        }
    };
    assert!(matches!(
        key.clone().run(&pool).run(work).await.unwrap(),
        Outcome::Ran(_)
    ));
    assert!(matches!(
        key.run(&pool).run(work).await.unwrap(),
        Outcome::Replayed(_)
    ));
}

#[tokio::test]
async fn a_retryable_failure_releases_the_key_and_the_next_run_resumes_it() {
    let (pool, key) = (pool(), fresh_key());
    let first = key.clone().run(&pool).run(|lease| {
        let pool = pool.clone();
        async move {
            lease
                .advance(&pool, "halfway", Some(&Json::from_text("[1]")), None)
                .await?;
            Err(Failure::retry("try me later"))
        }
    });
    assert!(
        matches!(first.await.unwrap(), Outcome::Released { error, .. } if error == "try me later")
    );
    let record = key.get(&pool).await.unwrap().unwrap();
    assert_eq!(
        (record.status, record.last_error.as_deref()),
        (KeyStatus::Released, Some("try me later"))
    );

    let second = key.run(&pool).run(|lease| async move {
        assert_eq!((lease.attempt(), lease.recovery_point()), (2, "halfway"));
        assert_eq!(lease.state().map(Json::as_str), Some("[1]"));
        Ok(Response::new(200).into())
    });
    assert!(matches!(second.await.unwrap(), Outcome::Ran(_)));
}

#[tokio::test]
async fn a_key_that_is_not_due_is_in_progress() {
    let (pool, key) = (pool(), fresh_key());
    let minute = Duration::from_secs(60);
    let first = key
        .clone()
        .run(&pool)
        .run(|_| async move { Err(Failure::retry_after("later", minute)) });
    assert!(
        matches!(first.await.unwrap(), Outcome::Released { retry_after: Some(after), .. } if after == minute)
    );
    let second = key.run(&pool).run(|_| async { panic!("not to run") });
    match second.await.unwrap() {
        Outcome::InProgress { retry_after } => {
            assert!(retry_after <= minute && retry_after > minute / 2)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_unknown_outcome_parks_the_key_until_the_verdict() {
    let (pool, key) = (pool(), fresh_key());
    let first = key
        .clone()
        .run(&pool)
        .run(|_| async { Err(Failure::unknown("the bank is silent")) });
    assert!(matches!(
        first.await.unwrap(),
        Outcome::Parked { attempt: 1 }
    ));
    let never = key
        .clone()
        .run(&pool)
        .run(|_| async { panic!("not to run") });
    assert!(matches!(
        never.await.unwrap(),
        Outcome::Parked { attempt: 1 }
    ));

    key.resolve(&pool, 1, &Verdict::Retry).await.unwrap();
    let last = key.run(&pool).run(|lease| async move {
        assert_eq!(lease.attempt(), 2);
        Ok(Response::new(200).into())
    });
    assert!(matches!(last.await.unwrap(), Outcome::Ran(_)));
}

#[tokio::test]
async fn a_reason_that_no_text_column_takes_still_parks_the_key() {
    let pool = pool();
    for reason in [String::new(), "\0".into(), "\u{e4}".repeat(20_000)] {
        let run = fresh_key()
            .run(&pool)
            .run(|_| async { Err(Failure::unknown(reason.clone())) });
        assert!(matches!(run.await.unwrap(), Outcome::Parked { attempt: 1 }));
    }
}

#[tokio::test]
async fn a_wait_that_no_interval_takes_still_gives_the_key_back() {
    let pool = pool();
    for wait in [Duration::ZERO, Duration::MAX] {
        let key = fresh_key();
        let work = |_| async move { Err(Failure::retry_after("says Retry-After", wait)) };
        let outcome = key.clone().run(&pool).run(work).await.unwrap();
        assert!(matches!(outcome, Outcome::Released { .. }), "{outcome:?}");
        let status = key.get(&pool).await.unwrap().unwrap().status;
        assert_eq!(status, KeyStatus::Released, "{wait:?}");
    }
}

#[tokio::test]
async fn a_retry_after_of_years_keeps_the_key_back_for_one_day() {
    let (pool, key, day) = (pool(), fresh_key(), Duration::from_secs(24 * 60 * 60));
    let work = |_| async {
        let an_epoch_time = Duration::from_secs(1_767_225_600);
        Err(Failure::retry_after(
            "Retry-After: 1767225600",
            an_epoch_time,
        ))
    };
    let outcome = key.clone().run(&pool).run(work).await.unwrap();
    assert!(
        matches!(outcome, Outcome::Released { retry_after, .. } if retry_after == Some(day)),
        "{outcome:?}"
    );
    let again = key.claim(&pool, &ClaimOptions::new()).await.unwrap();
    assert!(
        matches!(again, Claim::InProgress { retry_after } if retry_after <= day),
        "{again:?}"
    );
}

#[tokio::test]
async fn a_work_that_panics_gives_the_key_back_and_the_panic_goes_on() {
    let (pool, key) = (pool(), fresh_key());
    for when in ["before its first await", "after it"] {
        let (theirs, pool, early) = (key.clone(), pool.clone(), when.starts_with("before"));
        let run = tokio::spawn(async move {
            let work = |lease: pg_once::Lease| {
                assert!(!early, "panics {when}");
                let pool = pool.clone();
                async move {
                    lease.advance(&pool, "halfway", None, None).await?;
                    panic!("panics {when}")
                }
            };
            theirs.run(&pool).run(work).await.map_err(|e| e.kind())
        });
        assert!(run.await.unwrap_err().is_panic(), "{when}");
        let record = key.get(&pool_to(config())).await.unwrap().unwrap();
        assert_eq!(record.status, KeyStatus::Released, "{when}");
        let error = record.last_error.unwrap();
        assert_eq!(error, format!("the work panicked: panics {when}"));
    }
    // Each panic released the key, so no lease has to expire.
    let last = key.run(&pool).run(|lease| async move {
        assert_eq!((lease.attempt(), lease.recovery_point()), (3, "halfway"));
        Ok(Response::new(200).into())
    });
    assert!(matches!(last.await.unwrap(), Outcome::Ran(_)));
}

#[tokio::test]
async fn a_failure_for_good_is_stored_and_replayed() {
    let (pool, key) = (pool(), fresh_key());
    let first = key
        .clone()
        .run(&pool)
        .run(|_| async { Err(Failure::Abort(Response::new(402))) });
    assert!(matches!(first.await.unwrap(), Outcome::Aborted(answer) if answer.code == 402));
    let again = key.run(&pool).run(|_| async { panic!("not to run") });
    assert!(matches!(again.await.unwrap(), Outcome::Replayed(answer) if answer.code == 402));
}

#[tokio::test]
async fn a_lease_that_somebody_took_over_stops_the_work() {
    let (pool, key) = (pool(), fresh_key());
    let stopped = Arc::new(AtomicBool::new(false));
    let run = key
        .clone()
        .run(&pool)
        .lease(Duration::from_millis(600))
        .run(|_| {
            let (key, dropped) = (key.clone(), OnDrop(Arc::clone(&stopped)));
            async move {
                let _dropped = dropped;
                take_over(&key, &ClaimOptions::new()).await;
                std::future::pending().await
            }
        });
    assert!(matches!(run.await.unwrap(), Outcome::LeaseLost));
    assert!(stopped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_work_that_finishes_after_its_lease_was_taken_over_stores_nothing() {
    let (pool, key) = (pool(), fresh_key());
    let run = key.clone().run(&pool).run(|_| async {
        take_over(&key, &ClaimOptions::new()).await;
        Ok(Response::new(201).into())
    });
    assert!(matches!(run.await.unwrap(), Outcome::LeaseLost));
    let record = key.get(&pool).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempt), (KeyStatus::Running, 2));
}

#[tokio::test]
async fn the_loss_of_another_lease_in_the_work_releases_the_key() {
    let (pool, key, other) = (&pool(), fresh_key(), fresh_key());
    let lost = &claimed(&other, pool).await;
    take_over(&other, &ClaimOptions::new()).await;
    let run = key.clone().run(pool).run(|_| async move {
        lost.complete(pool, &Response::new(201)).await?;
        unreachable!()
    });
    assert_eq!(run.await.unwrap_err().kind(), Kind::LeaseLost);
    let again = key.claim(pool, &ClaimOptions::new()).await.unwrap();
    assert!(matches!(again, Claim::Resumed(_)), "{again:?}");
}

#[tokio::test]
async fn the_lease_is_kept_alive_for_as_long_as_the_work_runs() {
    let (pool, key) = (pool(), fresh_key());
    let lease = Duration::from_millis(1500);
    let run = key.clone().run(&pool).lease(lease).run(|_| {
        let (pool, key) = (pool.clone(), key.clone());
        async move {
            let began = Instant::now();
            while began.elapsed() < lease * 4 {
                let other = key.claim(&pool, &ClaimOptions::new()).await?;
                assert!(matches!(other, Claim::InProgress { .. }), "{other:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(Response::new(200).into())
        }
    });
    assert!(matches!(run.await.unwrap(), Outcome::Ran(_)));
    assert_eq!(key.get(&pool).await.unwrap().unwrap().attempt, 1);
}

#[tokio::test]
async fn a_short_lease_stays_short_when_a_phase_ends() {
    let (pool, key) = (pool(), fresh_key());
    let short = Duration::from_secs(2);
    let options = ClaimOptions::new().lease(short);
    let Claim::Claimed(lease) = key.claim(&pool, &options).await.unwrap() else {
        panic!("a fresh key is claimed")
    };
    assert!(lease.advance(&pool, "on", None, None).await.unwrap() <= short);
    assert!(lease.extend(&pool, None).await.unwrap() <= short);
}

#[tokio::test]
async fn a_server_that_falls_silent_stops_the_work_when_the_lease_ends() {
    let proxy = Proxy::start().await;
    let (pool, key) = (pool_to(proxy.config()), fresh_key());
    let lease = Duration::from_millis(900);
    let began = Instant::now();
    let run = key.run(&pool).lease(lease).backoff(QUICK).run(|_| {
        proxy.fall_silent();
        std::future::pending()
    });
    assert!(matches!(run.await.unwrap(), Outcome::LeaseLost));
    assert!(began.elapsed() >= lease / 2);
}

#[tokio::test]
async fn a_terminated_backend_makes_the_work_run_again_in_a_new_attempt() {
    let (pool, key) = (pool(), fresh_key());
    let run = key.clone().run(&pool).backoff(QUICK).run(|lease| {
        let pool = pool.clone();
        async move {
            let step = lease.step(&pool, "charge").await?;
            let mut client = pool.get().await?;
            let transaction = client.transaction().await?;
            if lease.attempt() == 1 {
                assert!(matches!(step, Step::First { .. }));
                transaction
                    .query("SELECT pg_terminate_backend(pg_backend_pid())", &[])
                    .await?;
            }
            // The step says that the earlier attempt may have made the call.
            assert!(matches!(step, Step::Again { attempted: 1, .. }));
            Ok(Response::new(200).into())
        }
    });
    assert!(matches!(run.await.unwrap(), Outcome::Ran(_)));
    assert_eq!(key.get(&pool).await.unwrap().unwrap().attempt, 2);
}

#[tokio::test]
async fn a_final_error_of_the_database_releases_the_key_and_is_handed_on() {
    let (pool, key) = (pool(), fresh_key());
    let runs = AtomicU32::new(0);
    let run = key.clone().run(&pool).run(|_| {
        runs.fetch_add(1, Ordering::SeqCst);
        let pool = pool.clone();
        async move {
            pool.get().await?.batch_execute("SELECT 1/0").await?;
            Ok(Response::new(200).into())
        }
    });
    assert_eq!(run.await.unwrap_err().code(), Some("22012"));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(
        key.get(&pool).await.unwrap().unwrap().status,
        KeyStatus::Released
    );
}

#[tokio::test]
async fn a_dropped_run_leaves_a_key_that_others_resume() {
    let (pool, key) = (pool(), fresh_key());
    let (begun, begins) = tokio::sync::oneshot::channel();
    let begun = std::sync::Mutex::new(Some(begun));
    let run = key.clone().run(&pool).run(|lease| {
        let (pool, begun) = (pool.clone(), begun.lock().unwrap().take());
        async move {
            lease.advance(&pool, "halfway", None, None).await?;
            let _ = begun.map(|begun| begun.send(()));
            std::future::pending().await
        }
    });
    tokio::select! { _ = run => panic!("the work has no end"), _ = begins => {} }
    assert!(matches!(
        key.claim(&pool, &ClaimOptions::new()).await.unwrap(),
        Claim::InProgress { .. }
    ));
    let next = take_over(&key, &ClaimOptions::new()).await;
    assert_eq!((next.attempt(), next.recovery_point()), (2, "halfway"));
}

#[tokio::test]
async fn ten_runs_of_one_key_at_once_do_the_work_once_at_every_isolation_level() {
    ten_runs_at_once(pool()).await; // READ COMMITTED
    for level in ["repeatable\\ read", "serializable"] {
        let mut config = directly("the level is a setting of the session");
        config.options(format!("-c default_transaction_isolation={level}"));
        ten_runs_at_once(pool_to(config)).await;
    }
}

async fn ten_runs_at_once(pool: Pool) {
    let (key, runs) = (fresh_key(), Arc::new(AtomicU32::new(0)));
    let all: Vec<_> = (0..10)
        .map(|_| {
            let (pool, key, runs) = (pool.clone(), key.clone(), Arc::clone(&runs));
            tokio::spawn(async move {
                key.run(&pool)
                    .run(|_| {
                        runs.fetch_add(1, Ordering::SeqCst);
                        async { Ok(Response::new(200).into()) }
                    })
                    .await
                    .unwrap()
            })
        })
        .collect();
    let mut ran = 0;
    for one in all {
        match one.await.unwrap() {
            Outcome::Ran(_) => ran += 1,
            Outcome::Replayed(_) | Outcome::InProgress { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((ran, runs.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_key_that_somebody_holds_is_in_progress() {
    let (pool, key) = (pool(), fresh_key());
    claimed(&key, &pool).await;
    let run = key.run(&pool).run(|_| async { panic!("not to run") });
    assert!(matches!(run.await.unwrap(), Outcome::InProgress { .. }));
}

#[tokio::test]
async fn work_that_is_told_to_stop_gives_the_key_back_due_at_once() {
    let (key, pool, stop) = (fresh_key(), pool(), CancellationToken::new());
    let run = key
        .clone()
        .run(&pool)
        .run_until(stop.clone().cancelled_owned(), |_| async {
            stop.cancel();
            std::future::pending().await
        });
    let outcome = run.await.unwrap();
    assert!(
        matches!(
            outcome,
            Outcome::Released {
                retry_after: None,
                ..
            }
        ),
        "{outcome:?}"
    );
    let again = key
        .run(&pool)
        .run(|_| async { Ok(Response::new(200).into()) });
    assert!(matches!(again.await.unwrap(), Outcome::Ran(_)));
}

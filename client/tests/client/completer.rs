//! The completer finishes every abandoned request, and no request stops the others.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use deadpool_postgres::Pool;
use pg_once::{
    Abandoned, Claim, ClaimOptions, Complete, Completer, Completion, Done, Failure, Json, Key,
    KeyStatus, Kind, Lease, OnExpiry, Response, Scope, ScopeOptions, Verdict, Waker,
};
use tokio::sync::{Notify, Semaphore};

use crate::proxy::Proxy;
use crate::support::{
    QUICK, Stalling, connect_to, directly, named_pool, pool, pool_to, take_over, until, until_idle,
};

/// Makes a fresh scope that keeps its requests.
async fn fresh_scope() -> Scope {
    let scope = Scope::new(&format!("completer.{}", uuid::Uuid::new_v4()));
    let options = ScopeOptions::new().keep_request(true);
    scope.set(&pool(), &options).await.unwrap();
    scope
}

fn request_of(key: &str) -> Json {
    Json::of(&serde_json::json!({ "of": key })).unwrap()
}

/// Claims the key for a request whose client does not retry.
async fn claim(scope: &Scope, key: &str, lease: Duration) -> Lease {
    let options = ClaimOptions::new().request(request_of(key)).lease(lease);
    match scope.key(key).claim(&pool(), &options).await.unwrap() {
        Claim::Claimed(lease) => lease,
        other => panic!("a fresh key is claimed, not {other:?}"),
    }
}

/// Claims the key with a lease that expires at once, and sweeps until completers can see the key.
async fn die(scope: &Scope, key: &str) -> Lease {
    let lease = claim(scope, key, Duration::from_millis(1)).await;
    let client = connect_to(directly("its statements are prepared")).await;
    let is_shown =
        "SELECT look_lane = '1' OR attempt > 1 FROM once.key WHERE scope = $1 AND key = $2";
    let begin = Instant::now();
    loop {
        // While another test's sweep runs, this sweep does nothing.
        let sweep = "SELECT done FROM once.sweep(task => 'key_abandon')";
        client.query_one(sweep, &[]).await.unwrap();
        let shown = client.query_one(is_shown, &[&scope.as_str(), &key]).await;
        if shown.unwrap().get(0) {
            return lease;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{key}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn abandon(scope: &Scope, keys: &[&str]) {
    for key in keys {
        die(scope, key).await;
    }
}

fn completer(scope: &Scope) -> Completer<Pool> {
    completer_on(scope, &pool())
}

fn completer_on(scope: &Scope, pool: &Pool) -> Completer<Pool> {
    let completer = scope.completer(pool).backoff(QUICK);
    completer.poll_every(Duration::from_millis(50))
}

/// The keys that the handler got, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn add(&self, lease: &Lease) {
        self.0.lock().unwrap().push(lease.key().as_str().to_owned());
    }

    fn times(&self, key: &str) -> usize {
        let seen = self.0.lock().unwrap();
        seen.iter().filter(|known| *known == key).count()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

async fn status(key: &Key) -> KeyStatus {
    key.get(&pool()).await.unwrap().unwrap().status
}

async fn until_status(key: &Key, wanted: KeyStatus) {
    let begin = Instant::now();
    while status(key).await != wanted {
        assert!(begin.elapsed() < Duration::from_secs(30), "{key:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Answers with the stored request.
async fn echo(abandoned: Abandoned) -> Result<Done, Failure> {
    let request = abandoned.request.expect("the scope keeps requests");
    Ok(Response {
        body: Some(request),
        ..Response::new(201)
    }
    .into())
}

#[tokio::test]
async fn abandoned_requests_get_their_answer_and_their_clients_a_replay_should_they_come_back() {
    let scope = fresh_scope().await;
    abandon(&scope, &["dead"]).await;
    let given_back = claim(&scope, "given back", Duration::from_secs(60)).await;
    given_back
        .release(&pool(), Some("503"), None)
        .await
        .unwrap();
    // Not abandoned: a key under a live lease, a released key that is not due yet, a parked key.
    let held = claim(&scope, "held", Duration::from_secs(60)).await;
    let later = claim(&scope, "later", Duration::from_secs(60)).await;
    let an_hour = Some(Duration::from_secs(3600));
    later.release(&pool(), None, an_hour).await.unwrap();
    let parked = claim(&scope, "parked", Duration::from_secs(60)).await;
    parked.park(&pool(), "nobody knows").await.unwrap();

    let shutdown = async {
        for key in ["dead", "given back"] {
            until_status(&scope.key(key), KeyStatus::Finished).await;
        }
    };
    let completed = completer(&scope).run(shutdown, echo).await.unwrap();
    assert_eq!((completed.completed, completed.released), (2, 0));
    for key in ["dead", "given back"] {
        let again = ClaimOptions::new().request(request_of(key));
        match scope.key(key).claim(&pool(), &again).await.unwrap() {
            Claim::Replayed(answer) => {
                let body: serde_json::Value = answer.parse().unwrap();
                assert_eq!((answer.code, body["of"].as_str()), (201, Some(key)));
            }
            other => panic!("{other:?}"),
        }
    }
    for (lease, wanted) in [
        (&held, KeyStatus::Running),
        (&later, KeyStatus::Released),
        (&parked, KeyStatus::Parked),
    ] {
        let record = lease.key().get(&pool()).await.unwrap().unwrap();
        assert_eq!((record.status, record.attempt), (wanted, 1));
    }
}

#[tokio::test]
async fn a_request_goes_on_from_its_recovery_point_and_hears_of_a_call_that_may_have_been_made() {
    let scope = fresh_scope().await;
    let lease = claim(&scope, "k", Duration::from_secs(60)).await;
    let state = Json::from_text("{\"charge\": 7}");
    lease
        .advance(&pool(), "charged", Some(&state), None)
        .await
        .unwrap();
    lease.step(&pool(), "notify").await.unwrap();
    lease.release(&pool(), None, None).await.unwrap();

    let handler = |abandoned: Abandoned| async move {
        let lease = abandoned.lease;
        assert_eq!((lease.attempt(), lease.recovery_point()), (2, "charged"));
        assert_eq!(lease.state().map(Json::as_str), Some("{\"charge\": 7}"));
        let step = lease.step(&pool(), "notify").await?;
        assert!(matches!(step, pg_once::Step::Again { attempted: 1, .. }));
        // The handler stores the answer in a transaction of its own.
        let mut client = pool().get().await?;
        let transaction = client.transaction().await?;
        let answer = Response::new(200);
        lease.complete(&transaction, &answer).await?;
        transaction.commit().await?;
        Ok(Done::Stored(answer))
    };
    let key = scope.key("k");
    let shutdown = until_status(&key, KeyStatus::Finished);
    let completed = completer(&scope).run(shutdown, handler).await.unwrap();
    assert_eq!((completed.completed, completed.released), (1, 0));
}

#[tokio::test]
async fn a_request_that_always_fails_is_put_off_and_starves_no_other() {
    let scope = fresh_scope().await;
    abandon(&scope, &["poison"]).await;
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |abandoned: Abandoned| {
            let seen = seen.clone();
            async move {
                seen.add(&abandoned.lease);
                match abandoned.lease.key().as_str() {
                    "poison" => Err(Failure::retry("never works")),
                    _ => echo(abandoned).await,
                }
            }
        }
    };
    let shutdown = async {
        until(|| seen.times("poison") == 1).await;
        abandon(&scope, &["a", "b", "c"]).await;
        for key in ["a", "b", "c"] {
            until_status(&scope.key(key), KeyStatus::Finished).await;
        }
        // `poison` is taken again, but not before it is due.
        until(|| seen.times("poison") >= 2).await;
    };
    // There is one handler, so `poison` and the other keys run one after another.
    let begin = Instant::now();
    let completer = completer(&scope).concurrency(1);
    let completed = completer.run(shutdown, handler).await.unwrap();
    assert_eq!(completed.completed, 3);
    assert!(completed.released >= 2);
    assert!(begin.elapsed() >= Duration::from_millis(500));
    let record = scope.key("poison").get(&pool()).await.unwrap().unwrap();
    assert_eq!(record.status, KeyStatus::Released);
    assert_eq!(record.last_error.as_deref(), Some("never works"));
}

#[tokio::test]
async fn attempts_that_are_used_up_park_the_key_and_a_verdict_brings_it_back() {
    let scope = fresh_scope().await;
    let options = ScopeOptions::new().max_attempts(3);
    scope.set(&pool(), &options).await.unwrap();
    abandon(&scope, &["k"]).await;
    let key = scope.key("k");
    let soon = Duration::from_millis(1);
    let fails = Arc::new(AtomicBool::new(true));
    let handler = {
        let fails = Arc::clone(&fails);
        move |abandoned: Abandoned| {
            let fails = fails.load(Ordering::SeqCst);
            async move {
                match fails {
                    true => Err(Failure::retry_after("not yet", soon)),
                    false => echo(abandoned).await,
                }
            }
        }
    };
    let shutdown = async {
        until_status(&key, KeyStatus::Parked).await;
        fails.store(false, Ordering::SeqCst);
        key.resolve(&pool(), 3, &Verdict::Retry).await.unwrap();
        until_status(&key, KeyStatus::Finished).await;
    };
    let completed = completer(&scope).run(shutdown, handler).await.unwrap();
    assert_eq!((completed.completed, completed.released), (1, 2));
}

#[tokio::test]
async fn a_panic_is_a_failure_of_its_request_and_of_nothing_else() {
    let scope = fresh_scope().await;
    abandon(&scope, &["poison", "a"]).await;
    let handler = |abandoned: Abandoned| async move {
        assert!(abandoned.lease.key().as_str() != "poison", "cannot be done");
        echo(abandoned).await
    };
    let (poison, other) = (scope.key("poison"), scope.key("a"));
    let shutdown = async {
        until_status(&poison, KeyStatus::Released).await;
        until_status(&other, KeyStatus::Finished).await;
    };
    let completed = completer(&scope).run(shutdown, handler).await.unwrap();
    assert_eq!((completed.completed, completed.released >= 1), (1, true));
    let record = poison.get(&pool()).await.unwrap().unwrap();
    assert!(record.last_error.unwrap().contains("panic"));
}

/// Chooses the outcome of each request by its key, and records the outcomes that the completer reports.
#[derive(Clone, Default)]
struct AsNamed(Arc<Mutex<Vec<String>>>);

impl Complete for AsNamed {
    async fn complete(&self, abandoned: Abandoned) -> Result<Done, Failure> {
        match abandoned.lease.key().as_str() {
            "unknown" => Err(Failure::unknown("the bank is silent")),
            "refused" => Err(Failure::Abort(Response::new(402))),
            "broken" => {
                let nothing = pool().get().await?.query_typed("SELECT 1/0", &[]).await;
                nothing
                    .map(|_| Response::new(200).into())
                    .map_err(Failure::from)
            }
            _ => echo(abandoned).await,
        }
    }

    fn ended(&self, key: &Key, completion: &Completion) {
        let what = match completion {
            Completion::Completed => "completed",
            Completion::Aborted => "aborted",
            Completion::Released { retry_after, .. } => {
                assert!(retry_after.is_some(), "it is put off");
                "released"
            }
            Completion::Parked { attempt: 2 } => "parked",
            other => panic!("{other:?}"),
        };
        let line = format!("{}: {what}", key.as_str());
        self.0.lock().unwrap().push(line);
    }
}

#[tokio::test]
async fn each_end_is_stored_counted_and_told_once() {
    let scope = fresh_scope().await;
    abandon(&scope, &["unknown", "refused", "broken", "plain"]).await;
    let handler = AsNamed::default();
    let heard = Arc::clone(&handler.0);
    let shutdown = until(|| heard.lock().unwrap().len() >= 4);
    let completed = completer(&scope)
        .run(shutdown, handler.clone())
        .await
        .unwrap();
    assert_eq!(
        (completed.completed, completed.aborted, completed.parked),
        (1, 1, 1)
    );
    assert!(completed.released >= 1);
    let heard = heard.lock().unwrap().clone();
    for line in [
        "unknown: parked",
        "refused: aborted",
        "broken: released",
        "plain: completed",
    ] {
        assert!(heard.iter().any(|known| known == line), "{heard:?}");
    }
    for (key, wanted) in [
        ("unknown", KeyStatus::Parked),
        ("refused", KeyStatus::Finished),
        ("broken", KeyStatus::Released),
    ] {
        assert_eq!(status(&scope.key(key)).await, wanted, "{key}");
    }
}

#[tokio::test]
async fn several_completers_bring_each_request_to_its_end_once() {
    let scope = fresh_scope().await;
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    for key in &keys {
        die(&scope, key).await;
    }
    let seen = Seen::default();
    let run = || {
        let (theirs, seen) = (seen.clone(), &seen);
        let handler = move |abandoned: Abandoned| {
            theirs.add(&abandoned.lease);
            echo(abandoned)
        };
        completer(&scope).run(until(|| seen.len() >= 40), handler)
    };
    let (one, two, three) = tokio::join!(run(), run(), run());
    let sum: u64 = [one, two, three].map(|c| c.unwrap().completed).iter().sum();
    assert_eq!((sum, seen.len()), (40, 40));
    for key in &keys {
        assert_eq!(seen.times(key), 1, "{key}");
    }
}

#[tokio::test]
async fn it_takes_no_more_than_it_has_free_handlers() {
    let scope = fresh_scope().await;
    let keys: Vec<String> = (0..9).map(|n| format!("k{n}")).collect();
    for key in &keys {
        die(&scope, key).await;
    }
    let (gate, at_work) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (gate, at_work) = (Arc::clone(&gate), Arc::clone(&at_work));
        move |abandoned: Abandoned| {
            let (gate, at_work) = (Arc::clone(&gate), Arc::clone(&at_work));
            async move {
                assert!(at_work.fetch_add(1, Ordering::SeqCst) < 3);
                gate.acquire().await.unwrap().forget();
                at_work.fetch_sub(1, Ordering::SeqCst);
                echo(abandoned).await
            }
        }
    };
    let shutdown = async {
        until(|| at_work.load(Ordering::SeqCst) == 3).await;
        // The completer has not taken the other six keys.
        let left = scope
            .take_abandoned(&pool(), 100, None, None)
            .await
            .unwrap();
        assert_eq!(left.len(), 6);
        gate.add_permits(9);
    };
    let completer = completer(&scope).concurrency(3);
    let completed = completer.run(shutdown, handler).await.unwrap();
    assert_eq!(completed.completed, 3);
}

#[tokio::test]
async fn a_handler_that_takes_longer_than_the_lease_keeps_it() {
    let scope = fresh_scope().await;
    abandon(&scope, &["k"]).await;
    let key = scope.key("k");
    let handler = |abandoned: Abandoned| async move {
        tokio::time::sleep(Duration::from_millis(4500)).await;
        echo(abandoned).await
    };
    let completer = completer(&scope).lease(Duration::from_millis(1500));
    let shutdown = until_status(&key, KeyStatus::Finished);
    let completed = completer.run(shutdown, handler).await.unwrap();
    assert_eq!((completed.completed, completed.lost), (1, 0));
    assert_eq!(key.get(&pool()).await.unwrap().unwrap().attempt, 2);
}

#[tokio::test]
async fn when_somebody_else_has_the_key_its_handler_is_stopped_and_nothing_is_stored() {
    let scope = fresh_scope().await;
    abandon(&scope, &["k"]).await;
    let (key, handler) = (scope.key("k"), Stalling::default());
    let shutdown = async {
        handler.begun.notified().await;
        let options = ClaimOptions::new().request(request_of("k"));
        let theirs = take_over(&key, &options).await;
        until(|| handler.dropped.load(Ordering::SeqCst)).await;
        until(|| handler.lost.load(Ordering::SeqCst) == 1).await;
        theirs.complete(&pool(), &Response::new(204)).await.unwrap();
    };
    let completer = completer(&scope).lease(Duration::from_millis(300));
    let completed = completer.run(shutdown, handler.clone()).await.unwrap();
    assert_eq!((completed.lost, completed.completed), (1, 0));
}

#[tokio::test]
async fn what_is_at_work_when_it_is_told_to_stop_is_finished_and_nothing_more_is_taken() {
    let scope = fresh_scope().await;
    abandon(&scope, &["k"]).await;
    let (begun, told) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (begun, told) = (Arc::clone(&begun), Arc::clone(&told));
        move |abandoned: Abandoned| {
            let (begun, told) = (Arc::clone(&begun), Arc::clone(&told));
            async move {
                begun.notify_one();
                told.notified().await;
                echo(abandoned).await
            }
        }
    };
    let shutdown = async {
        begun.notified().await;
        abandon(&scope, &["another"]).await;
        told.notify_one();
    };
    // The only handler is busy, so the completer does not take the other key.
    let completer = completer(&scope).concurrency(1);
    let completed = completer.run(shutdown, handler).await.unwrap();
    assert_eq!((completed.completed, completed.released), (1, 0));
    assert_eq!(status(&scope.key("another")).await, KeyStatus::Running);
}

#[tokio::test]
async fn what_is_not_done_when_the_grace_is_over_is_stopped_and_given_back_due_at_once() {
    let scope = fresh_scope().await;
    abandon(&scope, &["k"]).await;
    let handler = Stalling::default();
    let begun = Arc::clone(&handler.begun);
    let completer = completer(&scope).grace(Duration::from_millis(50));
    let completed = completer
        .run(begun.notified(), handler.clone())
        .await
        .unwrap();
    assert_eq!((completed.released, completed.lost), (1, 0));
    until(|| handler.dropped.load(Ordering::SeqCst)).await;
    let left = scope.take_abandoned(&pool(), 10, None, None).await.unwrap();
    assert_eq!(left.len(), 1);
    let request: serde_json::Value = left[0].request.as_ref().unwrap().parse().unwrap();
    assert_eq!(request["of"], "k");
}

#[tokio::test]
async fn answers_that_the_network_loses_change_nothing() {
    for text in ["key_take_abandoned", "key_complete", "key_extend"] {
        let scope = fresh_scope().await;
        abandon(&scope, &["k"]).await;
        let (key, proxy) = (scope.key("k"), Proxy::start().await);
        proxy.lose_answer_to(text);
        let handler = |abandoned: Abandoned| async move {
            tokio::time::sleep(Duration::from_secs(2)).await; // two heartbeats
            echo(abandoned).await
        };
        let completer = completer_on(&scope, &pool_to(proxy.config()));
        let completer = completer.lease(Duration::from_secs(3));
        let shutdown = until_status(&key, KeyStatus::Finished);
        let completed = completer.run(shutdown, handler).await.unwrap();
        assert_eq!((completed.completed, proxy.lost()), (1, 1), "{text}");
        // The abandoned claim was attempt 1. A repeated take has the same holder, so it gets attempt 2 again.
        assert_eq!(key.get(&pool()).await.unwrap().unwrap().attempt, 2);
    }
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_has_answered_the_request() {
    let scope = fresh_scope().await;
    abandon(&scope, &["k"]).await;
    let (key, proxy) = (scope.key("k"), Proxy::start().await);
    proxy.lose_answer_to("COMMIT");
    let through = pool_to(proxy.config());
    let handler = {
        let through = through.clone();
        move |abandoned: Abandoned| {
            let through = through.clone();
            async move {
                let mut client = through.get().await?;
                let transaction = client.transaction().await?;
                let answer = Response::new(200);
                abandoned.lease.complete(&transaction, &answer).await?;
                transaction.commit().await?;
                Ok(Done::Stored(answer))
            }
        }
    };
    let shutdown = async {
        until_status(&key, KeyStatus::Finished).await;
        until(|| proxy.lost() == 1).await;
    };
    let completer = completer_on(&scope, &through);
    let completed = completer.run(shutdown, handler).await.unwrap();
    assert_eq!((completed.completed, completed.released), (1, 0));
}

#[tokio::test]
async fn terminated_backends_do_not_stop_it() {
    let scope = fresh_scope().await;
    let name = format!("completer {}", uuid::Uuid::new_v4());
    let mut config = directly("its backends are found by their name");
    config.application_name(&name);
    let pool_to_cut = pool_to(config);
    let terminate =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1";
    let other = connect_to(directly("its statements are prepared")).await;
    let keys = ["a", "b", "c", "d"];
    let shutdown = async {
        for key in keys {
            abandon(&scope, &[key]).await;
            until_status(&scope.key(key), KeyStatus::Finished).await;
            other.query(terminate, &[&name]).await.unwrap();
        }
    };
    let completer = completer_on(&scope, &pool_to_cut);
    let completed = completer.run(shutdown, echo).await.unwrap();
    assert!(completed.completed >= 3, "{completed:?}");
    assert_eq!(completed.parked + completed.aborted, 0);
}

#[tokio::test]
async fn an_idle_completer_that_is_woken_need_not_wait_for_the_next_poll() {
    let scope = fresh_scope().await;
    let (waker, key) = (Waker::new(), scope.key("k"));
    let (name, named) = named_pool();
    let shutdown = async {
        let next_look = until_idle(&name).await;
        let begin = Instant::now();
        let lease = claim(&scope, "k", Duration::from_secs(60)).await;
        lease.release(&pool(), None, None).await.unwrap();
        waker.wake();
        until_status(&key, KeyStatus::Finished).await;
        let took = begin.elapsed();
        assert!(took < next_look / 2, "{took:?} of {next_look:?}");
    };
    let completer = scope.completer(&named).waker(&waker);
    let completer = completer.poll_every(Duration::from_secs(3600));
    completer.run(shutdown, echo).await.unwrap();
}

#[tokio::test]
async fn a_scope_that_parks_what_ran_out_leaves_nothing_to_complete() {
    let scope = fresh_scope().await;
    let options = ScopeOptions::new().on_expiry(OnExpiry::Park);
    scope.set(&pool(), &options).await.unwrap();
    let lease = die(&scope, "k").await;
    let shutdown = async {
        until_status(lease.key(), KeyStatus::Parked).await;
        tokio::time::sleep(Duration::from_millis(200)).await; // some polls
    };
    let handler = |_: Abandoned| async { panic!("not to run") };
    let completed = completer(&scope).run(shutdown, handler).await.unwrap();
    assert_eq!(completed, pg_once::Completed::default());
}

#[tokio::test]
async fn a_completer_that_cannot_ask_says_so() {
    let zero = completer(&fresh_scope().await).lease(Duration::ZERO);
    let error = zero.run(std::future::pending(), echo).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
    assert!(error.to_string().contains("lease"), "{error}");
}

/// A handler whose callback `ended` panics.
struct Deaf(Arc<AtomicUsize>);

impl Complete for Deaf {
    async fn complete(&self, abandoned: Abandoned) -> Result<Done, Failure> {
        echo(abandoned).await
    }

    fn ended(&self, _: &Key, _: &Completion) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("it does not want to know");
    }
}

#[tokio::test]
async fn a_callback_that_panics_changes_nothing_of_what_it_was_told() {
    let scope = fresh_scope().await;
    abandon(&scope, &["a", "b", "c"]).await;
    let told = Arc::new(AtomicUsize::new(0));
    let shutdown = until(|| told.load(Ordering::SeqCst) == 3);
    let completer = completer(&scope).concurrency(1);
    let completed = completer.run(shutdown, Deaf(Arc::clone(&told))).await;
    assert_eq!(completed.unwrap().completed, 3);
}

#[tokio::test]
async fn a_wait_that_is_nothing_or_beyond_all_measure_gives_the_key_back_all_the_same() {
    let scope = fresh_scope().await;
    abandon(&scope, &["soon", "never"]).await;
    let handler = |abandoned: Abandoned| async move {
        let key = abandoned.lease.key().as_str();
        match (key, abandoned.lease.attempt()) {
            ("soon", 2) => Err(Failure::retry_after("Retry-After: 0", Duration::ZERO)),
            ("never", _) => Err(Failure::retry_after("Retry-After: ~0", Duration::MAX)),
            _ => echo(abandoned).await,
        }
    };
    let (soon, never) = (scope.key("soon"), scope.key("never"));
    let shutdown = async {
        until_status(&soon, KeyStatus::Finished).await;
        until_status(&never, KeyStatus::Released).await;
    };
    let completed = completer(&scope).run(shutdown, handler).await.unwrap();
    assert_eq!(
        (completed.completed, completed.released, completed.lost),
        (1, 2, 0)
    );
}

/// A handler that always asks for a retry at once, and records the waits that the keys get.
#[derive(Clone, Default)]
struct Hasty(Arc<Mutex<Vec<Option<Duration>>>>);

impl Complete for Hasty {
    async fn complete(&self, _: Abandoned) -> Result<Done, Failure> {
        Err(Failure::retry_after("Retry-After: 1", Duration::ZERO))
    }

    fn ended(&self, _: &Key, completion: &Completion) {
        if let Completion::Released { retry_after, .. } = completion {
            self.0.lock().unwrap().push(*retry_after);
        }
    }
}

#[tokio::test]
async fn a_retry_after_that_is_shorter_than_the_backoff_does_not_replace_it() {
    let scope = fresh_scope().await;
    abandon(&scope, &["k"]).await;
    let hasty = Hasty::default();
    let shutdown = until(|| hasty.0.lock().unwrap().len() == 2);
    completer(&scope)
        .run(shutdown, hasty.clone())
        .await
        .unwrap();
    let waits = hasty.0.lock().unwrap();
    let doubled = [500, 1000].map(|least| Some(Duration::from_millis(least)));
    assert!(
        waits[0] >= doubled[0] && waits[1] >= doubled[1],
        "{waits:?}"
    );
}

//! Two databases of one server, each a shard: the rows of a routing value are in one of the two only.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pg_once::http::Answer;
use pg_once::{
    Abandoned, Backoff, Claim, ClaimOptions, EmitOptions, Error, Event, Json, Kind, Machine,
    Response, Scope, Shards, Topic, TopicOptions,
};
use tokio::sync::Semaphore;

use crate::proxy::Proxy;
use crate::support::{Pool, QUICK, claimed, code, config, connect_to, directly, pool_to};

/// Makes two databases with the extension, and a pool for each.
async fn two_databases() -> Vec<(String, Pool)> {
    let admin = connect_to(directly("it makes databases")).await;
    let mut made = vec![];
    for number in 0..2 {
        let name = format!("shard_{}_{number}", uuid::Uuid::new_v4().simple());
        let create = format!("CREATE DATABASE {name}");
        admin.batch_execute(&create).await.unwrap();
        let pool = pool_to(config().dbname(&name).clone());
        let client = pool.get().await.unwrap();
        let extension = "CREATE EXTENSION pg_once";
        client.batch_execute(extension).await.unwrap();
        made.push((name, pool));
    }
    made
}

async fn drop_databases(made: Vec<(String, Pool)>) {
    let admin = connect_to(directly("it drops databases")).await;
    for (name, pool) in made {
        pool.close();
        let drop = format!("DROP DATABASE {name} WITH (FORCE)");
        admin.batch_execute(&drop).await.unwrap();
    }
}

#[tokio::test]
async fn a_key_runs_in_the_shard_of_its_tenant_and_is_refused_in_any_other() {
    let made = two_databases().await;
    let pools = made.iter().map(|(_, pool)| pool.clone());
    let shards = Shards::new(pools.clone()).unwrap();
    shards.set().await.unwrap();
    shards.set().await.unwrap();

    let mut seen = [0, 0];
    for tenant in (0..20).map(|n| format!("tenant-{n}")) {
        let key = Scope::new("orders.create").key(&format!("{tenant}/k-1"));
        let claim = key.claim(shards.of(&tenant), &ClaimOptions::new()).await;
        let Claim::Claimed(lease) = claim.unwrap() else {
            panic!("a fresh key is claimed")
        };
        let answer = Response::new(201);
        lease.complete(shards.of_key(&key), &answer).await.unwrap();

        for (number, pool) in shards.each() {
            let claim = key.claim(pool, &ClaimOptions::new()).await;
            if number == shards.number_of(&tenant) {
                assert_eq!(claim.unwrap(), Claim::Replayed(answer.clone()));
                seen[number] += 1;
                continue;
            }
            let error = claim.unwrap_err();
            let said = (error.code(), error.kind(), error.is_retryable());
            assert_eq!(said, (Some("ON007"), Kind::WrongShard, false));
            assert_eq!(Answer::of_error(&error).status, 503);
        }
    }
    assert!(seen.iter().all(|keys| *keys > 0), "{seen:?}");

    // `set` finds that the pools are in the wrong order, before a call reaches the wrong shard.
    let swapped = Shards::new(pools.rev()).unwrap();
    assert_eq!(code(swapped.set().await), "55006");
    drop_databases(made).await;
}

#[test]
fn there_is_one_shard_at_least() {
    let none = Shards::new(Vec::<Pool>::new());
    let error = none.unwrap_err();
    assert!(matches!(error, Error::Argument(_)), "{error}");
    assert_eq!(error.kind(), Kind::InvalidArgument);
}

fn of_deadpool(made: &[(String, Pool)]) -> Shards {
    Shards::new(made.iter().map(|(_, pool)| (**pool).clone())).unwrap()
}

/// Declares the topic in each shard, and emits `events` events there whose payload is the shard's number.
async fn emit_in_each(shards: &Shards, topic: &Topic, events: usize) {
    for (number, pool) in shards.each() {
        topic.set(pool, &TopicOptions::new()).await.unwrap();
        let (payload, options) = (Json::of(&number).unwrap(), EmitOptions::new());
        for _ in 0..events {
            topic.emit(pool, &payload, &options).await.unwrap();
        }
    }
}

#[tokio::test]
async fn one_worker_delivers_the_events_of_all_shards_within_one_limit() {
    let made = two_databases().await;
    let shards = of_deadpool(&made);
    let topic = Topic::new("orders");
    emit_in_each(&shards, &topic, 5).await;

    let (at_work, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let handler = {
        let all = Arc::clone(&all);
        move |event: Event| {
            let (at_work, all) = (Arc::clone(&at_work), Arc::clone(&all));
            async move {
                assert!(at_work.fetch_add(1, Ordering::SeqCst) < 2, "two at a time");
                tokio::time::sleep(Duration::from_millis(20)).await;
                at_work.fetch_sub(1, Ordering::SeqCst);
                let number: usize = event.payload.parse()?;
                assert_eq!(event.shard, Some(number));
                all.add_permits(1);
                Ok(())
            }
        }
    };
    let worker = topic.default_subscriber().worker_over(&shards);
    let enough = async { all.acquire_many(10).await.unwrap().forget() };
    let delivered = worker.concurrency(2).run(enough, handler).await.unwrap();
    assert_eq!((delivered.delivered, delivered.failed), (10, 0));
    drop_databases(made).await;
}

#[tokio::test]
async fn while_a_shard_is_away_the_others_go_on_and_it_is_served_when_it_is_back() {
    let made = two_databases().await;
    let near = of_deadpool(&made);
    let topic = Topic::new("orders");
    emit_in_each(&near, &topic, 5).await;
    let proxy = Proxy::in_front_of(config().dbname(&made[1].0).clone()).await;
    proxy.fall_silent();
    let far = (*pool_to(proxy.config())).clone();
    let shards = Shards::new([(*made[0].1).clone(), far]).unwrap();

    let seen = Arc::new([Semaphore::new(0), Semaphore::new(0)]);
    let handler = {
        let seen = Arc::clone(&seen);
        move |event: Event| {
            seen[event.shard.unwrap()].add_permits(1);
            async { Ok(()) }
        }
    };
    let shutdown = async {
        seen[0].acquire_many(5).await.unwrap().forget();
        proxy.fall_silent_on_open_connections();
        seen[1].acquire_many(5).await.unwrap().forget();
    };
    let backoff = Backoff {
        call_timeout: Duration::from_secs(2),
        ..QUICK
    };
    let worker = topic.default_subscriber().worker_over(&shards);
    let worker = worker.concurrency(1).batch(1).backoff(backoff);
    let delivered = worker.run(shutdown, handler).await.unwrap();
    assert_eq!((delivered.delivered, delivered.failed), (10, 0));
    drop_databases(made).await;
}

#[tokio::test]
async fn a_shard_that_refuses_ends_the_worker_and_what_the_others_gave_is_finished() {
    let made = two_databases().await;
    let shards = of_deadpool(&made);
    let topic = Topic::new("orders");
    let only = Shards::new([shards.each().next().unwrap().1.clone()]).unwrap();
    emit_in_each(&only, &topic, 1).await;
    let worker = topic.default_subscriber().worker_over(&shards);
    let handler = |_: Event| async { Ok(()) };
    let ended = worker.run(std::future::pending(), handler).await;
    assert_eq!(ended.unwrap_err().kind(), Kind::Undeclared);
    let (_, first) = only.each().next().unwrap();
    let taken = topic.default_subscriber().peek(first, 10).await.unwrap();
    assert!(
        taken.iter().all(|event| event.state == "ready"),
        "{taken:?}"
    );
    drop_databases(made).await;
}

#[tokio::test]
async fn one_completer_finishes_the_requests_of_all_shards() {
    let made = two_databases().await;
    let shards = Shards::new(made.iter().map(|(_, pool)| pool.clone())).unwrap();
    let scope = Scope::new("orders");
    for (number, pool) in shards.each() {
        for request in 0..3 {
            let key = scope.key(&format!("{number}/{request}"));
            let lease = claimed(&key, pool).await;
            lease.release(pool, None, None).await.unwrap();
        }
    }
    let all = Arc::new(Semaphore::new(0));
    let handler = {
        let all = Arc::clone(&all);
        move |abandoned: Abandoned| {
            let number = abandoned.shard.map(|number| number.to_string());
            let key = abandoned.lease.key().as_str();
            assert_eq!(key.split('/').next(), number.as_deref());
            all.add_permits(1);
            async { Ok(Response::new(200).into()) }
        }
    };
    let enough = async { all.acquire_many(6).await.unwrap().forget() };
    let completer = scope.completer_over(&shards).concurrency(2);
    let completed = completer.run(enough, handler).await.unwrap();
    assert_eq!((completed.completed, completed.released), (6, 0));
    drop_databases(made).await;
}

#[tokio::test]
async fn one_worker_tears_down_the_rows_of_all_shards() {
    const TABLES: &str = include_str!("../../../sql/examples/batch_job.sql");
    const DEFINITION: &str = include_str!("../../../sql/examples/batch_job.json");
    let made = two_databases().await;
    let shards = Shards::new(made.iter().map(|(_, pool)| pool.clone())).unwrap();
    let machine = Machine::new("batch_job");
    for (_, pool) in shards.each() {
        let client = pool.get().await.unwrap();
        client.batch_execute(TABLES).await.unwrap();
        let definition = Json::from_text(DEFINITION);
        Machine::define(pool, &definition).await.unwrap();
        let job = "INSERT INTO wallet VALUES ('ada', 100); \
                   INSERT INTO batch_job (customer) VALUES ('ada'), ('ada')";
        client.batch_execute(job).await.unwrap();
        for id in [1, 2] {
            machine.row(id).cancel().request(pool).await.unwrap();
        }
    }
    let left = async {
        for (_, pool) in shards.each() {
            while !machine.cancel_pending(pool, 10).await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let worker = machine.teardown_worker_over(&shards);
    let clean = |_, _| async { Ok::<(), Error>(()) };
    let torn_down = worker.run(left, clean).await.unwrap();
    assert_eq!((torn_down.cancelled, torn_down.failed), (4, 0));
    drop_databases(made).await;
}

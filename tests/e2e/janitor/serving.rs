//! What the workers are for: what is stuck goes on in every listed database, and an idle one costs nothing.

use crate::world::{JOBS, WORKER, claim, launch, preloaded, show, until, until_swept};
use pg_once_tests::race::poll_async;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A nap (of a second) and a second after its lease has ended no row is stuck, by the server's clock.
const IN_TIME: &str = "
select count(*), bool_and(ended_at >= lease_until), max(ended_at - lease_until) <= interval '2 s'
  from once.action_lease where state = 's'";

#[tokio::test]
async fn a_stuck_claim_state_is_released_in_each_of_three_databases() {
    let cluster = preloaded("a, b, c")
        .setting("once.janitor_naptime", "1s")
        .launch()
        .unwrap();
    let mut clients = Vec::new();
    for name in ["a", "b", "c"] {
        let client = cluster.create_database_with_extension(name).await.unwrap();
        show(&client, JOBS).await;
        clients.push(client);
    }
    for client in &clients {
        claim(client, 1, 10, "2 s").await;
    }
    for client in &clients {
        until(client, "select distinct status from job", "ready").await;
        assert_eq!(show(client, IN_TIME).await, "10|t|t");
    }
    let seen = "select done, failed, served_by from once.janitor_status() where machine = 'job'";
    assert_eq!(show(&clients[2], seen).await, format!("10|0|{WORKER}"));
}

#[tokio::test]
async fn a_machine_is_covered_by_the_worker_alone() {
    let cluster = preloaded("a")
        .setting("once.janitor_grace", "3s")
        .launch()
        .unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    until(
        &client,
        "select count(*) from once.janitor where machine = 'job' and good_end is not null",
        "1",
    )
    .await;
    let end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < end {
        show(&client, "select once.machine_assert()").await;
    }
}

#[tokio::test]
async fn a_long_naptime_uncovers_no_machine_and_a_shorter_one_is_read_on_reload() {
    let cluster = preloaded("a")
        .setting("once.janitor_naptime", "5min")
        .launch()
        .unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    let reload = async |set: &str| {
        show(&admin, set).await;
        show(&admin, "select pg_reload_conf()").await;
    };
    reload("alter system set once.janitor_grace = '6s'").await;
    let swept = "select max(good_end)::text from once.janitor where machine = 'job'";
    let mut ends = BTreeSet::new();
    poll_async(
        "passes of a worker that may nap for five minutes",
        async || {
            let end = show(&client, swept).await;
            if end != "~" {
                show(&client, "select once.machine_assert()").await;
                ends.insert(end);
            }
            Ok((ends.len() > 2).then_some(()))
        },
    )
    .await
    .unwrap();
    until_swept(&client).await;
    reload("alter system reset once.janitor_grace").await;
    claim(&client, 1, 10, "1 ms").await;
    reload("alter system set once.janitor_naptime = '100ms'").await;
    until(&client, "select distinct status from job", "ready").await;
}

/// Transactions in the database, as the server counts them.
const VISITS: &str = "select xact_commit from pg_stat_database where datname = 'a'";

#[tokio::test]
async fn an_idle_database_is_left_alone_until_a_lease_in_it_expires() {
    // Whose transactions would be counted.
    let cluster = preloaded("a")
        .setting("autovacuum", "off")
        .launch()
        .unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    show(&client, JOBS).await;
    claim(&client, 1, 10, "6 s").await;
    drop(client);
    // At first passes follow each other, because the passes themselves write.
    let mut before = String::new();
    let still = poll_async("no more passes", async || {
        let last = std::mem::replace(&mut before, show(&admin, VISITS).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok((last == before).then_some(()))
    });
    still.await.unwrap();
    let changed = format!("select ({VISITS}) > {before}");
    until(&admin, &changed, "t").await;
    let client = cluster.connect("a").await.unwrap();
    until(&client, "select distinct status from job", "ready").await;
    assert_eq!(show(&client, IN_TIME).await, "10|t|t");
}

#[tokio::test]
async fn a_backlog_of_one_task_keeps_no_other_waiting() {
    let cluster = launch("a");
    let client = cluster.connect("postgres").await.unwrap();
    show(&client, "create database a").await;
    let client = cluster.connect("a").await.unwrap();
    show(&client, "create extension pg_once").await;
    show(&client, JOBS).await;
    expired(&client, 150_000).await;
    claim(&client, 1, 10, "1 us").await;
    until(&client, "select distinct status from job", "ready").await;
    let left = show(&client, "select count(*) > 0 from once.key").await;
    assert_eq!(left, "t", "the backlog was too small to tell");
}

/// Keys that were finished so long ago that nothing but their rows is left.
pub async fn expired(client: &tokio_postgres::Client, count: u32) {
    show(
        client,
        &format!(
            "insert into once.key (token, lease_until, claimed_at, created_at, look_at, reap_at, ttl_us, attempt,
                attempt_base, status, reap_stage, look_lane, emits, advanced, id, scope, key, recovery_point, finished_at,
                response_code)
             select 1, t, t, t, t, t, 1000000, 1, 0, 'c', '0', '0', false, '0', md5(g::text)::uuid, 's', g::text, 'finished', t, 200
               from generate_series(1, {count}) as g, (select clock_timestamp() - interval '3 days') as x (t)"
        ),
    )
    .await;
}

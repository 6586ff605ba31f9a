//! What the worker is for: what is stuck goes on in every listed database, and an idle one costs nothing.

use crate::world::{
    JOBS, WORKER, claim, launch, preloaded, show, until, until_served, until_swept, worker,
};
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
    let admin = cluster.connect("postgres").await.unwrap();
    until_served(&admin, "a b c").await;
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

#[tokio::test]
async fn an_idle_worker_says_what_it_is_and_writes_next_to_nothing() {
    // Whose transactions would be counted.
    let cluster = preloaded("a")
        .setting("autovacuum", "off")
        .launch()
        .unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    let pid = worker(&client, "a").await;
    until_swept(&client).await;
    let activity = format!(
        "select application_name, state, query, xact_start is null, backend_xmin is null
           from pg_stat_activity where pid = {pid}"
    );
    let resting = format!("{WORKER}|idle|resting until once.janitor_naptime is over|t|t");
    until(&client, &activity, &resting).await;
    // Fifteen passes in three seconds, and less than one write of each row.
    let ends = "select count(distinct last_end) from once.janitor where task = 'key_reap'";
    let before = show(
        &client,
        "select string_agg(last_end::text, ' ' order by task, machine) from once.janitor",
    )
    .await;
    let xid = "select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())";
    let first: i64 = show(&client, xid).await.parse().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let last: i64 = show(&client, xid).await.parse().unwrap();
    let after = show(
        &client,
        "select string_agg(last_end::text, ' ' order by task, machine) from once.janitor",
    )
    .await;
    assert_eq!(show(&client, ends).await, "1");
    assert_eq!(before, after);
    assert!(last - first <= 2, "{} transactions wrote", last - first);
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

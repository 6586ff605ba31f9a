//! Kills and shutdowns: whatever ends a worker, the next one goes on, and none keeps the server from stopping.

use std::time::{Duration, Instant};

use crate::world::{
    JOBS, PATIENT, claim, hold_a_worker, launch, logged, preloaded, show, until, until_swept,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pg_once_tests::race::poll_async;
use pg_once_tests::{Builder, Cluster, StopMode};

fn patient(databases: &str) -> Builder {
    let (name, value) = PATIENT;
    preloaded(databases).setting(name, value)
}

async fn ready(client: &tokio_postgres::Client) {
    until(client, "select distinct status from job", "ready").await;
}

/// A session, once the server has recovered from a crash.
async fn again(cluster: &Cluster) -> tokio_postgres::Client {
    poll_async("the server to take sessions again", async || {
        Ok(cluster.connect("a").await.ok())
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_worker_killed_in_the_middle_of_a_batch_comes_back_and_nothing_is_lost() {
    let mut cluster = patient("a").launch().unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    drop(client);
    for _ in 0..3 {
        let client = again(&cluster).await;
        claim(&client, 1, 100, "1 us").await;
        // It waits in the middle of a transaction.
        let (holder, pid) = hold_a_worker(&cluster, "a").await;
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        poll_async("the crash to end the sessions", async || {
            Ok((holder.is_closed() && client.is_closed()).then_some(()))
        })
        .await
        .unwrap();
        let client = again(&cluster).await;
        ready(&client).await;
        until_swept(&client).await;
    }
    cluster.kill_9().unwrap();
    cluster.start().unwrap();
    let client = cluster.connect("a").await.unwrap();
    claim(&client, 1, 100, "1 us").await;
    ready(&client).await;
}

#[tokio::test]
async fn a_worker_or_launcher_that_is_terminated_is_started_again() {
    let cluster = patient("a").launch().unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    let (holder, first) = hold_a_worker(&cluster, "a").await;
    show(&client, &format!("select pg_terminate_backend({first})")).await;
    let gone = |pid| format!("select count(*) from pg_stat_activity where pid = {pid}");
    until(&client, &gone(first), "0").await;
    show(&holder, "rollback").await;
    until_swept(&client).await;
    // The launcher takes its workers along.
    let (holder, second) = hold_a_worker(&cluster, "a").await;
    assert_ne!(first, second);
    show(
        &client,
        "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'pg_once launcher'",
    )
    .await;
    until(&client, &gone(second), "0").await;
    show(&holder, "rollback").await;
    until_swept(&client).await;
    assert_eq!(logged(&cluster, "ERROR"), 0);
}

#[tokio::test]
async fn a_cancelled_batch_fails_one_task_and_the_next_pass_goes_on() {
    let cluster = patient("a").launch().unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    let (holder, pid) = hold_a_worker(&cluster, "a").await;
    show(&client, &format!("select pg_cancel_backend({pid})")).await;
    show(&holder, "rollback").await;
    until_swept(&client).await;
    let failed = "select count(*) from once.janitor where failed > 0";
    assert!(["0", "1"].contains(&show(&client, failed).await.as_str()));
}

/// No sleep and no nap of these tests ends as soon; a server that waits for neither ends in a moment.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Stops the server beside this thread, which meanwhile ends the session that a smart shutdown waits for.
async fn stopped_at_once(mut cluster: Cluster, mode: StopMode) -> Cluster {
    let stopping = tokio::task::spawn_blocking(move || {
        let begin = Instant::now();
        cluster.stop(mode).unwrap();
        let took = begin.elapsed();
        assert!(took < AT_ONCE, "{mode:?}: {took:?}");
        cluster
    });
    stopping.await.unwrap()
}

/// It sleeps, and no worker runs.
const ASLEEP: &str = "
select string_agg(concat_ws(' ', backend_type, wait_event), ', ') from pg_stat_activity
 where backend_type ~ '^pg_once'";

#[tokio::test]
async fn a_fast_and_a_smart_shutdown_wake_a_launcher_that_rests_for_minutes() {
    let builder = preloaded("a").setting("once.janitor_naptime", "5min");
    let mut cluster = builder.launch().unwrap();
    let client = cluster.create_database_with_extension("a").await.unwrap();
    drop(client);
    for mode in [StopMode::Fast, StopMode::Smart] {
        let client = cluster.connect("a").await.unwrap();
        until(&client, ASLEEP, "pg_once launcher Extension").await;
        drop(client);
        cluster = stopped_at_once(cluster, mode).await;
        cluster.start().unwrap();
    }
}

/// A row that begins to be reverted, and one that has been: no rollback takes that back. Each would take longer
/// than anybody waits for the end of a server.
const SLOW: &str = "
create sequence begun; create sequence reverted;
create function slow() returns trigger language plpgsql as $$ begin
    perform pg_catalog.nextval('public.begun');
    perform pg_catalog.pg_sleep(1000);
    perform pg_catalog.nextval('public.reverted');
    return new; end $$;
create trigger slow before update of status on job for each row
    when (new.status = 'ready') execute function slow()";

#[tokio::test]
async fn a_fast_and_a_smart_shutdown_end_it_at_once_in_the_middle_of_a_long_sweep() {
    for mode in [StopMode::Fast, StopMode::Smart] {
        let cluster = launch("a");
        let client = cluster.create_database_with_extension("a").await.unwrap();
        show(&client, JOBS).await;
        until_swept(&client).await;
        show(&client, SLOW).await;
        claim(&client, 1, 100, "1 us").await;
        let busy = "select state, query from pg_stat_activity
             where backend_type = 'pg_once janitor' and wait_event = 'PgSleep'";
        until(&client, busy, "active|once.sweep(1000, 'action_release')").await;
        drop(client);
        let mut cluster = stopped_at_once(cluster, mode).await;
        // No worker until the trigger is gone: dropping it would wait for the batch.
        let list = |databases| format!("once.janitor_databases = '{databases}'\n");
        cluster.append_settings(&list("")).unwrap();
        cluster.start().unwrap();
        let client = cluster.connect("a").await.unwrap();
        let rows = "select b.last_value, b.is_called, r.is_called from begun as b, reverted as r";
        assert_eq!(show(&client, rows).await, "1|t|f", "{mode:?}");
        show(&client, "drop trigger slow on job").await;
        cluster.append_settings(&list("a")).unwrap();
        show(&client, "select pg_reload_conf()").await;
        ready(&client).await;
    }
}

//! What goes wrong again and again: a task that fails keeps no other from its turn, nothing is tried faster for it, and
//! the log says it once.

use crate::serving::expired;
use crate::world::{
    JOBS, claim, launch, logged, preloaded, show, until, until_logged, until_swept,
};
use pg_once_tests::Cluster;
use pg_once_tests::race::poll_async;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

const NAP: Duration = Duration::from_millis(200);

/// The sweep of messages fails as a whole.
const REFUSE: &str = "
create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$;
create trigger refuse after delete on once.inbox for each row execute function refuse()";

async fn failures(client: &Client) -> i64 {
    let sql = "select failed from once.janitor where task = 'inbox_reap'";
    show(client, sql).await.parse().unwrap()
}

#[tokio::test]
async fn a_task_that_fails_keeps_no_other_from_its_turn_and_is_told_of() {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    show(&client, REFUSE).await;
    show(&client, "select once.inbox_accept('s', 'm')").await;
    show(
        &client,
        "update once.inbox set expires_at = clock_timestamp() - interval '1 day'",
    )
    .await;
    let noted = "select failed >= 3, last_error, good_end is null or good_end < last_end, served_by
                   from once.janitor where task = 'inbox_reap'";
    until(&client, noted, "t|not today|t|pg_once janitor").await;

    // Those before it and behind it, while it fails.
    let begin = show(&client, "select clock_timestamp()").await;
    show(
        &client,
        "update once.janitor set last_end = null, good_end = null",
    )
    .await;
    claim(&client, 1, 100, "1 us").await;
    until(&client, "select distinct status from job", "ready").await;
    let well = format!(
        "select count(*) from once.janitor where machine = '' and task <> 'inbox_reap' and good_end > '{begin}'"
    );
    until(&client, &well, "9").await;

    // Passes follow each other without a rest while keys are waiting; it has its rest all the same.
    let (before, since) = (failures(&client).await, Instant::now());
    expired(&client, 100_000).await;
    until(&client, "select count(*) from once.key", "0").await;
    let (tries, naps) = (
        failures(&client).await - before,
        since.elapsed().as_millis() / NAP.as_millis(),
    );
    assert!(
        (1..=naps as i64 + 2).contains(&tries),
        "{tries} tries in {naps} naps"
    );
    assert_eq!(show(&client, "select count(*) from once.inbox").await, "1");
    let told =
        "WARNING:  pg_once janitor of \"a\": inbox_reap: 1 failed, the last error: not today";
    assert_eq!(logged(&cluster, told), 1);
    assert_eq!(logged(&cluster, "ERROR"), 0);

    show(&client, "alter table once.inbox disable trigger refuse").await;
    until(&client, "select count(*) from once.inbox", "0").await;
    let mended = "select last_end = good_end from once.janitor where task = 'inbox_reap'";
    until(&client, mended, "t").await;
    assert_eq!(logged(&cluster, told), 1);
}

#[tokio::test]
async fn a_table_that_stays_locked_is_one_line_of_the_log() {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    let failed = "select failed >= 3 from once.janitor where task = 'inbox_reap'";
    let told =
        "WARNING:  pg_once janitor of \"a\": inbox_reap: 1 failed, the last error: canceling";
    for lines in 1..=2 {
        let holder = cluster.connect("a").await.unwrap();
        let lock = "begin; lock table once.inbox in access exclusive mode";
        show(&holder, lock).await;
        until(&client, failed, "t").await;
        show(&holder, "rollback").await;
        assert_eq!(logged(&cluster, told), lines);
        let well = "select last_end = good_end from once.janitor where task = 'inbox_reap'";
        until(&client, well, "t").await;
        show(&client, "update once.janitor set failed = 0").await;
    }
}

/// The file without which nobody can connect to a database.
async fn version_file(cluster: &Cluster, admin: &Client, database: &str) -> PathBuf {
    let oid = format!("select oid from pg_database where datname = '{database}'");
    let oid = show(admin, &oid).await;
    cluster
        .data_directory()
        .join("base")
        .join(oid)
        .join("PG_VERSION")
}

#[tokio::test]
async fn a_worker_that_cannot_begin_is_tried_again_more_and_more_slowly_until_it_can() {
    let cluster = preloaded("b, a")
        // Its workers would stumble over the same.
        .setting("autovacuum", "off")
        .launch()
        .unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    let other = cluster.create_database_with_extension("b").await.unwrap();
    show(&admin, "create database template_of_a").await;
    let file = version_file(&cluster, &admin, "template_of_a").await;
    let aside = file.with_file_name("aside");
    std::fs::rename(&file, &aside).unwrap();
    let begin = Instant::now();
    show(&admin, "alter database template_of_a rename to a").await;
    let broken = "is not a valid data directory";
    until_logged(&cluster, broken).await;
    while begin.elapsed() < Duration::from_secs(4) {
        assert_eq!(logged(&cluster, broken), 1, "{:?}", begin.elapsed());
        // The other databases do not wait for it.
        until_swept(&other).await;
    }
    poll_async("the second try", async || {
        Ok((logged(&cluster, broken) == 2).then_some(()))
    })
    .await
    .unwrap();
    std::fs::rename(&aside, &file).unwrap();
    let client = cluster.connect("a").await.unwrap();
    show(&client, "create extension pg_once").await;
    until_swept(&client).await;
    assert_eq!(logged(&cluster, broken), 2);
}

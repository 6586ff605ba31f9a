//! Settings of a database or a role that would change what a worker does, or keep it from working.

use crate::world::{
    JOBS, PATIENT, WORKER, claim, hold_a_worker, launch, logged, show, until, until_swept,
};

#[tokio::test]
async fn no_setting_of_a_database_or_a_role_keeps_it_from_sweeping() {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    // What the worker's role and database are set to, an operator that would win by search_path among it.
    show(
        &client,
        "create schema evil; create role nobody;
         create function evil.never(timestamptz, timestamptz) returns boolean language sql as 'select false';
         create operator evil.<= (leftarg = timestamptz, rightarg = timestamptz, function = evil.never);
         alter database a set search_path = evil, pg_catalog;
         alter database a set default_transaction_read_only = on;
         alter database a set default_transaction_isolation = 'serializable';
         alter database a set statement_timeout = '1ms';
         alter database a set lock_timeout = '1ms';
         alter database a set idle_in_transaction_session_timeout = '1ms';
         alter database a set row_security = off;
         alter database a set session_replication_role = replica;
         alter role postgres set role = nobody;
         alter role postgres in database a set application_name = 'mine'",
    )
    .await;
    until_swept(&client).await;
    claim(&client, 1, 100, "1 us").await;
    until(&client, "select distinct status from job", "ready").await;
    assert_eq!(
        show(&client, "select sum(failed) from once.janitor_status()").await,
        "0"
    );
    assert_eq!(logged(&cluster, "WARNING:  pg_once janitor"), 0);
}

#[tokio::test]
async fn a_setting_of_the_database_applies_to_its_next_pass() {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    until_swept(&client).await;
    let (name, value) = PATIENT;
    show(
        &client,
        &format!("alter database a set {name} = '{value}'; alter database a set application_name = 'mine'"),
    )
    .await;
    // A pass that had begun before may end with the old setting; the next one waits longer than the ordinary 100 ms.
    until_swept(&client).await;
    let (_holder, pid) = hold_a_worker(&cluster, "a").await;
    let about = format!(
        "select application_name, clock_timestamp() - state_change > '1 s' from pg_stat_activity where pid = {pid}"
    );
    until(&client, &about, &format!("{WORKER}|t")).await;
}

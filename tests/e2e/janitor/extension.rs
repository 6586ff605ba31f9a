//! The worker and the extension that comes and goes.

use crate::world::{JOBS, claim, launch, logged, show, until, until_swept};

#[tokio::test]
async fn it_waits_for_the_extension_and_survives_drop_and_create() {
    let cluster = launch("a");
    let admin = cluster.connect("postgres").await.unwrap();
    show(&admin, "create database a").await;
    let client = cluster.connect("a").await.unwrap();
    for _ in 0..3 {
        show(&client, "create extension pg_once").await;
        show(&client, JOBS).await;
        until_swept(&client).await;
        claim(&client, 1, 100, "1 us").await;
        until(&client, "select distinct status from job", "ready").await;
        // In the middle of its passes, too: nothing of it may be in the way.
        show(&client, "drop extension pg_once cascade; drop table job").await;
    }
    assert_eq!(logged(&cluster, "ERROR"), 0);
    assert_eq!(logged(&cluster, "WARNING:  pg_once janitor"), 0);
}

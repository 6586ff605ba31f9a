//! Physical replication with synchronous commits: the primary is killed with SIGKILL under the mixed load, of clients
//! that make work and others that carry it on, the standby is promoted, and all of them go on there: everything that
//! was acknowledged is there, fencing tokens go on growing. Then the same once more with a standby of the new primary.

use pg_once_tests::{Cluster, is_long, race};

use crate::DATABASE;
use crate::load::{Load, Running};

/// A standby that every commit of `primary` waits for.
async fn synchronous_standby(primary: &Cluster) -> Cluster {
    // Copied before the primary is told to wait: the promoted one waits for nobody.
    let standby = primary.standby().unwrap();
    let wait = "alter system set synchronous_standby_names = '*'";
    primary.psql("postgres", wait).unwrap();
    primary.psql("postgres", "select pg_reload_conf()").unwrap();
    race::poll_async("the standby to be synchronous", async || {
        let sync = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        Ok((primary.psql("postgres", sync)? == "1").then_some(()))
    })
    .await
    .unwrap();
    standby
}

/// Kills the primary in the middle of the load and lets everybody go on at the standby.
async fn fail_over(mut primary: Cluster, running: &Running) -> Cluster {
    let standby = synchronous_standby(&primary).await;
    running.goes_on_for(300).await;
    primary.kill_9().unwrap();
    // With its machine, and the pooler there.
    drop(primary);
    standby.promote().await.unwrap();
    running
        .load
        .door
        .move_to(standby.front_url(DATABASE).unwrap());
    running.goes_on_for(300).await;
    standby
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_acknowledged_is_there_after_a_promotion_under_load() {
    let mut primary = Cluster::launch().unwrap();
    primary
        .create_database_with_extension(DATABASE)
        .await
        .unwrap();
    let load = Load::prepare(primary.front_url(DATABASE).unwrap()).await;
    let mut running = load.start();
    for _ in 0..if is_long() { 10 } else { 2 } {
        primary = fail_over(primary, &running).await;
    }
    running.settle().await;
    running.end().await.assert_whole().await;
}

//! A standby has no worker and shows what is due; one that is promoted gets its worker by itself.

use crate::world::{JOBS, claim, launch, show, until, until_swept};
use pg_once_tests::race::sqlstate;

#[tokio::test]
async fn no_worker_runs_on_a_standby_and_one_starts_after_its_promotion() {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    until_swept(&client).await;
    let standby = cluster.standby().unwrap();
    standby.wait_caught_up(&cluster).await.unwrap();
    let there = standby.connect("a").await.unwrap();
    let ours = "select count(*) from pg_stat_activity where backend_type like 'pg_once%'";
    assert_eq!(show(&there, ours).await, "0");
    assert_eq!(
        show(
            &there,
            "select count(*), sum(due) from once.janitor_status() where machine is null"
        )
        .await,
        "10|0"
    );
    assert_eq!(
        show(
            &there,
            "select done from once.janitor_status() where machine = 'job'"
        )
        .await,
        "0"
    );
    for call in [
        "select * from once.sweep()",
        "select * from once.sweep(task => 'inbox_reap')",
        "call once.sweep_all()",
    ] {
        assert_eq!(sqlstate(&there.simple_query(call).await), "25006", "{call}");
    }
    assert_eq!(show(&there, ours).await, "0");
    drop(cluster);
    standby.promote().await.unwrap();
    claim(&there, 1, 100, "1 us").await;
    until(&there, "select distinct status from job", "ready").await;
    until_swept(&there).await;
}

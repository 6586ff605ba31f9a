//! Whoever may still look with an old snapshot without a session here: prepared transactions, standbys.

use pg_once_tests::{Cluster, race};

use crate::playground::Playground;
use crate::{TOOLS, current, retire, retire_in_vain, retire_until, used};

pub async fn shop(cluster: &Cluster) -> Playground {
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    let play = Playground::on(cluster, "shop").await;
    play.show(TOOLS).await;
    play.show("select once.topic_set('t', '{}')").await;
    play
}

#[tokio::test]
async fn a_prepared_emit_holds_its_segment_until_it_is_decided() {
    let cluster = Cluster::builder()
        .setting("max_prepared_transactions", "5")
        .launch()
        .unwrap();
    let play = shop(&cluster).await;
    for (end, rest) in [("commit prepared", "{9999}"), ("rollback prepared", "{}")] {
        let here = current(&play).await;
        play.show("begin; select fill('t', 1, 9999); prepare transaction 'emit'")
            .await;
        play.show("select fill('t', 1100); select drain('t') is not null")
            .await;
        retire_in_vain(&play).await;
        assert!(used(&play).await.contains(&here), "{end}");
        play.show(&format!("{end} 'emit'")).await;
        assert_eq!(play.show("select drain('t')").await, rest);
        retire_until(&play, "").await;
    }
}

#[tokio::test]
async fn a_snapshot_on_a_standby_with_feedback_holds_the_segment() {
    let cluster = Cluster::builder()
        .setting("wal_receiver_status_interval", "1s")
        .launch()
        .unwrap();
    let play = shop(&cluster).await;
    play.show("select fill('t', 1100)").await;
    let standby = cluster.standby().unwrap();
    standby.wait_caught_up(&cluster).await.unwrap();
    let there = Playground::on(&standby, "shop").await;
    there
        .show("alter system set hot_standby_feedback = on")
        .await;
    there.show("select pg_reload_conf()").await;
    there
        .show("begin isolation level repeatable read; select 1")
        .await;
    race::poll_async("the standby's feedback", async || {
        let fed = "select count(*) from pg_stat_replication where backend_xmin is not null";
        Ok((play.show(fed).await == "1").then_some(()))
    })
    .await
    .unwrap();
    play.show("select drain('t') is not null").await;
    for _ in 0..5 {
        retire(&play).await;
    }
    standby.wait_caught_up(&cluster).await.unwrap();
    assert_eq!(used(&play).await, "0");
    assert_eq!(
        there.show("select count(*) from once.event_0").await,
        "1100"
    );
    there.show("commit").await;
    retire_until(&play, "").await;
}

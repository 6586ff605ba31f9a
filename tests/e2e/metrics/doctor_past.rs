//! Who holds on to the past: old transactions, prepared ones, slots, standbys. In clusters of their own, where what
//! is there for the whole server disturbs no other test.

use super::doctor::{assert_told, told};
use super::{problems, shop};
use crate::playground::Playground;
use pg_once_tests::{Cluster, race};

/// Gives out so many transaction ids.
async fn burn(play: &Playground, count: u32) {
    play.show(&format!(
        "create temp table if not exists burnt (n int);
         do $$ begin for i in 1 .. {count} loop
            begin insert into burnt values (i); exception when others then null; end;
         end loop; end $$; truncate burnt"
    ))
    .await;
}

#[tokio::test]
async fn an_old_transaction_or_a_prepared_one() {
    let play = Playground::open().await;
    let later = "select set_config('once.fake_now', (now() + '11 min')::text, false)";
    let old = play.another().await;
    for begin in [
        "begin isolation level repeatable read; select 1",
        "begin; select pg_current_xact_id()",
    ] {
        old.show(begin).await;
        let pid = old.show("select pg_backend_pid()").await;
        assert_eq!(problems(&play).await, "");
        play.show(later).await;
        assert_told(
            &play,
            "an old transaction holds back vacuum",
            "warning",
            &format!("backend {pid}"),
        )
        .await;
        old.show("rollback").await;
        assert_eq!(told(&play, "holds back").await, "");
        play.show("reset once.fake_now").await;
    }
    old.show("begin; select once.key_claim('s', 'a'); prepare transaction 'forgotten'")
        .await;
    play.show(later).await;
    assert_told(
        &play,
        "a prepared transaction holds back vacuum: forgotten",
        "warning",
        "ROLLBACK PREPARED",
    )
    .await;
    play.show("rollback prepared 'forgotten'").await;
    assert_eq!(told(&play, "holds back").await, "");
    play.show("reset once.fake_now").await;
}

/// One transaction id holds back the log of all databases.
#[tokio::test]
async fn a_transaction_that_writes_in_another_database() {
    let prepares = Cluster::builder().setting("max_prepared_transactions", "2");
    let (cluster, play) = shop(prepares).await;
    let elsewhere = cluster.connect("postgres").await.unwrap();
    let kept = "keeps the log from being emptied";
    for (end, remedy) in [
        ("select 1", "pg_terminate_backend"),
        (
            "prepare transaction 'forgotten'",
            "ROLLBACK PREPARED 'forgotten'",
        ),
    ] {
        let begin = format!("begin; select pg_current_xact_id(); {end}");
        elsewhere.batch_execute(&begin).await.unwrap();
        play.show("select set_config('once.fake_now', (now() + '9 min')::text, false)")
            .await;
        assert_eq!(told(&play, kept).await, "");
        play.show("select set_config('once.fake_now', (now() + '11 min')::text, false)")
            .await;
        assert_told(&play, kept, "info", remedy).await;
        assert_told(&play, kept, "info", "database postgres").await;
        let undo = match end {
            "select 1" => "rollback",
            _ => "rollback prepared 'forgotten'",
        };
        elsewhere.batch_execute(undo).await.unwrap();
        assert_eq!(told(&play, kept).await, "");
    }
}

#[tokio::test]
async fn a_slot_that_nobody_uses_and_the_feedback_of_a_standby() {
    let builder = Cluster::builder()
        .setting("wal_level", "logical")
        .setting("hot_standby_feedback", "on")
        .setting("wal_receiver_status_interval", "1s");
    let (cluster, play) = shop(builder).await;
    play.show("select pg_create_logical_replication_slot('lost', 'pgoutput')")
        .await;
    assert_eq!(problems(&play).await, "");
    burn(&play, 110_000).await;
    assert_told(
        &play,
        "replication slot lost holds back vacuum of the catalogs",
        "warning",
        "unused",
    )
    .await;
    play.show("select pg_drop_replication_slot('lost')").await;
    assert_eq!(problems(&play).await, "");

    let standby = cluster.standby().unwrap();
    standby.wait_caught_up(&cluster).await.unwrap();
    let reader = Playground::on(&standby, "shop").await;
    // Both answer there, too.
    reader
        .ask("select count(*) > 10 from once.metrics()")
        .is("t")
        .await;
    assert_eq!(problems(&reader).await, "");
    reader
        .show("begin isolation level repeatable read; select count(*) from once.key")
        .await;
    burn(&play, 1_010_000).await;
    race::poll_async("the standby's feedback", async || {
        Ok((!told(&play, "a standby holds back vacuum").await.is_empty()).then_some(()))
    })
    .await
    .unwrap();
    assert_told(
        &play,
        "a standby holds back vacuum by its feedback",
        "warning",
        "hot_standby_feedback",
    )
    .await;
    reader.show("commit").await;
    race::poll_async("the standby to let go", async || {
        Ok(told(&play, "holds back").await.is_empty().then_some(()))
    })
    .await
    .unwrap();
}

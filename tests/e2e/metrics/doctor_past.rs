//! Who holds on to the past: locks, old transactions, prepared ones, slots, standbys. In clusters of their own, where what
//! is there for the whole server disturbs no other test.

use super::doctor::{assert_told, story, told};
use super::{orders, problems, shop};
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
    let old = play.another().await;
    for begin in [
        "begin isolation level repeatable read; select 1",
        "begin; select pg_current_xact_id()",
    ] {
        old.show(begin).await;
        let pid = old.show("select pg_backend_pid()").await;
        story(&play, "well\n in 11 min").await;
        let pid = format!("backend {pid}");
        let problem = "an old transaction holds back vacuum";
        assert_told(&play, problem, "warning", &pid).await;
        old.show("rollback").await;
        story(&play, "no holds back\n reset once.fake_now").await;
    }
    old.show("begin; select once.key_claim('s', 'a'); prepare transaction 'forgotten'")
        .await;
    let lines = "
        in 11 min
        ! warning | a prepared transaction holds back vacuum: forgotten | ROLLBACK PREPARED
        rollback prepared 'forgotten'
        no holds back
        reset once.fake_now";
    story(&play, lines).await;
}

#[tokio::test]
async fn a_backend_that_keeps_an_overdue_lease_locked_or_rows_for_long() {
    let play = Playground::open().await;
    orders(&play).await;
    play.show("select * from once.sweep(); select once.action_claim('orders', '1', 'pay', lease => '1 ms')").await;
    let holder = play.another().await;
    let token = play.show("select token from once.action_lease").await;
    holder
        .show(&format!(
            "begin; select once.action_extend('orders', '1', {token}, '1 ms')"
        ))
        .await;
    let pid = holder.show("select pg_backend_pid()").await;
    let problem =
        format!("backend {pid} keeps an overdue lease locked: row 1 of machine \"orders\"");
    race::poll_async("the lease to expire", async || {
        Ok((!told(&play, &problem).await.is_empty()).then_some(()))
    })
    .await
    .unwrap();
    let hint = format!("pg_terminate_backend({pid})");
    assert_told(&play, &problem, "error", &hint).await;
    holder.show("rollback").await;
    assert_eq!(told(&play, "locked").await, "");
    play.show("select * from once.sweep()").await;
    // Long transactions that wrote: beside a foreign call, perhaps. One that only reads is none.
    let reader = play.another().await;
    reader
        .show("begin isolation level repeatable read; select count(*) from orders")
        .await;
    holder.show("begin; select once.key_claim('s', 'a')").await;
    let pid = holder.show("select pg_backend_pid()").await;
    let lines = "
        in 2 min
        ! warning | keeps rows locked | backend PID ";
    story(&play, &lines.replace("PID", &pid)).await;
    assert!(told(&play, "keeps rows locked").await.contains("once.key"));
    holder
        .show("commit; begin; select 1 from orders for no key update")
        .await;
    assert!(
        told(&play, "keeps rows locked")
            .await
            .contains("of public.orders;")
    );
    holder.show("commit").await;
    reader.show("commit; reset all").await;
    play.show("reset once.fake_now").await;
    assert_eq!(problems(&play).await, "");
}

/// One transaction id holds back the log of all databases.
#[tokio::test]
async fn a_transaction_that_writes_in_another_database() {
    let prepares = Cluster::builder().setting("max_prepared_transactions", "2");
    let (cluster, play) = shop(prepares).await;
    let elsewhere = cluster.connect("postgres").await.unwrap();
    for (end, remedy) in [
        ("select 1", "pg_terminate_backend"),
        (
            "prepare transaction 'forgotten'",
            "ROLLBACK PREPARED 'forgotten'",
        ),
    ] {
        let begin = format!("begin; select pg_current_xact_id(); {end}");
        elsewhere.batch_execute(&begin).await.unwrap();
        let lines = "
            in 9 min
            no keeps the log from being emptied
            in 11 min
            ! info | keeps the log from being emptied | REMEDY
            ! info | keeps the log from being emptied | database postgres";
        story(&play, &lines.replace("REMEDY", remedy)).await;
        let undo = match end {
            "select 1" => "rollback",
            _ => "rollback prepared 'forgotten'",
        };
        elsewhere.batch_execute(undo).await.unwrap();
        story(&play, "no keeps the log from being emptied").await;
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
    let lines = "
        ! warning | replication slot lost holds back vacuum of the catalogs | unused
        select pg_drop_replication_slot('lost')
        well";
    story(&play, lines).await;

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
    let problem = "a standby holds back vacuum by its feedback";
    assert_told(&play, problem, "warning", "hot_standby_feedback").await;
    reader.show("commit").await;
    race::poll_async("the standby to let go", async || {
        Ok(told(&play, "holds back").await.is_empty().then_some(()))
    })
    .await
    .unwrap();
}

//! Batches, receipts and failed attempts go when they have been over for max_lease_life.

use crate::playground::Playground;
use crate::{later, open, retire};

async fn rows(play: &Playground) -> String {
    play.show(
        "select (select count(*) from once.batch), (select count(*) from once.receipt),
                (select count(*) from once.delivery)",
    )
    .await
}

#[tokio::test]
async fn batches_that_are_over_go_but_for_the_last_of_their_lane() {
    let play = open().await;
    play.show("select fill('t', 10, size => 1); select drain('t', most => 1) is not null")
        .await;
    let last = play.show("select max(token) from once.batch").await;
    assert_eq!(rows(&play).await, "10|10|0");
    retire(&play).await;
    assert_eq!(rows(&play).await, "10|10|0");
    let acked = format!("select once.outbox_ack('t', 'default', {last})");
    later(&play, "25 hours").await;
    play.ask("select done, failed, more from once.sweep(4, 'outbox_retire')")
        .is("4|0|t")
        .await;
    assert_eq!(retire(&play).await, "5|0|t", "more: an old segment is left");
    assert_eq!(rows(&play).await, "1|1|0");
    assert_eq!(play.code(&acked).await, "ON006");
    assert_eq!(play.show("select token from once.batch").await, last);
    play.show("select fill('t', 2, 11, 1)").await;
    assert_eq!(play.show("select drain('t')").await, "{11,12}");
}

#[tokio::test]
async fn a_batch_that_is_out_stays_however_old() {
    let play = open().await;
    play.show("select fill('t', 3, size => 1)").await;
    let held = play
        .show("select token from once.outbox_take('t', max => 1, lease => '23 hours')")
        .await;
    play.show("select drain('t') is not null").await;
    later(&play, "22 hours").await;
    retire(&play).await;
    let there = format!("select count(*) from once.batch where token = {held}");
    assert_eq!(play.show(&there).await, "1");
    later(&play, "30 hours").await;
    for _ in 0..3 {
        retire(&play).await;
    }
    assert_eq!(
        play.show(&there).await,
        "1",
        "its lease is over, but nobody has taken its event back"
    );
    // It was alone in its batch: that counts as a failure, with a backoff.
    assert_eq!(play.show("select drain('t')").await, "{}");
    later(&play, "31 hours").await;
    assert_eq!(play.show("select drain('t')").await, "{1}");
}

#[tokio::test]
async fn failed_attempts_stay_while_the_event_is_not_delivered_and_max_lease_life_after_it() {
    let play = open().await;
    play.show("select fill('t', 2, size => 1)").await;
    let fail = "select once.outbox_nack('t', 'default', (select max(token) from once.outbox_take('t')),
                                        (select array_agg(event_id) from once.retry), 'no', retry_after => '1 us')";
    play.show("select once.outbox_nack('t', 'default', (select max(token) from once.outbox_take('t')), error => 'no',
                                       retry_after => '1 us')")
        .await;
    play.show(fail).await;
    assert_eq!(rows(&play).await, "2|2|4");
    later(&play, "100 hours").await;
    retire(&play).await;
    assert_eq!(
        rows(&play).await.split('|').next_back(),
        Some("4"),
        "not delivered"
    );
    // One of them dies, the other is delivered.
    play.show(
        "do $$ declare t bigint; ids bigint[]; begin
            select max(token), array_agg(event_id order by event_id) into t, ids from once.outbox_take('t');
            perform once.outbox_nack('t', 'default', t, ids[1:1], 'dead', 'never');
            perform once.outbox_ack('t', 'default', t, ids[2:2]);
         end $$",
    )
    .await;
    retire(&play).await;
    assert_eq!(
        rows(&play).await.split('|').next_back(),
        Some("5"),
        "delivered just now"
    );
    later(&play, "120 hours").await;
    play.show("select fill('t', 1, 3, 1); select drain('t') is not null")
        .await;
    later(&play, "200 hours").await;
    for _ in 0..3 {
        retire(&play).await;
    }
    assert_eq!(
        rows(&play).await.split('|').next_back(),
        Some("3"),
        "the dead one's"
    );
    let deliveries =
        "select count(*) from once.dead d, once.outbox_deliveries('t', 'default', d.event_id)";
    assert_eq!(play.show(deliveries).await, "3");
}

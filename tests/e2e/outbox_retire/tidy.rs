//! Batches, receipts and failed attempts go when they have been over for max_lease_life.

use crate::playground::Playground;
use crate::{open, retire};

async fn rows(play: &Playground) -> String {
    play.show(
        "select (select count(*) from once.batch), (select count(*) from once.receipt),
                (select count(*) from once.delivery)",
    )
    .await
}

async fn later(play: &Playground, interval: &str) {
    play.show(&format!(
        "select set_config('once.fake_now', (clock_timestamp() + interval '{interval}')::text, false)"
    ))
    .await;
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
    let told = play
        .show("select done, failed, more from once.sweep(4, 'outbox_retire')")
        .await;
    assert_eq!(told, "4|0|t");
    assert_eq!(
        retire(&play).await,
        "5|0|t",
        "more: an idle segment is left"
    );
    assert_eq!(rows(&play).await, "1|1|0");
    assert_eq!(play.code(&acked).await, "ON006");
    assert_eq!(play.show("select token from once.batch").await, last);
    play.show("select fill('t', 2, 11, 1)").await;
    assert_eq!(play.show("select drain('t')").await, "{11,12}");
}

#[tokio::test]
async fn a_batch_of_several_lanes_goes_whole_or_not_at_all() {
    let play = open().await;
    let emit = "select count(once.outbox_emit('t', '{\"n\": 1}', order_key => 'k' || i)) from generate_series(1, 40) i";
    for _ in 0..3 {
        play.show(emit).await;
        assert_eq!(
            play.show("select cardinality(drain('t'))").await,
            "40",
            "one batch of many lanes"
        );
    }
    let parts: u32 = play
        .show("select count(*) from once.batch where token = (select min(token) from once.batch)")
        .await
        .parse()
        .unwrap();
    assert!(parts > 10, "{parts}");
    let tokens = "select count(distinct token), count(*) from once.batch";
    let first = play.show("select min(token) from once.batch").await;
    later(&play, "25 hours").await;
    // Somebody has the lock of one of them.
    let other = play.another().await;
    other
        .show(&format!(
            "begin; select once.outbox_ack('t', 'default', {first}, '{{}}')"
        ))
        .await;
    let sweep = "select failed from once.sweep(1, 'outbox_retire')";
    for _ in 0..2 {
        assert_eq!(play.show(sweep).await, "0");
        assert_eq!(play.show(tokens).await, format!("2|{}", 2 * parts));
    }
    other.show("commit").await;
    assert_eq!(play.show(sweep).await, "0");
    assert_eq!(play.show(tokens).await, format!("1|{parts}"));
    assert_eq!(
        play.show("select count(*) from once.receipt").await,
        "1",
        "with their receipts"
    );
    later(&play, "50 hours").await;
    assert_eq!(play.show("select drain('t')").await, "{}");
    // A lane that nothing comes to keeps its last batch, and all of that.
    let one = "select once.outbox_emit('t', '{\"n\": 1}', order_key => 'k1')";
    play.show(one).await;
    assert_eq!(play.show("select drain('t')").await, "{1}");
    later(&play, "100 hours").await;
    retire(&play).await;
    assert_eq!(play.show(tokens).await, format!("2|{}", parts + 1));
    assert_eq!(play.show("select drain('t')").await, "{}");
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

/// A defect once: every call unnested all batches of a day that gave something out again.
#[tokio::test]
async fn failed_attempts_go_with_the_batches_that_acked_them_and_a_pass_is_bounded() {
    let play = open().await;
    // One lane: of several each would keep its last batch.
    play.show("select once.topic_set('t', '{\"lanes\": 1}')")
        .await;
    let emit = |first: i32, last: i32| {
        format!(
            "select count(once.outbox_emit('t', json_build_object('n', i), order_key => 'k' || i))
               from generate_series({first}, {last}) i"
        )
    };
    let nack = "with taken as (select token, event_id from once.outbox_take('t', max => 30))
                select count(*) from once.outbox_nack('t', 'default', (select max(token) from taken),
                    (select array_agg(event_id) from taken), retry_after => '1 us')";
    for round in 0..4 {
        play.show(&emit(round * 30 + 1, round * 30 + 30)).await;
        assert_eq!(play.show(nack).await, "30");
        assert_eq!(play.show("select cardinality(drain('t'))").await, "30");
    }
    assert_eq!(rows(&play).await, "8|8|120");
    later(&play, "25 hours").await;
    play.show(&emit(121, 121)).await;
    assert_eq!(play.show("select drain('t')").await, "{121}");
    let mut left = vec![120];
    let mut told = Vec::new();
    while rows(&play).await != "1|1|0" && left.len() < 20 {
        let sweep = "select failed, more from once.sweep(3, 'outbox_retire')";
        told.push(play.show(sweep).await);
        let rows = rows(&play).await;
        left.push(rows.rsplit('|').next().unwrap().parse::<i64>().unwrap());
    }
    assert_eq!(rows(&play).await, "1|1|0", "{left:?}");
    assert_eq!(told[0], "0|t");
    assert!(told.iter().all(|t| t.starts_with("0|")), "{told:?}");
    // Thirty events at most of each pass: those of one batch.
    assert!(left.windows(2).all(|w| w[0] - w[1] <= 30), "{left:?}");
}

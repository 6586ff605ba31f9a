//! What somebody still needs of a segment is copied before that goes, and goes itself when nobody needs it.

use crate::playground::Playground;
use crate::{current, kept, later, open, retire, retire_in_vain, retire_until};

/// 1100 events, which fill a segment; one of two subscribers is 300 behind.
async fn lagging() -> Playground {
    let play = open().await;
    play.show("select once.subscriber_set('t', 'slow')").await;
    play.show("select fill('t', 800); select drain('t', 'slow') is not null")
        .await;
    play.show("select fill('t', 300, 801); select drain('t') is not null")
        .await;
    play
}

#[tokio::test]
async fn a_lagging_subscriber_gets_everything_in_order_from_the_copies() {
    let play = lagging().await;
    assert_eq!(kept(&play).await, "0");
    retire_until(&play, "").await;
    assert_eq!(kept(&play).await, "300");
    play.show("select fill('t', 5, 1101); select drain('t') is not null")
        .await;
    play.ask("select drain('t', 'slow', 7) = upto(1105, 801)")
        .is("t")
        .await;
    assert_eq!(retire(&play).await, "300|0|f");
    assert_eq!(kept(&play).await, "0");
}

/// A new session remembers no segment and tries the first one.
#[tokio::test]
async fn an_emit_does_not_wait_for_an_open_sweep_that_empties_a_segment() {
    let play = lagging().await;
    retire(&play).await;
    assert_eq!(current(&play).await, "1");
    let sweeper = play.another().await;
    sweeper.show("begin").await;
    assert_eq!(retire(&sweeper).await, "300|0|t");
    let emitter = play.another().await;
    emitter
        .show("begin; set local lock_timeout = '1ms'; select fill('t', 1, 1101); commit")
        .await;
    sweeper.show("commit").await;
    retire_until(&play, "1").await;
    play.ask("select drain('t', 'slow', 7) = upto(1101, 801)")
        .is("t")
        .await;
}

/// Other sessions do not see the new segment yet.
#[tokio::test]
async fn a_transaction_that_opens_a_segment_does_not_empty_the_one_before() {
    let play = lagging().await;
    let sweeper = play.another().await;
    sweeper.show("begin").await;
    retire(&sweeper).await;
    assert_eq!(current(&sweeper).await, "1");
    assert_eq!(retire(&sweeper).await, "0|0|f");
    play.show("select fill('t', 1, 1101)").await;
    sweeper.show("commit").await;
    assert_eq!(retire(&play).await, "301|0|t");
}

#[tokio::test]
async fn an_event_that_is_copied_and_not_truncated_yet_comes_once() {
    let play = open().await;
    play.show("select once.subscriber_set('t', 'slow')").await;
    play.show("select fill('t', 1000); select drain('t', 'slow') is not null; select fill('t', 200, 1001)")
        .await;
    play.show("select drain('t') is not null").await;
    let reader = play.another().await;
    reader
        .show("begin isolation level repeatable read; select count(*) from once.event_0")
        .await;
    retire_in_vain(&play).await;
    assert_eq!(kept(&play).await, "200");
    assert_eq!(play.show("select count(*) from once.event_0").await, "1200");
    play.ask("select drain('t', 'slow', 33) = upto(1200, 1001)")
        .is("t")
        .await;
    reader.show("commit").await;
}

#[tokio::test]
async fn what_a_batch_holds_and_what_failed_survives_its_segment_with_its_delivery_key() {
    let play = open().await;
    play.show("select fill('t', 1100)").await;
    let take = "select string_agg(delivery_key || ' ' || (payload ->> 'n'), ',' order by event_id)
                  from once.outbox_take('t', max => 2, lease => '1 hour')";
    let held = play.show(take).await;
    let failed = play.show(take).await;
    play.show("select once.outbox_nack('t', 'default', (select max(token) from once.batch), error => 'no',
                                       retry_after => '30 min')")
        .await;
    play.show("select drain('t') is not null").await;
    retire_until(&play, "").await;
    assert_eq!(kept(&play).await, "4");
    retire_in_vain(&play).await;
    assert_eq!(kept(&play).await, "4");

    later(&play, "40 minutes").await;
    let again = play.show(take).await;
    assert_eq!(again, failed, "what failed");
    play.show("select once.outbox_ack('t', 'default', (select max(token) from once.batch))")
        .await;
    later(&play, "2 hours").await;
    // The lease ran out over two events: suspects come back one by one.
    let mut back = Vec::new();
    for _ in 0..2 {
        back.push(play.show(take).await);
        play.show("select once.outbox_ack('t', 'default', (select max(token) from once.batch))")
            .await;
    }
    assert_eq!(back.join(","), held, "what the batch held");
    assert_eq!(play.show("select drain('t')").await, "{}");
    retire(&play).await;
    assert_eq!(kept(&play).await, "0");
}

#[tokio::test]
async fn delayed_and_redriven_events_stay_until_they_are_delivered() {
    let play = open().await;
    play.show("select once.outbox_emit('t', '{\"n\": 1}', delay => '1 hour'), once.outbox_emit('t', '{\"n\": 2}')")
        .await;
    play.show("select token from once.outbox_take('t')").await;
    play.show("select once.outbox_nack('t', 'default', (select max(token) from once.batch), kind => 'never')")
        .await;
    play.show("select fill('t', 1100, 3); select drain('t') is not null")
        .await;
    retire_until(&play, "").await;
    assert_eq!(
        kept(&play).await,
        "1",
        "the delayed one; the dead one has its own"
    );
    play.ask("select once.outbox_redrive('t', 'default')")
        .is("1")
        .await;
    retire_in_vain(&play).await;
    assert_eq!(kept(&play).await, "2");
    assert_eq!(play.show("select drain('t')").await, "{2}");
    later(&play, "2 hours").await;
    retire_in_vain(&play).await;
    assert_eq!(kept(&play).await, "1");
    assert_eq!(play.show("select drain('t')").await, "{1}");
    retire(&play).await;
    assert_eq!(kept(&play).await, "0");
}

#[tokio::test]
async fn a_redrive_that_meets_the_deletion_of_its_event_loses_nothing() {
    let play = open().await;
    play.show("select once.outbox_emit('t', '{\"n\": 1}')")
        .await;
    let kill = "select once.outbox_nack('t', 'default', (select max(token) from once.outbox_take('t')), kind => 'never')";
    play.show(kill).await;
    play.show("select once.outbox_redrive('t', 'default')")
        .await;
    play.show(kill).await;
    assert_eq!(kept(&play).await, "1", "from the first redrive");
    // Redriven, and not committed: the copy that is there is locked and stays.
    let other = play.another().await;
    other.show("begin").await;
    other
        .ask("select once.outbox_redrive('t', 'default')")
        .is("1")
        .await;
    assert_eq!(retire(&play).await, "0|0|f");
    other.show("commit").await;
    assert_eq!(retire(&play).await, "0|0|f");
    assert_eq!(kept(&play).await, "1");
    assert_eq!(play.show("select drain('t')").await, "{1}");
    // The other way round: the redrive waits for the deletion and puts the event back.
    play.show("select once.outbox_emit('t', '{\"n\": 2}')")
        .await;
    play.show(kill).await;
    play.show("select once.outbox_redrive('t', 'default')")
        .await;
    play.show(kill).await;
    play.show("begin").await;
    assert_eq!(retire(&play).await, "2|0|f");
    let redrive = "select once.outbox_redrive('t', 'default')";
    let waiting = crate::waiting::Waiting::begin(&play, other, redrive).await;
    play.show("commit").await;
    assert_eq!(waiting.end().await.1.unwrap(), "1");
    assert_eq!(play.show("select drain('t')").await, "{2}");
}

#[tokio::test]
async fn order_keys_keep_their_order_through_the_copies() {
    let play = open().await;
    play.show("select once.subscriber_set('t', 'slow')").await;
    let emit = |from: u32, to: u32| {
        format!(
            "select count(once.outbox_emit('t', json_build_object('n', i, 'pad', repeat(md5(i::text), 200)),
                                           order_key => 'k' || i % 5))
               from generate_series({from}, {to}) i"
        )
    };
    play.show(&emit(1, 60_00)).await;
    play.show("select drain('t', 'slow') is not null").await;
    play.show(&emit(60_01, 90_00)).await;
    play.show("select drain('t') is not null").await;
    for _ in 0..20 {
        play.show("select once.sweep(100000, 'outbox_retire')")
            .await;
    }
    play.show(&emit(90_01, 90_50)).await;
    play.show("create table got (at int generated always as identity, n int)")
        .await;
    play.show("insert into got (n) select unnest(delivered('t', 'slow', 17))")
        .await;
    play.ask("select count(*), count(distinct n), min(n), max(n) from got")
        .is("3050|3050|6001|9050")
        .await;
    let wrong = "select count(*) from (select n, lag(n) over (partition by n % 5 order by at) as before from got) g
                  where before > n";
    assert_eq!(play.show(wrong).await, "0");
}

#[tokio::test]
async fn a_dropped_subscriber_needs_nothing() {
    let play = open().await;
    play.show("select once.subscriber_set('t', 'slow')").await;
    play.show("select fill('t', 1100); select drain('t') is not null")
        .await;
    retire_in_vain(&play).await;
    play.show("select once.subscriber_drop('t', 'slow')").await;
    retire_until(&play, "").await;
    assert_eq!(kept(&play).await, "0");
    // The last one, too.
    play.show("select fill('t', 1100); select once.subscriber_drop('t', 'default')")
        .await;
    retire_until(&play, "").await;
}

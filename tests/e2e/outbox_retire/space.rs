//! Segments move on when they are full or old, and are truncated when nobody can miss them any more.

use crate::horizon::shop;
use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::{current, kept, later, open, retire, retire_in_vain, retire_until, size, used};
use pg_once_tests::{Cluster, race};

const MB: u64 = 1 << 20;

#[tokio::test]
async fn a_full_segment_is_left_and_truncated_once_everything_in_it_is_acked() {
    let play = open().await;
    play.show("select fill('t', 1200)").await;
    assert_eq!(current(&play).await, "0");
    retire(&play).await;
    assert_eq!(current(&play).await, "1");
    retire_in_vain(&play).await;
    play.show("select fill('t', 10, 1201)").await;
    assert_eq!(play.show("select drain('t') = upto(1210)").await, "t");
    retire_until(&play, "1").await;
    assert!(size(&play).await < MB, "{}", size(&play).await);
    play.show("select fill('t', 10, 1211)").await;
    assert_eq!(play.show("select drain('t') = upto(1220, 1211)").await, "t");
}

#[tokio::test]
async fn segments_go_round_and_the_log_stays_small() {
    let play = open().await;
    let mut most = 0;
    for round in 0..12 {
        let first = 1 + round * 1100;
        play.show(&format!("select fill('t', 1100, {first})")).await;
        let got = format!("select drain('t') = upto({}, {first})", first + 1099);
        assert_eq!(play.show(&got).await, "t");
        let here = current(&play).await;
        retire_until(&play, "").await;
        assert_ne!(current(&play).await, here, "round {round}");
        most = most.max(size(&play).await);
    }
    assert!(most < 64 * MB, "{most}");
    play.ask("select done, failed, more from once.sweep() where task = 'outbox_retire'")
        .is("0|0|f")
        .await;
}

#[tokio::test]
async fn an_old_segment_is_left_when_nobody_needs_it_and_not_before() {
    let play = open().await;
    let emitter = play.another().await;
    emitter.show("begin; select fill('t', 1, 9)").await;
    retire_in_vain(&play).await;
    assert_eq!(current(&play).await, "0", "an emit is on its way");
    emitter.show("rollback").await;
    play.show("select fill('t', 3)").await;
    later(&play, "11 minutes").await;
    retire_in_vain(&play).await;
    assert_eq!(current(&play).await, "0", "three events are pending");
    assert_eq!(play.show("select drain('t')").await, "{1,2,3}");
    play.show("reset once.fake_now").await;
    retire_in_vain(&play).await;
    assert_eq!(current(&play).await, "0", "it is not old yet");
    later(&play, "11 minutes").await;
    retire_until(&play, "").await;
    assert_eq!(current(&play).await, "1");
    assert_eq!(retire(&play).await, "0|0|f");
    assert_eq!(current(&play).await, "1", "an empty one is not left");
}

/// A webhook in retry, or a paused subscriber, keeps its own events, and not the payloads of all others.
#[tokio::test]
async fn an_old_segment_is_left_though_a_few_of_its_events_are_needed() {
    let play = open().await;
    play.show("select fill('t', 10)").await;
    let held = play
        .show("select token from once.outbox_take('t', max => 1, lease => '1 hour')")
        .await;
    assert_eq!(play.show("select cardinality(drain('t'))").await, "9");
    later(&play, "9 minutes").await;
    retire_in_vain(&play).await;
    assert_eq!(current(&play).await, "0", "it is not old yet");
    later(&play, "11 minutes").await;
    retire_until(&play, "").await;
    assert_eq!(kept(&play).await, "1");
    play.ask(&format!(
        "select attempt from once.outbox_nack('t', 'default', {held}, error => 'busy', retry_after => '1 s')"
    ))
    .is("1")
    .await;
    later(&play, "12 minutes").await;
    assert_eq!(play.show("select cardinality(drain('t'))").await, "1");
}

#[tokio::test]
async fn a_snapshot_from_before_the_last_ack_holds_the_segment() {
    let play = open().await;
    play.show("select fill('t', 1100)").await;
    let reader = play.another().await;
    reader
        .show("begin isolation level repeatable read; select count(*) from once.event_0")
        .await;
    play.show("select drain('t')").await;
    retire_in_vain(&play).await;
    let all = "select count(*) from once.event_0";
    assert_eq!(reader.show(all).await, "1100");
    reader.show("commit").await;
    retire_until(&play, "").await;
}

#[tokio::test]
async fn an_open_emitter_holds_its_segment_and_its_event_is_delivered() {
    let play = open().await;
    let emitter = play.another().await;
    emitter.show("begin; select fill('t', 1, 9999)").await;
    for round in 0..3 {
        play.show(&format!("select fill('t', 1100, {})", 1 + round * 1100))
            .await;
        play.show("select drain('t')").await;
        retire_in_vain(&play).await;
    }
    assert_ne!(current(&play).await, "0");
    emitter.show("commit").await;
    assert_eq!(play.show("select drain('t')").await, "{9999}");
    later(&play, "11 minutes").await;
    retire_until(&play, "").await;
}

#[tokio::test]
async fn an_emitter_that_stalls_before_its_insert_keeps_its_segment_and_is_delivered() {
    let play = open().await;
    play.show("select fill('t', 1100)").await;
    let emitter = play.another().await;
    // Its segment is locked and confirmed.
    emitter
        .show("begin; lock table once.event_0 in row exclusive mode")
        .await;
    play.show("select drain('t')").await;
    retire_in_vain(&play).await;
    assert_eq!(current(&play).await, "1");
    let marked = "select count(*) from once.segment where drained_xid is not null";
    assert_eq!(play.show(marked).await, "0");
    // As an emitter does that had made sure that segment 0 was current before it stalled.
    emitter
        .show(
            "insert into once.event_0
             select nextval('once.event_id'), pg_current_xact_id()::text::bigint, clock_timestamp(), topic_id, 0,
                    (select max(series) from once.series), null, null, '{\"n\": 7}'
               from once.topic",
        )
        .await;
    emitter.show("commit").await;
    assert_eq!(retire(&play).await, "1|0|t", "it is copied");
    assert_eq!(play.show(marked).await, "1");
    assert_eq!(kept(&play).await, "1");
    assert_eq!(play.show("select drain('t')").await, "{7}");
    retire_until(&play, "").await;
}

#[tokio::test]
async fn a_reader_at_work_puts_the_truncation_off_and_is_not_disturbed() {
    let play = open().await;
    play.show("select fill('t', 1100)").await;
    play.show("select drain('t')").await;
    let taker = play.another().await;
    taker.show("begin").await;
    assert_eq!(taker.show("select drain('t')").await, "{}");
    retire_in_vain(&play).await;
    // Nobody else waits for the sweep, either.
    let other = play.another().await;
    other.show("set lock_timeout = '1s'").await;
    assert_eq!(other.show("select drain('t')").await, "{}");
    taker.show("commit").await;
    retire_until(&play, "").await;
}

#[tokio::test]
async fn one_session_retires_at_a_time_and_the_others_have_nothing_to_do() {
    let play = open().await;
    play.show("select fill('t', 1100)").await;
    let other = play.another().await;
    play.show("begin").await;
    assert_eq!(retire(&play).await, "0|0|t");
    assert_eq!(retire(&other).await, "0|0|f");
    play.show("rollback").await;
    assert_eq!(current(&play).await, "0");
    assert_eq!(retire(&other).await, "0|0|t");
    assert_eq!(current(&play).await, "1");
}

#[tokio::test]
async fn a_take_waits_for_an_open_truncation_and_then_finds_everything() {
    let play = open().await;
    play.show("select once.subscriber_set('t', 'slow')").await;
    play.show("select fill('t', 900)").await;
    play.show("select drain('t')").await;
    play.show("select drain('t', 'slow') is not null").await;
    play.show("select fill('t', 300, 901)").await;
    play.show("select drain('t')").await;
    // Left, copied, marked; the truncation itself in a transaction that stays open.
    let truncating = loop {
        play.show("begin").await;
        if retire(&play).await.starts_with("1|0") && used(&play).await.is_empty() {
            break play;
        }
        play.show("commit").await;
    };
    let (watcher, taker) = (truncating.another().await, truncating.another().await);
    let waiting = Waiting::begin(
        &watcher,
        taker,
        "select drain('t', 'slow') = upto(1200, 901)",
    )
    .await;
    truncating.show("commit").await;
    assert_eq!(waiting.end().await.1.unwrap(), "t");
}

#[tokio::test]
async fn a_dead_subscriber_of_one_topic_costs_no_more_while_another_topic_goes_on() {
    // Of its own: any open transaction of another test that has written holds the truncation back.
    let cluster = Cluster::launch().unwrap();
    let play = shop(&cluster).await;
    play.show("select once.topic_set('other', '{}')").await;
    // More than what all segments hold before they are left.
    for round in 0..4 {
        play.show(&format!("select fill('t', 1100, {})", 1 + round * 1100))
            .await;
        retire(&play).await;
    }
    let backlog = size(&play).await;
    let mut most = 0;
    for _ in 0..20 {
        play.show("select fill('other', 1100); select drain('other') is not null")
            .await;
        for _ in 0..4 {
            play.show("select once.sweep(100000, 'outbox_retire')")
                .await;
        }
        most = most.max(size(&play).await);
    }
    assert!(most < backlog + 48 * MB, "{most} after {backlog}");
    assert_eq!(play.show("select drain('t') = upto(4400)").await, "t");
    retire_all(&play).await;
}

/// A defect once: what was first in the index was taken for the whole segment, and that is one topic's. So the log of a
/// busy topic was kept, and grew, for what a dead subscriber of an older one had not seen.
#[tokio::test]
async fn a_dead_subscriber_that_needs_many_events_of_a_segment_does_not_keep_the_others() {
    let cluster = Cluster::launch().unwrap();
    let play = shop(&cluster).await;
    play.show("select once.topic_set('other', '{}')").await;
    play.show("select count(once.outbox_emit('t', '1')) from generate_series(1, 20500)")
        .await;
    play.show(
        "select count(once.outbox_emit('other', json_build_object('n', i, 'pad', repeat('x', 150))))
           from generate_series(1, 32000) i",
    )
    .await;
    play.show("select cardinality(drain('other', most => 10000))")
        .await;
    race::poll_async("the segment to be emptied", async || {
        play.ask("select failed from once.sweep(100000, 'outbox_retire')")
            .is("0")
            .await;
        Ok(used(&play).await.is_empty().then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(kept(&play).await, "20500");
    // A call for each row.
    let all = "select count(*) from generate_series(1, 3) i cross join lateral once.outbox_take('t', max => 10000 + i - i)";
    assert_eq!(play.show(all).await, "20500");
}

/// Everything is consumed: the log ends up empty.
async fn retire_all(play: &Playground) {
    later(play, "11 minutes").await;
    retire_until(play, "").await;
    let mut sweeps = 0;
    while crate::kept(play).await != "0" {
        retire(play).await;
        sweeps += 1;
        assert!(sweeps < 50, "{} copies stay", crate::kept(play).await);
    }
}

/// A defect once: autovacuum's ANALYZE of the batches of a busy hour looked through millions of event ids, for
/// seconds, and its snapshot kept every segment from being truncated meanwhile.
#[tokio::test]
async fn an_analyze_of_the_batches_does_not_look_through_their_arrays() {
    let play = open().await;
    play.show("select fill('t', 50, 1, 1); select drain('t', most => 5) is not null")
        .await;
    play.show("analyze once.batch, once.receipt").await;
    let analyzed = |category| {
        format!(
            "select count(*) from pg_stats s join pg_attribute a
                 on a.attrelid = format('%I.%I', s.schemaname, s.tablename)::regclass and a.attname = s.attname
               join pg_type t on t.oid = a.atttypid
              where s.schemaname = 'once' and s.tablename in ('batch', 'receipt') and t.typcategory {category}"
        )
    };
    assert_ne!(play.show(&analyzed("= 'N'")).await, "0");
    assert_eq!(play.show(&analyzed("= 'A'")).await, "0");
}

#[tokio::test]
async fn an_emit_goes_to_the_segment_that_is_current_after_a_commit_and_after_a_rollback() {
    let play = open().await;
    let other = play.another().await;
    let last =
        "select tableoid::regclass from (select tableoid, event_id from once.event_0 union all
                select tableoid, event_id from once.event_1 union all
                select tableoid, event_id from once.event_2) e order by event_id desc limit 1";
    play.show("select fill('t', 1200)").await;
    other.show("select fill('t', 1)").await;
    play.show("begin").await;
    retire(&play).await;
    play.show("select fill('t', 1)").await;
    assert_eq!(play.show(last).await, "once.event_1", "opened here");
    other.show("select fill('t', 1)").await;
    assert_eq!(other.show(last).await, "once.event_0", "not committed");
    play.show("rollback; select fill('t', 1)").await;
    assert_eq!(play.show(last).await, "once.event_0", "rolled back");
    retire(&play).await;
    for session in [&play, &other] {
        session.show("select fill('t', 1)").await;
        // The rollback has left pages in event_1.
        assert_eq!(session.show(last).await, "once.event_2", "committed");
    }
}

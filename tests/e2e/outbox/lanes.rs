//! What many lanes and many takes must not do to each other.

use crate::playground::Playground;
use crate::stage::Stage;

async fn topic(options: &str) -> Playground {
    let play = Playground::open().await;
    play.show(&format!("select once.topic_set('t', '{options}')"))
        .await;
    play
}

/// Keys of different lanes of topic `t`: the first of each lane.
async fn keys_of_two_lanes(play: &Playground) -> (String, String) {
    play.show("select once.outbox_emit('t', '0', 'k' || i) from generate_series(1, 40) i")
        .await;
    let keys = play
        .show(
            "select string_agg(k, ',' order by lane) from (
                select distinct on (lane) lane, order_key from once.event_0 where lane > 0
                 order by lane, event_id limit 2) firsts (lane, k)",
        )
        .await;
    play.show("select count(once.outbox_ack('t', 'default', token)) from (select distinct token from once.outbox_take('t', max => 1000)) t")
        .await;
    let (a, b) = keys.split_once(',').unwrap();
    (a.to_owned(), b.to_owned())
}

#[tokio::test]
async fn a_take_that_stays_open_holds_nobody_up() {
    let play = topic("{}").await;
    play.show("select once.outbox_emit('t', '1')").await;
    let stalled = play.another().await;
    stalled.show("begin").await;
    stalled
        .ask("select payload from once.outbox_take('t')")
        .is("1")
        .await;
    // Far longer than the moment that a take waits, far shorter than for ever.
    play.show("set statement_timeout = '20 s'").await;
    play.ask("select payload from once.outbox_take('t')")
        .is("")
        .await;
    stalled.show("rollback").await;
    play.ask("select payload from once.outbox_take('t')")
        .is("1")
        .await;
}

#[tokio::test]
async fn a_slow_event_keeps_no_other_lane_of_its_batch() {
    let play = topic("{}").await;
    let (quick, slow) = keys_of_two_lanes(&play).await;
    play.show(&format!(
        "select once.outbox_emit('t', '1', '{quick}'); select once.outbox_emit('t', '2', '{slow}')"
    ))
    .await;
    let taken = play
        .show("select min(token), array_agg(event_id order by payload::text) from once.outbox_take('t')")
        .await;
    let (token, ids) = taken.split_once('|').unwrap();
    let first = ids.trim_matches(['{', '}']).split(',').next().unwrap();
    play.show(&format!(
        "select once.outbox_ack('t', 'default', {token}, array[{first}])"
    ))
    .await;
    play.show(&format!(
        "select once.outbox_emit('t', '3', '{quick}'); select once.outbox_emit('t', '4', '{slow}')"
    ))
    .await;
    let other = play.another().await;
    assert_eq!(
        other
            .show("select payload from once.outbox_take('t')")
            .await,
        "3",
        "the lane of the slow one is held, the other is not"
    );
    play.ask(&format!("select once.outbox_ack('t', 'default', {token})"))
        .is("1")
        .await;
    play.ask("select payload from once.outbox_take('t')")
        .is("4")
        .await;
}

#[tokio::test]
async fn a_suspect_comes_to_its_turn_beside_a_steady_load() {
    let stage = Stage::open("{}").await;
    let (busy, quiet) = keys_of_two_lanes(&stage.play).await;
    stage.emit_keyed("poison", &quiet).await;
    stage.emit_keyed("beside", &busy).await;
    assert_eq!(stage.take(10).await.shown.split(' ').count(), 2);
    stage.clock("61 s").await;
    for round in 0..40 {
        stage.emit_keyed(&format!("load{round}"), &busy).await;
        if let Some(taken) = stage.try_take(100).await {
            stage.ack(taken.token, "").await;
            if taken.shown.starts_with("poison") {
                return;
            }
        }
    }
    panic!("the suspect and its key stand still");
}

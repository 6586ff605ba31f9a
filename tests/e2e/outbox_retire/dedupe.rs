//! dedupe_reap: dedupe_keys go when their topic's window is over.

use crate::open;
use crate::waiting::Waiting;

#[tokio::test]
async fn keys_whose_window_is_over_go_in_bounded_passes_and_no_others() {
    let play = open().await;
    play.clock("0").await;
    play.show("select once.topic_set('t', '{\"dedupe_for\": \"1 hour\"}')")
        .await;
    play.show("select count(once.outbox_emit('t', '1', dedupe_key => 'k' || i)) from generate_series(1, 5) i")
        .await;
    play.clock("30 minutes").await;
    play.show("select once.outbox_emit('t', '1', dedupe_key => 'later')")
        .await;
    let reap = "select task, done, failed, more from once.sweep(3, 'dedupe_reap')";
    assert_eq!(play.show(reap).await, "dedupe_reap|0|0|f");
    play.clock("61 minutes").await;
    assert_eq!(play.show(reap).await, "dedupe_reap|3|0|t");
    let rest = "select done from once.sweep() where task = 'dedupe_reap'";
    assert_eq!(play.show(rest).await, "2");
    assert_eq!(play.show("select count(*) from once.dedupe").await, "1");
    let emit = |key: &str| {
        format!("select emitted from once.outbox_emit('t', '1', dedupe_key => '{key}')")
    };
    assert_eq!(play.show(&emit("later")).await, "f");
    assert_eq!(play.show(&emit("k1")).await, "t");
}

#[tokio::test]
async fn a_key_that_somebody_emits_anew_is_passed_over() {
    let play = open().await;
    play.clock("0").await;
    let emit = "select emitted from once.outbox_emit('t', '1', dedupe_key => 'k')";
    play.show(emit).await;
    play.clock("25 hours").await;
    let other = play.another().await;
    other.clock("25 hours").await;
    other.show("begin").await;
    assert_eq!(other.show(emit).await, "t");
    play.ask("select done from once.sweep(task => 'dedupe_reap')")
        .is("0")
        .await;
    other.show("commit").await;
    play.ask("select done from once.sweep(task => 'dedupe_reap')")
        .is("0")
        .await;
    assert_eq!(play.show(emit).await, "f");
}

const EMIT: &str = "select emitted from once.outbox_emit('t', '1', dedupe_key => 'k')";
const REAP: &str = "select done from once.sweep(task => 'dedupe_reap')";

#[tokio::test]
async fn an_emit_that_meets_a_sweep_of_its_key_waits_and_never_fails() {
    for (end, there) in [("commit", "0"), ("rollback", "1")] {
        // The emitter's clock says that the key counts, or that its time is over, too.
        for clock in ["1 hour", "25 hours"] {
            let play = open().await;
            play.clock("0").await;
            play.show(EMIT).await;
            let emitter = play.another().await;
            emitter.clock(clock).await;
            play.clock("25 hours").await;
            play.show("begin").await;
            assert_eq!(play.show(REAP).await, "1");
            let watcher = play.another().await;
            let waiting = Waiting::begin(&watcher, emitter, EMIT).await;
            play.show(end).await;
            let (_, answer) = waiting.end().await;
            let is_over = there == "0" || clock == "25 hours";
            let emitted = if is_over { "t" } else { "f" };
            assert_eq!(answer.unwrap(), emitted, "{end} {clock}");
        }
    }
}

#[tokio::test]
async fn a_key_that_an_open_emit_has_met_is_not_swept() {
    let play = open().await;
    play.clock("0").await;
    play.show(EMIT).await;
    let emitter = play.another().await;
    emitter.clock("1 hour").await;
    emitter.show("begin").await;
    assert_eq!(emitter.show(EMIT).await, "f");
    play.clock("25 hours").await;
    assert_eq!(play.show(REAP).await, "0");
    emitter.show("commit").await;
    assert_eq!(play.show(REAP).await, "1");
}
